"""Why a staged gang waits: its missing seats, and the holders of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mqtune.core.tasks import is_task, task_in

if TYPE_CHECKING:
    from mqtune.core.resources import Resources
    from mqtune.core.trial import TrialId
    from mqtune.core.worker_info import WorkerInfo
    from mqtune.journal import Unclaimed

#: The token under which the slots of held seats count as busy.
_HELD: Final = "held"
#: The most seats that are named.
_SHOWN: Final = 4


class HeldSeats:
    """The seats of a staged attempt that workers hold.

    Args:
        trial: the attempt's trial.
        unclaimed: the attempts and seats that workers have received and not started.
        asked: the resources that the attempt may ask for.
    """

    def __init__(self, trial: TrialId, unclaimed: Iterable[Unclaimed], asked: Sequence[Resources]) -> None:
        self._asked = asked
        named = (seat for seat in unclaimed if is_task(seat.trial))
        own = {number: seat for seat in named for of, number in [task_in(seat.trial)] if of == trial}
        self._held = own
        self._seats = max((resources.seats for resources in asked), default=1)

    @property
    def holders(self) -> list[Unclaimed]:
        """The held seats, each with its worker."""
        return [*self._held.values()]

    @property
    def lacks_some(self) -> bool:
        """Whether workers hold some seats, but not all."""
        return 0 < len(self._held) < self._seats

    @property
    def in_words(self) -> str:
        """The missing seats, and the holders of the others."""
        missing = [str(number) for number in range(self._seats) if number not in self._held]
        having = [f"seat {number} is held by {self._held[number].worker}" for number in sorted(self._held)]
        return f"for seat{'s' * (len(missing) > 1)} {_first(missing)} of {self._seats}: {_first(having)}"

    @property
    def missing(self) -> list[Resources]:
        """The resources of the missing seats."""
        return [
            replace(resources, machines=left if resources.machines > 1 else 1, seats=left)
            for resources in self._asked
            if (left := resources.seats - len(self._held)) > 0
        ]

    def others(self, workers: Iterable[WorkerInfo]) -> list[WorkerInfo]:
        """Return the workers that may take the missing seats. Held seats count as busy slots."""
        holders = Counter(seat.worker for seat in self._held.values())
        are_apart = any(resources.machines > 1 for resources in self._asked)
        return [
            replace(info, busy={**info.busy, _HELD: holders[info.name]}) if info.name in holders else info
            for info in workers
            if not (are_apart and info.name in holders)
        ]


def _first(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
