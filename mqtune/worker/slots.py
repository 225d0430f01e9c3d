"""A worker's slots: each holds its devices and the zygote of the trainable that it ran last."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from pathlib import Path

from mqtune.worker.device_memory import DeviceMemory
from mqtune.worker.devices import SlotPlan
from mqtune.worker.zygotes import ZygoteHandle, ZygoteKey

__all__ = ["Slot", "Slots", "Turn"]


class Turn:
    """One attempt's time in a slot; it begins when the turn before it is over.

    Args:
        slot: whose turn it is.
        before: set when the turn before it is over.
    """

    def __init__(self, slot: Slot, before: threading.Event) -> None:
        self._slot = slot
        self._before = before
        self.over = threading.Event()
        self._settles = False

    def wait(self) -> None:
        """Wait until nothing is left of the trial before."""
        self._before.wait()

    def take(self, *, stays: bool) -> bool:
        """Have the slot's devices for a trial; False, and no trial may start, when one of them is quarantined.

        Where there are devices it waits until nothing is left of the trial before, its memory included.

        Args:
            stays: whether the trial's process may stay for another; what it has in use is then not waited for.
        """
        slot = self._slot
        if slot.memory is None:
            return True
        self._before.wait()
        taken = slot.memory.enter(slot.index, slot.devices)
        self._settles = taken and not stays
        return taken

    def end(self) -> None:
        """Say that no process of this turn's trial is left; returns when its devices' memory is back, or they are quarantined.

        A turn that was never used ends when it would have begun.
        """
        self._before.wait()
        try:
            if self._settles and self._slot.memory is not None:
                self._settles = False
                self._slot.memory.settle(self._slot.index, self._slot.devices)
        finally:
            self.over.set()


class Slot:
    """One place where one trial runs; the next attempt may prepare while the last one's process is taken down."""

    def __init__(self, index: int, plan: SlotPlan, log_root: Path, memory: DeviceMemory | None = None) -> None:
        self.index = index
        self.devices = plan.devices[index]
        self.memory = memory
        self._last_over = threading.Event()
        self._last_over.set()
        self._environment = plan.environment(index)
        #: What its zygotes print.
        self.log = log_root / ".zygotes" / f"slot-{index}.log"
        self._zygote: ZygoteHandle | None = None
        self._used_at = time.monotonic()

    @property
    def is_vacant(self) -> bool:
        """Whether nothing of a trial is here."""
        return self._last_over.is_set()

    @property
    def is_quarantined(self) -> bool:
        """Whether a device of it is too full for a trial."""
        return self.memory is not None and any(device in self.memory.quarantined for device in self.devices)

    def next_turn(self) -> Turn:
        """Return the turn after the last one; only who has acquired the slot may ask."""
        turn = Turn(self, self._last_over)
        self._last_over = turn.over
        return turn

    def zygote(self, key: ZygoteKey, turn: Turn) -> ZygoteHandle:
        """Return a zygote for this trainable and the code as it is now: the last one, or a new one once it is *turn*."""
        self.note_use()
        if self._zygote is None or self._zygote.key != key or not self._zygote.is_current():
            turn.wait()
            self.close_zygote()
            self._zygote = ZygoteHandle(key, self._environment, self.log)
        return self._zygote

    def note_use(self) -> None:
        """Note that a trial begins or ends here."""
        self._used_at = time.monotonic()

    def idle_s(self) -> float:
        """Return for how long no trial has run here, if a zygote is waiting for one; else 0."""
        return 0.0 if self._zygote is None else time.monotonic() - self._used_at

    def kill(self) -> None:
        """Kill whatever runs here, with its zygote; any thread may call it."""
        if self._zygote is not None:
            self._zygote.end()

    def close_zygote(self) -> None:
        """End the zygote; the slot must be vacant."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
            if self.memory is not None:
                # With it went a process that had stayed.
                self.memory.leave(self.index, self.devices)


class Slots:
    """The slots that are free or about to be; those used last are given out first, because their zygotes are warm.

    Those with a quarantined device are set aside until ``review`` finds it in use again.

    Args:
        plan: the slots.
        log_root: the folder for their zygotes' output.
        memory: watches their devices; None where there are none.
    """

    def __init__(self, plan: SlotPlan, log_root: Path, memory: DeviceMemory | None = None) -> None:
        self.all = [Slot(index, plan, log_root, memory) for index in range(len(plan.devices))]
        #: How many of them have no quarantined device.
        self.usable = len(self.all)
        self._offered: queue.LifoQueue[Slot] = queue.LifoQueue()
        self._aside: list[Slot] = []
        self._reviewing = threading.Lock()
        for slot in reversed(self.all):
            self._offered.put(slot)

    def acquire(self, timeout_s: float) -> Slot | None:
        """Return a slot, waiting for one; None after *timeout_s* seconds. Its zygote may be used when it is one's turn."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                slot = self._offered.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if not slot.is_quarantined:
                return slot
            with self._reviewing:
                if slot.is_quarantined:
                    self._aside.append(slot)
                    continue
            # It came back in this moment.
            return slot

    def offer(self, slot: Slot) -> None:
        """Let the next attempt have a slot whose trial has ended, or whose process is about to."""
        slot.note_use()
        self._offered.put(slot)

    def review(self) -> None:
        """Count the slots that can be used; to be called when a device is quarantined, or no more."""
        with self._reviewing:
            self.usable = sum(not slot.is_quarantined for slot in self.all)
            aside, self._aside = self._aside, []
        for slot in aside:
            # If it is still quarantined, whoever gets it puts it aside again.
            self._offered.put(slot)

    def close_idle(self, after_s: float) -> None:
        """End the zygotes of free slots that have waited longer than *after_s* seconds."""
        waiting = []
        with contextlib.suppress(queue.Empty):
            while True:
                slot = self._offered.get_nowait()
                waiting.append(slot)
                if slot.is_vacant and slot.idle_s() > after_s:
                    slot.close_zygote()
        for slot in reversed(waiting):
            self._offered.put(slot)
