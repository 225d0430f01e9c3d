"""Checks that others leave devices free before a trial, and that the trial does so after it."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from mqtune.core.resources import in_gb
from mqtune.core.timing import Timing
from mqtune.worker import ImpairmentCause, Impairments
from mqtune.worker.ports import SlotHere, WorkerService

#: A growth of a device's memory in use that is ignored: displays and monitoring vary by some ten MiB. The smallest
#: remains of a trial, a CUDA context, take at least 300 MiB.
TOLERANCE_BYTES: Final = 256 << 20
#: How much of a device's memory others may use when a trial begins: the larger of this share and this number of bytes.
#: Displays and desktops take less.
OTHERS_SHARE: Final = 0.1
OTHERS_BYTES: Final = 2_000_000_000
#: The memory of a device that a process may keep between trials. A CUDA context takes 0.3 to 0.6 GB and the handles of
#: CUDA's libraries up to 1 GB; the rest is for a function's globals.
KEPT_BYTES: Final = 2 << 30
#: The kind of its impairments.
_KIND: Final = "memory"


class DeviceQuery(Protocol):
    """Reports how much memory of devices is in use."""

    def used(self, devices: Sequence[str]) -> dict[str, int]:
        """Return the bytes in use on each device, by any process.

        Devices whose use is unknown are left out.

        Any thread may call it. It answers within seconds and never raises.
        """

    def close(self) -> None:
        """End; later questions get no answer."""


class DeviceMemory(WorkerService):
    """Quarantines devices with too much memory in use.

    **The rule.** The memory in use on a device is recorded when a trial begins on it and no other slot has a process
    there. If others use too much of it then, no trial begins. After the last trial there has ended, the memory in use
    must return to that baseline, within a tolerance and a time. While another slot that shares the device has a process
    there, nothing is compared; a process that is kept for further trials counts as one. Devices whose use is unknown
    count as empty.

    Any thread may call it.

    Args:
        query: reports how much memory is in use.
        impairments: takes the devices that are too full.
        devices: the worker's devices.
        total_bytes: the memory of each device; 0 if that is unknown.
    """

    def __init__(
        self,
        query: DeviceQuery,
        impairments: Impairments,
        devices: Collection[str],
        total_bytes: int = 0,
        timing: Timing = Timing(),
    ) -> None:
        self._timing = timing
        self._query = query
        self._impairments = impairments
        self._devices = devices
        self._others_bytes = max(OTHERS_BYTES, round(total_bytes * OTHERS_SHARE))
        self._lock = threading.Lock()
        #: Held while a baseline is recorded, so that no other slot's trial starts on the device meanwhile.
        self._entering = threading.Lock()
        self._closing = threading.Event()
        #: The slots that have a process on each device.
        self._here: defaultdict[str, set[int]] = defaultdict(set)
        #: The baseline that each device must return to, until it has.
        self._before: dict[str, int] = {}

    def start(self) -> None:
        """Quarantine devices of which others have too much memory in use."""
        self._refuse(self._query.used(sorted(self._devices)))

    def _refuse(self, used: Mapping[str, int]) -> bool:
        """Quarantine devices that others have filled; return whether there are any."""
        full = {device: size for device, size in used.items() if size > self._others_bytes}
        for device, size in full.items():
            cause = ImpairmentCause(
                f"others have {in_gb(size)} of its memory in use",
                "its memory is free",
                is_over=partial(self._is_within, device, self._others_bytes),
            )
            text = (
                f"{in_gb(size)} of its memory is in use by others. No trial starts there until it is free; nvidia-smi "
                "shows who has it"
            )
            self._impairments.put([device], _KIND, cause, says=text)
        return bool(full)

    def _is_within(self, device: str, most: int) -> bool:
        return self._query.used([device]).get(device, math.inf) <= most

    def admit(self, slot: SlotHere) -> bool:
        """Return whether a slot's devices are free enough for a trial.

        If so, record their baselines.
        """
        with self._entering:
            with self._lock:
                if any(self._impairments.cause_of(device, _KIND) for device in slot.places):
                    return False
                new = [d for d in slot.places if d not in self._before and not self._here[d] - {slot.index}]
                for device in slot.places:
                    self._here[device].add(slot.index)
            if new:
                used = self._query.used(new)
                if self._refuse(used):
                    self.emptied(slot, waits=False)
                    return False
                with self._lock:
                    self._before.update(used)
        return True

    def retires(self, slot: SlotHere) -> str:
        """Return in words the memory that a slot's kept process holds, if it is too much, or "".

        Devices on which another slot has a process are left out.
        """
        with self._lock:
            before = {d: self._before[d] for d in slot.places if d in self._before and self._here[d] == {slot.index}}
        used = self._query.used(list(before)) if before else {}
        left = {device: used[device] - before[device] for device in used}
        text = ", ".join(f"{in_gb(size)} on device {device}" for device, size in left.items() if size > KEPT_BYTES)
        return f"it has left {text}" if text else ""

    def emptied(self, slot: SlotHere, *, waits: bool) -> None:
        """Note that a slot has no process any more.

        If *waits*, return when its devices' memory is free, or they are quarantined. That takes about ``gpu_return_s``
        at most, and no time when the worker is shutting down.
        """
        with self._lock:
            for device in slot.places:
                self._here[device].discard(slot.index)
        deadline = time.monotonic() + self._timing.gpu_return_s
        while waits and (too_full := self._too_full(slot.places)):
            if time.monotonic() >= deadline:
                self._quarantine(too_full)
                return
            self._closing.wait(self._timing.gpu_poll_s)

    def _too_full(self, devices: Sequence[str]) -> dict[str, int]:
        """Return the bytes in use on devices above their baseline. Forget the others' baselines."""
        with self._lock:
            watched = [device for device in devices if device in self._before and not self._here[device]]
        if not watched or self._closing.is_set():
            return {}
        used = self._query.used(watched)
        too_full = {}
        with self._lock:
            for device in watched:
                # Another slot's trial may have started meanwhile.
                if device not in self._before or self._here[device]:
                    continue
                if used.get(device, 0) > self._before[device] + TOLERANCE_BYTES:
                    too_full[device] = used[device]
                else:
                    del self._before[device]
        return too_full

    def _quarantine(self, too_full: dict[str, int]) -> None:
        # In the lock, so that no other slot's trial starts there in between.
        with self._lock:
            for device, used in too_full.items():
                if self._here[device] or self._closing.is_set():
                    continue
                before = self._before[device]
                cause = ImpairmentCause(
                    f"{in_gb(used - before)} of its memory did not come back",
                    "its memory is back",
                    is_over=partial(self._is_back, device),
                )
                text = (
                    f"{in_gb(used)} of its memory is in use {self._timing.gpu_return_s:.0f} s after the last trial's "
                    f"processes ended, and {in_gb(before)} was before it began. No trial starts there until it is "
                    "free; nvidia-smi shows which process has it"
                )
                self._impairments.put([device], _KIND, cause, says=text)

    def _is_back(self, device: str) -> bool:
        if not self._is_within(device, self._before[device] + TOLERANCE_BYTES):
            return False
        with self._lock:
            del self._before[device]
        return True

    def drain(self) -> None:
        """Stop waiting for memory, and end the query: no trial will start that needs a device."""
        self._closing.set()
        self._query.close()
