"""The tasks of an attempt.

An attempt has a task for each slot in which it runs, usually one. Its tasks begin and end together. Task 0 has the
trial's name. Only task 0 reports and saves. Each further task has its own name, such as ``0001~1``, for its message,
lease, orders and output. A worker treats each task like an attempt.
"""

from __future__ import annotations

from typing import Final

from mqtune.core.keys import is_name
from mqtune.core.trial import TrialId

#: Separates a trial's name and a task's number. Trial names don't contain it.
_MARK: Final = "~"
#: Maximum digits of a task's number.
_DIGITS: Final = 3


def task_name(trial: TrialId, number: int) -> TrialId:
    """Return the name of a trial's task: ``0001``, ``0001~1``."""
    return TrialId(f"{trial}{_MARK}{number}") if number else trial


def task_names(trial: TrialId, count: int) -> list[TrialId]:
    """Return the names of all tasks, task 0 first."""
    return [task_name(trial, number) for number in range(count)]


def task_in(name: str) -> tuple[TrialId, int]:
    """Return the trial and number in a task's name.

    Raises:
        ValueError: *name* is not a task's name.
    """
    trial, mark, number = name.partition(_MARK)
    if not mark:
        return TrialId(trial), 0
    if not (number.isascii() and number.isdecimal() and len(number) <= _DIGITS and number[0] != "0"):
        raise ValueError(f"{name[:100]!r} is not the name of a task")
    return TrialId(trial), int(number)


def is_task(name: object) -> bool:
    """Whether *name* is a valid name of a task, safe in keys, file names and task ids."""
    try:
        return isinstance(name, str) and is_name(task_in(name)[0])
    except ValueError:
        return False
