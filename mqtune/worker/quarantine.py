"""The quarantine: devices on which no trial starts, each with the reasons, until a look or a probe shows that they are sound."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from mqtune.worker.threads import Step

logger = logging.getLogger(__name__)

#: The kind of hold that a person puts and lifts.
_BY_HAND: Final = "by hand"
#: The device of slots without one: quarantined, it closes all slots of the worker.
WHOLE_WORKER: Final = ""


def _never() -> bool:
    return False


@dataclass(slots=True, eq=False)
class Hold:
    """One reason why devices are quarantined, and how that ends: by a look, or by a probe, an attempt that does well there.

    Attributes:
        text: the reason for people, as the rest of "device 0 is quarantined, …".
        over: what it is when it ends, as the rest of "device 0 is in use again: …".
        is_over: looks whether the reason is gone; it may take seconds. Only one thread calls it.
        probe_slot: the slot that may run a probe; None where no attempt would tell anything.
        probe_at: from when on, by ``time.monotonic``.
        is_open: whether that time has come.
        is_probed: whether a probe is under way.
    """

    text: str
    over: str
    is_over: Callable[[], bool] = _never
    probe_slot: int | None = None
    probe_at: float = 0.0
    is_open: bool = False
    is_probed: bool = False


class Quarantine:
    """The quarantined devices of a worker. Any thread may call anything here.

    Args:
        on_change: called when a device enters or leaves it, or its probe may start, by the thread that notices.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._is_closed = False
        #: By device and kind of reason. Replaced, never changed: other threads read it without the lock.
        self._holds: dict[tuple[str, str], Hold] = {}

    @property
    def devices(self) -> Collection[str]:
        """The quarantined devices."""
        return {device for device, _ in self._holds}

    @property
    def note(self) -> str:
        """A text about the quarantined devices for people, or empty; the same text while nothing changes."""
        found = sorted((device, hold.text) for (device, _), hold in self._holds.items())
        return "; ".join(f"{_named(device)} is quarantined, {text}" for device, text in found)

    def hold_of(self, device: str, kind: str) -> Hold | None:
        """Return the hold of this kind on a device."""
        return self._holds.get((device, kind))

    def closes(self, slot: int, devices: Sequence[str]) -> bool:
        """Whether a slot with these devices takes no attempt; one whose probe is due, or under way, does."""
        return any(not hold.is_open or hold.probe_slot != slot for hold in self._on(devices))

    def enter(self, slot: int, devices: Sequence[str]) -> bool:
        """Return whether an attempt may start in a slot; on a quarantined device it is the probe, and the only one."""
        with self._lock:
            holds = self._on(devices)
            if any(not hold.is_open or hold.probe_slot != slot or hold.is_probed for hold in holds):
                return False
            for hold in holds:
                hold.is_probed = True
            return True

    def leave(self, slot: int, devices: Sequence[str]) -> None:
        """Let another attempt be the probe, after one in this slot that has not shown anything."""
        with self._lock:
            for hold in self._on(devices):
                if hold.probe_slot == slot:
                    hold.is_probed = False

    def _on(self, devices: Sequence[str]) -> list[Hold]:
        holds = self._holds
        return [hold for (device, _), hold in holds.items() if device in devices] if holds else []

    def put(self, devices: Sequence[str], kind: str, hold: Hold, *, says: str = "") -> None:
        """Quarantine devices, or give them another hold of this kind; *says* is for the log, in place of the hold's text."""
        if self._is_closed:
            return
        with self._lock:
            self._holds = {**self._holds, **{(device, kind): hold for device in devices}}
        for device in devices:
            logger.error("%s is quarantined: %s", _named(device), says or hold.text)
        self._on_change()

    def disable(self, devices: Mapping[str, str]) -> None:
        """Hold just these devices by a person's wish, each with who that is, until the person enables them."""
        held = {device: hold for (device, kind), hold in self._holds.items() if kind == _BY_HAND}
        for device, by in devices.items():
            if device not in held:
                self.put([device], _BY_HAND, Hold(f"disabled by {by}", "it is enabled"))
        for device, hold in held.items():
            if device not in devices:
                self.lift(hold)

    def lift(self, hold: Hold) -> None:
        """End a hold on all its devices."""
        with self._lock:
            lifted = [device for (device, _), each in self._holds.items() if each is hold]
            self._holds = {key: each for key, each in self._holds.items() if each is not hold}
        for device in lifted:
            logger.warning("%s is in use again: %s", _named(device), hold.over)
        if lifted:
            self._on_change()

    def looks(self) -> Iterator[Step]:
        """Yield a look at each hold, which ends it or lets its probe start; one thread takes them, from time to time."""
        for hold in {id(hold): hold for hold in self._holds.values()}.values():
            if not self._is_closed:
                yield partial(self._look, hold)

    def _look(self, hold: Hold) -> None:
        if hold.is_over():
            self.lift(hold)
        elif hold.probe_slot is not None and not hold.is_open and time.monotonic() >= hold.probe_at:
            hold.is_open = True
            self._on_change()

    def close(self) -> None:
        """Look no more, and quarantine nothing more: no trial will start."""
        self._is_closed = True


def _named(device: str) -> str:
    return "the worker" if device == WHOLE_WORKER else f"device {device}"
