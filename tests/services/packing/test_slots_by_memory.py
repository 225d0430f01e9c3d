"""Attempts share GPUs by memory, in their order and never beyond a GPU's memory."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from fleets import worker as info
from hypothesis import HealthCheck, given, settings, strategies as st
from waiting import eventually

from mqtune.core.worker_info import WorkerInfo
from mqtune.services.packing.room import SharedMemory
from mqtune.worker import ImpairmentCause, Impairments, Slot, Slots, WorkerHooks, plan_slots_by_memory
from mqtune.worker.ports import AttemptHere, WorkerState

GB = 10**9


def asks(gb: float) -> AttemptHere:
    return cast("AttemptHere", SimpleNamespace(shared_bytes=round(gb * GB)))


class Worker:
    """The slots of a worker with GPUs of 10 GB, and attempts that wait in threads."""

    def __init__(self, folder: Path, gpus: int = 1, most: int = 4) -> None:
        self.impairments = Impairments(lambda: None, clock=lambda: 0.0)
        plan = plan_slots_by_memory(tuple(map(str, range(gpus))), most, 10_000, cpus=1)
        self.elsewhere: list[WorkerInfo] = []
        self.memory = SharedMemory(plan, self._state, lambda: self.elsewhere)
        self.slots = Slots(plan, folder, self.impairments, WorkerHooks([self.memory]))
        self.began: list[int] = []
        self.is_leaving = False
        self._threads: list[threading.Thread] = []

    def _state(self) -> WorkerState:
        return WorkerState(
            slots=1, usable=1, busy=0, heartbeat_at=0.0, is_heard=True, free=self.slots.free, waiting=self.slots.waiting
        )

    def take(self, gb: float) -> Slot | None:
        return self.slots.acquire(asks(gb), timeout_s=0)

    def wait(self, number: int, gb: float) -> None:
        """Have an attempt wait in a thread; it has begun to wait, or has begun, when this returns."""

        run = asks(gb)

        def work() -> None:
            if self.slots.acquire(run, unless=lambda: self.is_leaving or bool(self.memory.leaves(run))) is not None:
                self.began.append(number)

        before = self.slots.waiting + len(self.began)
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()
        eventually(lambda: self.slots.waiting + len(self.began) > before)

    def give_back(self, slot: Slot, gb: float) -> None:
        self.slots.offer(slot)
        self.slots.leave(slot, asks(gb))

    def beat(self) -> None:
        """Take the steps of a heartbeat, as the worker does."""
        for step in self.memory.heartbeat():
            step()
        self.slots.wake()

    def leave(self) -> None:
        self.is_leaving = True
        self.slots.wake()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


def test_a_large_attempt_is_not_overtaken_for_ever_by_small_ones(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    small = [worker.take(3) for _ in range(3)]
    worker.wait(1, 6)
    worker.wait(2, 1)

    assert worker.slots.waits_for_room, "its worker takes no further task"
    assert worker.began == [], "one slot and 1 GB are free"
    assert worker.take(1) is None, "nor does one that comes later"
    for slot, left in zip(small, (2, 1), strict=False):
        assert slot is not None
        worker.give_back(slot, 3)
        if left == 1:
            eventually(lambda: worker.began == [1, 2])
    assert not worker.slots.waits_for_room
    worker.leave()


def test_an_attempt_that_waits_returns_to_its_queue_once_another_worker_has_the_memory(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    first = worker.take(6)
    assert worker.memory.describe() == {"free_gpu_memory_gb": 4.0}
    worker.elsewhere = [info(pid=1, free_gpu_memory_gb=5.0)]
    worker.beat()
    assert worker.memory.leaves(asks(5)) == "", "without an attempt that waits here, others are not asked"

    worker.wait(1, 5.1)
    worker.wait(2, 5)
    worker.beat()
    eventually(lambda: worker.slots.waiting == 1)
    assert worker.memory.leaves(asks(5)) == "another worker has the memory for it"
    assert worker.memory.leaves(asks(0)) == "", "nobody knows how much it needs"

    assert first is not None
    worker.give_back(first, 6)
    eventually(lambda: worker.began == [1])
    worker.beat()
    assert worker.memory.leaves(asks(5)) == ""
    worker.leave()


def test_a_gpu_that_is_quarantined_has_no_room_for_anybody(tmp_path: Path) -> None:
    worker = Worker(tmp_path, gpus=2)
    worker.impairments.put(["0", "1"], "memory", ImpairmentCause("others have it", "it is free"))

    assert worker.take(1) is None
    assert worker.memory.describe() == {"free_gpu_memory_gb": 0}
    assert not worker.slots.waits_for_room


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    gpus=st.integers(1, 3),
    most=st.integers(1, 4),
    steps=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), max_size=40),
)
def test_no_gpu_is_overbooked_or_left_idle(tmp_path: Path, gpus: int, most: int, steps: list[tuple[int, int]]) -> None:
    worker = Worker(tmp_path, gpus, most)
    running: list[tuple[Slot, int]] = []

    def promised() -> Counter[str]:
        found: Counter[str] = Counter({str(number): 0 for number in range(gpus)})
        for slot, gb in running:
            found[slot.devices[0]] += min(gb or 10, 10)
        return found

    def has_slot(gpu: str) -> bool:
        return sum(slot.devices == (gpu,) for slot, _ in running) < most

    for gb, ends in steps:
        if ends % 3 == 0 and running:
            worker.give_back(*running.pop(ends % len(running)))
        could = any(10 - used >= min(gb or 10, 10) and has_slot(gpu) for gpu, used in promised().items())
        slot = worker.take(gb)
        assert (slot is not None) == could
        if slot is not None:
            running.append((slot, gb))
        assert max(promised().values()) <= 10
