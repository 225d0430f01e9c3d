"""A worker's slots: each holds its devices and the zygote of the trainable that it ran last."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from pathlib import Path

from mqtune.worker.devices import SlotPlan
from mqtune.worker.zygotes import ZygoteHandle, ZygoteKey

__all__ = ["Slot", "Slots", "Turn"]


class Turn:
    """One attempt's time in a slot; it begins when the turn before it is over."""

    def __init__(self, before: threading.Event) -> None:
        self._before = before
        self.over = threading.Event()

    def wait(self) -> None:
        """Wait until nothing is left of the trial before."""
        self._before.wait()

    def end(self) -> None:
        """Say that nothing of this turn's trial is left; a turn that was never used ends when it would have begun."""
        self._before.wait()
        self.over.set()


class Slot:
    """One place where one trial runs; the next attempt may prepare while the last one's process is taken down."""

    def __init__(self, index: int, plan: SlotPlan, log_root: Path) -> None:
        self.index = index
        self.devices = plan.devices[index]
        self._last_over = threading.Event()
        self._last_over.set()
        self._environment = plan.environment(index)
        self._log = log_root / ".zygotes" / f"slot-{index}.log"
        self._zygote: ZygoteHandle | None = None
        self._used_at = time.monotonic()

    @property
    def is_vacant(self) -> bool:
        """Whether nothing of a trial is here."""
        return self._last_over.is_set()

    def next_turn(self) -> Turn:
        """Return the turn after the last one; only who has acquired the slot may ask."""
        turn = Turn(self._last_over)
        self._last_over = turn.over
        return turn

    def zygote(self, key: ZygoteKey, turn: Turn) -> ZygoteHandle:
        """Return a zygote for this trainable and the code as it is now: the last one, or a new one once it is *turn*."""
        self.note_use()
        if self._zygote is None or self._zygote.key != key or not self._zygote.is_current():
            turn.wait()
            self.close_zygote()
            self._zygote = ZygoteHandle(key, self._environment, self._log)
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


class Slots:
    """The slots that are free or about to be; those used last are given out first, because their zygotes are warm."""

    def __init__(self, plan: SlotPlan, log_root: Path) -> None:
        self.all = [Slot(index, plan, log_root) for index in range(len(plan.devices))]
        self._offered: queue.LifoQueue[Slot] = queue.LifoQueue()
        for slot in reversed(self.all):
            self._offered.put(slot)

    def acquire(self, timeout_s: float) -> Slot | None:
        """Return a slot, waiting for one; None after *timeout_s* seconds. Its zygote may be used when it is one's turn."""
        try:
            return self._offered.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def offer(self, slot: Slot) -> None:
        """Let the next attempt have a slot whose trial has ended, or whose process is about to."""
        slot.note_use()
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
