"""The seats of an attempt.

A trial on one worker has one, and a gang has several, which begin and end together. Seat 0 goes by the trial's own
name; it reports, saves and is asked. Each further seat has a name of its own beside it, ``0001~1``, by which its task,
its lease, its orders and its output are found: what a worker does for an attempt, it does for a seat.
"""

from __future__ import annotations

from typing import Final

from mqtune.core.keys import is_name
from mqtune.core.trial import TrialId

#: Between a trial's name and the number of a seat; no name has it.
_MARK: Final = "~"
#: A number of a seat has no more digits.
_DIGITS: Final = 3


def seat_name(trial: TrialId, seat: int) -> TrialId:
    """Return the name of a seat of a trial's attempts: ``0001``, ``0001~1``."""
    return TrialId(f"{trial}{_MARK}{seat}") if seat else trial


def seat_names(trial: TrialId, seats: int) -> list[TrialId]:
    """Return the names of all seats, from that of seat 0 on."""
    return [seat_name(trial, seat) for seat in range(seats)]


def seat_in(name: str) -> tuple[TrialId, int]:
    """Return the trial and the number of a seat's name.

    Raises:
        ValueError: it is no name of a seat.
    """
    trial, mark, number = name.partition(_MARK)
    if not mark:
        return TrialId(trial), 0
    if not (number.isascii() and number.isdecimal() and len(number) <= _DIGITS and number[0] != "0"):
        raise ValueError(f"{name[:100]!r} is no name of a seat")
    return TrialId(trial), int(number)


def is_seat(name: object) -> bool:
    """Whether a seat may be called so: its trial's name becomes a key, a file name and a part of task ids."""
    try:
        return isinstance(name, str) and is_name(seat_in(name)[0])
    except ValueError:
        return False
