"""The seats of an attempt.

A trial in one slot has one seat. A gang has several seats, which begin and end together. Seat 0 has the trial's name.
Only seat 0 reports and saves. Each further seat has its own name, such as ``0001~1``, for its task, lease, orders and
output. A worker treats each seat like an attempt.
"""

from __future__ import annotations

from typing import Final

from mqtune.core.keys import is_name
from mqtune.core.trial import TrialId

#: Separates a trial's name and a seat number. Trial names don't contain it.
_MARK: Final = "~"
#: Maximum digits of a seat number.
_DIGITS: Final = 3


def seat_name(trial: TrialId, seat: int) -> TrialId:
    """Return the name of a trial's seat: ``0001``, ``0001~1``."""
    return TrialId(f"{trial}{_MARK}{seat}") if seat else trial


def seat_names(trial: TrialId, seats: int) -> list[TrialId]:
    """Return the names of all seats, seat 0 first."""
    return [seat_name(trial, seat) for seat in range(seats)]


def seat_in(name: str) -> tuple[TrialId, int]:
    """Return the trial and number in a seat's name.

    Raises:
        ValueError: *name* is not a seat's name.
    """
    trial, mark, number = name.partition(_MARK)
    if not mark:
        return TrialId(trial), 0
    if not (number.isascii() and number.isdecimal() and len(number) <= _DIGITS and number[0] != "0"):
        raise ValueError(f"{name[:100]!r} is not the name of a seat")
    return TrialId(trial), int(number)


def is_seat(name: object) -> bool:
    """Whether *name* is a valid seat name, safe in keys, file names and task ids."""
    try:
        return isinstance(name, str) and is_name(seat_in(name)[0])
    except ValueError:
        return False
