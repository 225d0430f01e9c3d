"""Places gangs on slots: a task and a slot for each seat."""

from __future__ import annotations

from collections.abc import Sequence

from mqtune.backends import Placement, SlotRoom
from mqtune.core.resources import Resources
from mqtune.core.tasks import is_task, task_in, task_names
from mqtune.core.trial import TrialId


class Seating(Placement):
    """Gives each seat of an attempt a task and a slot."""

    def tasks(self, trial: TrialId, needs: Resources) -> list[TrialId]:
        return task_names(trial, needs.seats)

    def trial_of(self, task: str) -> TrialId | None:
        return task_in(task)[0] if is_task(task) else None

    def slots_each(self, needs: Resources) -> int:
        return needs.seats

    def is_apart(self, needs: Resources) -> bool:
        return needs.machines > 1

    def count(self, needs: Resources, rooms: Sequence[SlotRoom]) -> int:
        """Return the number of attempts that can have all of their seats at the same time.

        If the seats must be on different workers, each worker gives a gang one slot at most. A number of gangs fits if
        all workers together have enough slots under this rule.
        """
        most = super().count(needs, rooms) // needs.seats
        if needs.machines == 1:
            return most
        least = 0
        while least < most:
            gangs = (least + most + 1) // 2
            if sum(_seats_apart(room, gangs) for room in rooms) >= needs.seats * gangs:
                least = gangs
            else:
                most = gangs - 1
        return least

    def not_offered(self, needs: Resources, rooms: Sequence[SlotRoom] = ()) -> str:
        slots = sum(room.most for room in rooms)
        workers = sum(group.workers for room in rooms for group in room.groups if group.slots > 0)
        if needs.machines > 1 and workers:
            they = f"{workers} workers with that are" if workers > 1 else "1 worker with that is"
            return f"{needs.not_offered}: {they} connected"
        if needs.machines == 1 < needs.seats and slots:
            they = f"{slots} such slots are" if slots > 1 else "1 such slot is"
            return f"{needs.not_offered}: {they} there"
        return needs.not_offered


def _seats_apart(room: SlotRoom, gangs: int) -> int:
    """Return the number of seats for these gangs, if no gang has two seats on one worker."""
    return min(room.most, sum(min(group.slots, gangs) * group.workers for group in room.groups))
