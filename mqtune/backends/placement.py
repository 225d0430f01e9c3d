"""How attempts take slots: each takes one, by one task.

A service may bring another placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mqtune.core.keys import is_name
from mqtune.core.resources import Resources
from mqtune.core.trial import TrialId


class EqualWorkers(NamedTuple):
    """A group of workers with the same number of slots."""

    slots: int
    workers: int


class SlotRoom(NamedTuple):
    """The slots of some workers that fit an attempt, of which at most ``most`` may be taken."""

    groups: Sequence[EqualWorkers]
    most: int

    @property
    def slots(self) -> int:
        """The number of slots that may be taken."""
        return min(self.most, sum(group.slots * group.workers for group in self.groups))


class Placement:
    """Gives each attempt one task and one slot."""

    def tasks(self, trial: TrialId, needs: Resources) -> Sequence[TrialId]:
        """Return the names of the tasks of an attempt; the first is its trial's."""
        return (trial,)

    def trial_of(self, task: str) -> TrialId | None:
        """Return the trial of a task's name; None for a malformed name."""
        return TrialId(task) if is_name(task) else None

    def slots_each(self, needs: Resources) -> int:
        """Return the number of slots that an attempt takes."""
        return 1

    def is_apart(self, needs: Resources) -> bool:
        """Whether all tasks of an attempt go to different workers."""
        return False

    def count(self, needs: Resources, rooms: Sequence[SlotRoom]) -> int:
        """Return the number of attempts that can run at the same time, in slots that fit their tasks."""
        return sum(room.slots for room in rooms)

    def not_offered(self, needs: Resources, rooms: Sequence[SlotRoom] = ()) -> str:
        """Return the beginning of a sentence: that no workers offer the slots for an attempt."""
        return needs.not_offered
