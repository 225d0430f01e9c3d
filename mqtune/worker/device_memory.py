"""Whether devices have given back the memory of the trials that ran on them; one that has not takes no more trials."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

__all__ = ["DeviceMemory", "DeviceQuery"]

logger = logging.getLogger(__name__)

#: What a device may have in use beyond what it had before: displays and monitoring move by some ten MiB, while the smallest
#: thing that a trial can leave behind, a CUDA context, has 300 MiB and more.
TOLERANCE_BYTES: Final = 256 << 20
#: How long the driver may take to free a dead process's memory: milliseconds as a rule, many seconds for a whole large GPU.
RETURN_S: Final = 30.0
#: How often it is looked at meanwhile: a question costs a millisecond, and a trial of a GPU is not started every second.
POLL_S: Final = 0.1
#: How often quarantined devices are looked at: somebody has to kill a process, or reset the device.
LOOK_S: Final = 15.0
_BYTES_PER_GB: Final = 1e9


class DeviceQuery(Protocol):
    """Says how full devices are."""

    def used(self, devices: Sequence[str]) -> dict[str, int]:
        """Return the bytes in use on each device, by whomever; devices that can't say are left out.

        Any thread may call it; it answers within seconds, and doesn't raise.
        """

    def close(self) -> None:
        """End; nothing is answered any more."""


class DeviceMemory:
    """What the devices of a worker had in use before its trials began, and those that are too full since: the quarantined.

    **The rule.** What a device has in use is noted when a trial begins on it and no other slot has a process there; when
    the last of its trials has ended, it must come back to that, within a tolerance and a time. While slots that share it
    still have processes there, nothing is compared, because what they use moves. A process that stays for further trials is
    one of these, until it is gone. Devices that can't say how full they are count as empty.

    Any thread may call anything here.

    Args:
        query: says how full devices are.
        on_change: called when a device is quarantined or no more, by the thread that noticed.
    """

    def __init__(self, query: DeviceQuery, on_change: Callable[[], None]) -> None:
        self._query = query
        self._on_change = on_change
        self._lock = threading.Lock()
        #: So that what a device has before is not asked while another slot's trial starts there.
        self._entering = threading.Lock()
        self._closing = threading.Event()
        #: The slots that have a process on each device.
        self._here: defaultdict[str, set[int]] = defaultdict(set)
        #: What each device must come back to, until it has.
        self._before: dict[str, int] = {}
        self._quarantined: dict[str, int] = {}
        self._looker: threading.Thread | None = None

    @property
    def quarantined(self) -> Collection[str]:
        """The devices that stay too full; no trial may start there."""
        return self._quarantined.keys()

    @property
    def note(self) -> str:
        """What a person should know of them, or nothing; the same text while nothing changes."""
        full = sorted(self._quarantined.items())
        return "; ".join(
            f"device {device} is quarantined, {_gb(used)} of its memory did not come back" for device, used in full
        )

    def enter(self, slot: int, devices: Sequence[str]) -> bool:
        """Note that a slot's trial is about to start on its devices; False, and it must not, when one is quarantined."""
        with self._entering:
            with self._lock:
                if any(device in self._quarantined for device in devices):
                    return False
                new = [d for d in devices if d not in self._before and not self._here[d] - {slot}]
                for device in devices:
                    self._here[device].add(slot)
            if new:
                used = self._query.used(new)
                with self._lock:
                    self._before.update(used)
        return True

    def leave(self, slot: int, devices: Sequence[str]) -> None:
        """Note that nothing of a slot's trials is left, without a look at what it left behind."""
        with self._lock:
            for device in devices:
                self._here[device].discard(slot)

    def settle(self, slot: int, devices: Sequence[str]) -> None:
        """Note that a slot's process group is gone; return when its devices' memory is back, or they are quarantined.

        It returns within some ``RETURN_S``, and at once when the worker is closing.
        """
        self.leave(slot, devices)
        deadline = time.monotonic() + RETURN_S
        while too_full := self._too_full(devices):
            if time.monotonic() >= deadline:
                self._quarantine(too_full)
                return
            self._closing.wait(POLL_S)

    def _too_full(self, devices: Sequence[str]) -> dict[str, int]:
        """Return what those of some devices have in use that have not come back, and forget what the others had before."""
        with self._lock:
            watched = [device for device in devices if device in self._before and not self._here[device]]
        if not watched or self._closing.is_set():
            return {}
        used = self._query.used(watched)
        too_full = {}
        with self._lock:
            for device in watched:
                # Another slot's trial may have come while the question was under way.
                if device not in self._before or self._here[device]:
                    continue
                if used.get(device, 0) > self._before[device] + TOLERANCE_BYTES:
                    too_full[device] = used[device]
                else:
                    del self._before[device]
        return too_full

    def _quarantine(self, too_full: dict[str, int]) -> None:
        with self._lock:
            full = {device: used for device, used in too_full.items() if not self._here[device]}
            if not full or self._closing.is_set():
                return
            for device, used in full.items():
                logger.error(
                    "device %s is quarantined: %s of its memory in use %.0f s after the last trial's processes are gone, and "
                    "%s before it began. No trial starts there until it is back; nvidia-smi shows who has it",
                    device,
                    _gb(used),
                    RETURN_S,
                    _gb(self._before[device]),
                )
            # Replaced, never changed: other threads read it without the lock.
            self._quarantined = {**self._quarantined, **{d: used - self._before[d] for d, used in full.items()}}
            if self._looker is None:
                self._looker = threading.Thread(target=self._look, name="mqtune-devices", daemon=True)
                self._looker.start()
        self._on_change()

    def _look(self) -> None:
        """Look at the quarantined devices now and then, until there are none."""
        while not self._closing.wait(LOOK_S):
            used = self._query.used(list(self._quarantined))
            with self._lock:
                kept = {
                    device: beyond
                    for device, beyond in self._quarantined.items()
                    if used.get(device, float("inf")) > self._before[device] + TOLERANCE_BYTES
                }
                back = self._quarantined.keys() - kept
                self._quarantined = kept
                for device in back:
                    del self._before[device]
                if not kept:
                    self._looker = None
            if back:
                logger.warning("device %s is in use again: its memory is back", ", ".join(sorted(back)))
                self._on_change()
            if not kept:
                return

    def close(self) -> None:
        """Wait for nothing more, and end the query."""
        self._closing.set()
        self._query.close()


def _gb(size: int) -> str:
    return f"{size / _BYTES_PER_GB:.1f} GB"
