"""Placement of attempts: each has one task and takes one slot. Services may define others."""

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
    """Slots that fit an attempt, by groups of workers. At most ``most`` of them may be taken."""

    groups: Sequence[EqualWorkers]
    most: int

    @property
    def slots(self) -> int:
        """The number of slots that may be taken."""
        return min(self.most, sum(group.slots * group.workers for group in self.groups))


class Placement:
    """Gives each attempt one task and one slot."""

    def tasks(self, trial: TrialId, needs: Resources) -> Sequence[TrialId]:
        """Return the names of an attempt's tasks. The first one is the trial's id."""
        return (trial,)

    def trial_of(self, task: str) -> TrialId | None:
        """Return the trial that a task belongs to. None if the task's name is malformed."""
        return TrialId(task) if is_name(task) else None

    def slots_each(self, needs: Resources) -> int:
        """Return the number of slots that an attempt takes."""
        return 1

    def is_apart(self, needs: Resources) -> bool:
        """Whether each task of an attempt needs a different worker."""
        return False

    def count(self, needs: Resources, rooms: Sequence[SlotRoom]) -> int:
        """Return how many attempts can run at the same time in *rooms*, the slots that fit."""
        return sum(room.slots for room in rooms)

    def not_offered(self, needs: Resources, rooms: Sequence[SlotRoom] = ()) -> str:
        """Return the words "no worker offers …" for an attempt, to begin a sentence for people.

        *rooms* are the slots that fit one of its tasks.
        """
        return needs.not_offered
