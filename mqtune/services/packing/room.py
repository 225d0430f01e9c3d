"""Divides the memory of GPUs among the attempts that share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

from mqtune.core.resources import BYTES_PER_GB
from mqtune.core.worker_info import WorkerInfo
from mqtune.worker import SlotPlan, Step
from mqtune.worker.ports import AttemptHere, SlotHere, WorkerService, WorkerState

_OTHER_HAS_IT: Final = "another worker has the memory for it"


class SharedMemory(WorkerService):
    """Gives each attempt its share of a GPU's memory.

    An attempt that waits for memory returns to its queue once another worker has enough.

    Args:
        plan: the worker's slots.
        state: returns the worker's state.
        others: returns the other workers that take tasks from its queue.
    """

    def __init__(
        self, plan: SlotPlan, state: Callable[[], WorkerState], others: Callable[[], Iterable[WorkerInfo]]
    ) -> None:
        self._plan = plan
        self._state = state
        self._others = others
        #: The memory of each GPU that no attempt has. A worker calls ``room``, ``taken`` and ``left`` in one lock.
        self._room = dict.fromkeys(chain.from_iterable(plan.devices), plan.device_bytes)
        #: The most memory that another worker has for an attempt that waits here.
        self._room_elsewhere = 0.0

    def _share(self, run: AttemptHere) -> int:
        """Return the bytes of an attempt: all of a GPU's where it does not say how many it needs."""
        return min(run.shared_bytes or self._plan.device_bytes, self._plan.device_bytes)

    def room(self, slot: SlotHere, run: AttemptHere) -> float:
        """Return the bytes of a slot's GPU that are left beside an attempt."""
        return self._room[slot.places[0]] - self._share(run)

    def taken(self, slot: SlotHere, run: AttemptHere) -> None:
        """Give an attempt its share of the slot's GPU."""
        self._room[slot.places[0]] -= self._share(run)

    def left(self, slot: SlotHere, run: AttemptHere) -> None:
        """Take the share back: the attempt's processes are gone."""
        self._room[slot.places[0]] += self._share(run)

    def retires(self, slot: SlotHere) -> str:
        """Return why processes are not kept for further trials."""
        return "its GPU is shared by memory, which comes back when a process ends"

    def heartbeat(self) -> Sequence[Step]:
        """Return the step that checks whether another worker has memory for a waiting attempt."""
        return (self._check_elsewhere,)

    def _check_elsewhere(self) -> None:
        state = self._state()
        others = self._others() if state.waiting and state.free else ()
        self._room_elsewhere = BYTES_PER_GB * max((other.free_gpu_memory_gb for other in others), default=0.0)

    def leaves(self, run: AttemptHere) -> str:
        """Send a waiting attempt back to its queue once another worker has the memory for it."""
        return _OTHER_HAS_IT if 0 < run.shared_bytes <= self._room_elsewhere else ""

    def describe(self) -> dict[str, float]:
        """Return the most memory that a GPU has for another attempt."""
        free = (self._room[self._plan.devices[slot][0]] for slot in self._state().free)
        return {"free_gpu_memory_gb": round(max(free, default=0) / BYTES_PER_GB, 1)}
