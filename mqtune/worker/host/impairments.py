"""Impairments: why a worker or its devices are out of use, and when they are used again."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from mqtune.core.impairment import WHOLE_WORKER, WITHOUT, Impairment
from mqtune.worker.host.threads import Step

logger = logging.getLogger(__name__)

#: Kinds that close no slot. A back-off limits the number of attempts, and the others stop no trials.
_CLOSE_NONE: Final = frozenset({"starts", *WITHOUT})


def _never() -> bool:
    return False


@dataclass(slots=True, eq=False)
class ImpairmentCause:
    """The cause of an impairment. A check, a successful probe attempt, or its creator ends it.

    Attributes:
        text: the cause in words; see ``Impairment``.
        ends: the condition of its end, in words.
        is_over: checks whether it is over. It may take seconds. Called in one thread only.
        probe_slot: the number of the slot that may run a probe; None for no probe, as an attempt would show nothing.
        pause_s: seconds until a probe; infinite for no probe.
        is_open: whether the probe may start, because that time has passed.
        is_probed: whether a probe is running.
        since: when it began, by the server's clock.
        retry_at: when a probe may start, by the server's clock; 0 for no probe.
        due_at: the same by ``time.monotonic``.
    """

    text: str
    ends: str
    is_over: Callable[[], bool] = _never
    probe_slot: int | None = None
    pause_s: float = math.inf
    is_open: bool = False
    is_probed: bool = False
    since: float = 0.0
    retry_at: float = 0.0
    due_at: float = math.inf


class Impairments:
    """The current causes that keep a worker or its devices out of use. Thread-safe.

    Args:
        on_change: called when a cause begins or ends, or a probe may start, in the thread that notices it.
        worker: name of the worker, for the command that enables a device.
    """

    def __init__(
        self,
        on_change: Callable[[], None],
        *,
        worker: str = "",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._on_change = on_change
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        self._is_closed = False
        #: By device and kind. Replaced, never changed: other threads read it without the lock.
        self._causes: dict[tuple[str, str], ImpairmentCause] = {}

    @property
    def all(self) -> list[Impairment]:
        """All causes for publication, sorted. Two lists are equal if nothing has changed."""
        return sorted(
            Impairment(device, kind, cause.text, cause.ends, cause.since, cause.retry_at)
            for (device, kind), cause in self._causes.items()
        )

    def cause_of(self, device: str, kind: str) -> ImpairmentCause | None:
        """Return the cause of this kind on a device; None without one."""
        return self._causes.get((device, kind))

    def closes(self, slot: int, devices: Sequence[str]) -> bool:
        """Whether a slot accepts no attempt. It accepts one if its probe is due or running."""
        return any(not cause.is_open or cause.probe_slot != slot for cause in self._on(devices))

    def enter(self, slot: int, devices: Sequence[str]) -> bool:
        """Return whether an attempt may start in a slot now.

        If the slot's devices are quarantined and a probe is due, the attempt counts as the probe, and no other may
        start.
        """
        with self._lock:
            causes = self._on(devices)
            if any(not cause.is_open or cause.probe_slot != slot or cause.is_probed for cause in causes):
                return False
            for cause in causes:
                cause.is_probed = True
            return True

    def leave(self, slot: int, devices: Sequence[str]) -> None:
        """Allow another probe of quarantined devices: the attempt in this slot is over."""
        with self._lock:
            for cause in self._on(devices):
                if cause.probe_slot == slot:
                    cause.is_probed = False

    def _on(self, devices: Sequence[str]) -> list[ImpairmentCause]:
        causes = self._causes
        return [c for (device, kind), c in causes.items() if device in devices and kind not in _CLOSE_NONE]

    def put(self, devices: Sequence[str], kind: str, cause: ImpairmentCause, *, says: str = "") -> None:
        """Add a new cause to devices. It replaces an earlier one of the same kind there.

        For the whole worker, *devices* is ``[WHOLE_WORKER]``. A service chooses the kind of its causes, and no other
        part uses that kind. The beginning and the retry time of the cause are set here. *says* replaces its text in the
        log.
        """
        if self._is_closed:
            return
        now = self._clock()
        with self._lock:
            before = [known.since for device in devices if (known := self._causes.get((device, kind))) is not None]
            cause.since, cause.due_at = min([*before, now]), self._monotonic() + cause.pause_s
            cause.retry_at = now + cause.pause_s if math.isfinite(cause.pause_s) else 0.0
            self._causes = {**self._causes, **{(device, kind): cause for device in devices}}
        for device in devices:
            logger.error("%s", Impairment(device, kind, says or cause.text, cause.ends, cause.since).reason)
        self._on_change()

    def disable(self, devices: Mapping[str, str]) -> None:
        """Disable exactly these devices: others that users had disabled are enabled again.

        *devices* has by device the user who disabled it.
        """
        disabled = {device: cause for (device, kind), cause in self._causes.items() if kind == "by_hand"}
        for device, by in devices.items():
            if device not in disabled:
                ends = f"it is enabled: mqtune fleet undrain {self._worker}:{device}"
                self.put([device], "by_hand", ImpairmentCause(f"disabled by {by}", ends))
        for device, cause in disabled.items():
            if device not in devices:
                self.lift(cause, "it is enabled")

    def lift(self, cause: ImpairmentCause, why: str = "") -> None:
        """End a cause on all its devices. *why* replaces its expected end in the log."""
        with self._lock:
            lifted = [device for (device, _), known in self._causes.items() if known is cause]
            self._causes = {key: known for key, known in self._causes.items() if known is not cause}
        for device in lifted:
            named = "the worker is all right" if device == WHOLE_WORKER else f"device {device} is in use"
            logger.warning("%s again: %s", named, why or cause.ends)
        if lifted:
            self._on_change()

    def checks(self) -> Iterator[Step]:
        """Yield one step for each cause: it checks the cause, and ends it or lets its probe start.

        One thread runs the steps, in each round.
        """
        for cause in {id(cause): cause for cause in self._causes.values()}.values():
            if not self._is_closed:
                yield partial(self._check, cause)

    def _check(self, cause: ImpairmentCause) -> None:
        if cause.is_over():
            self.lift(cause)
        elif cause.probe_slot is not None and not cause.is_open and self.is_due(cause):
            cause.is_open = True
            self._on_change()

    def is_due(self, cause: ImpairmentCause) -> bool:
        """Whether it is time for a probe."""
        return self._monotonic() >= cause.due_at

    def close(self) -> None:
        """Stop checking, and accept no further cause. No trial will start."""
        self._is_closed = True
