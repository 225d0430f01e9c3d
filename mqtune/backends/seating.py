"""How many attempts can run at once on some slots, where each attempt has several seats; and in words that none can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mqtune.core.resources import Resources


class Rows(NamedTuple):
    """Workers that have equally many slots: how many slots each has, and how many workers there are."""

    slots: int
    workers: int


class SeatRoom(NamedTuple):
    """Slots for seats: those of some workers, of which no more than ``most`` are to be had."""

    rows: Sequence[Rows]
    most: int

    @property
    def workers(self) -> int:
        """How many workers have any."""
        return sum(each.workers for each in self.rows if each.slots > 0)

    def for_gangs(self, count: int) -> int:
        """Return how many seats there are for so many gangs that have no two seats on one worker."""
        return min(self.most, sum(min(each.slots, count) * each.workers for each in self.rows))


def seated(needs: Resources, rooms: Sequence[SeatRoom]) -> int:
    """Return how many attempts that need this can have all of their seats at once; slots in *rooms* fit each seat.

    With seats on different workers, so many gangs can be seated as all workers together have slots for, if each worker
    gives a gang one of them: then each seat goes to the gang that lacks most, and no gang comes to one worker twice.
    """
    slots = sum(min(room.most, sum(each.slots * each.workers for each in room.rows)) for room in rooms)
    most = slots // needs.seats
    if needs.machines == 1:
        return most
    least = 0
    while least < most:
        count = (least + most + 1) // 2
        if sum(room.for_gangs(count) for room in rooms) >= needs.seats * count:
            least = count
        else:
            most = count - 1
    return least


def not_offered(needs: Resources, rooms: Sequence[SeatRoom] = ()) -> str:
    """Return that nobody offers the slots that an attempt needs, and which there are of them, as the begin of a sentence."""
    if needs.seats == 1:
        return f"no worker offers a slot with {needs}"
    slots, workers = sum(room.most for room in rooms), sum(room.workers for room in rooms)
    if needs.machines > 1:
        there = (
            f": {workers} worker{'s' * (workers > 1)} with that {'are' if workers > 1 else 'is'} connected"
            if workers
            else ""
        )
        return f"no fleet of {needs.seats} workers offers a slot with {needs.of_seat} on each{there}"
    there = f": {slots} such slot{'s' * (slots > 1)} {'are' if slots > 1 else 'is'} there" if slots else ""
    return f"no fleet offers {needs.seats} slots with {needs.of_seat} each{there}"
