"""Which trials have failed here a moment ago: they run again on other devices, and if possible on another worker.

A slot whose device is broken fails its trials at once and is free again first: without this, each retry would come back
to it.
"""

from __future__ import annotations

import threading
import time
from typing import Final, NamedTuple

from mqtune.core.clock import Clock
from mqtune.core.events import AttemptEnded
from mqtune.core.trial import UNDRIVEN, AttemptEnd
from mqtune.journal.base import Claim

#: For how long after a failure a trial is left to other workers, if there are any: another one has a free slot by then
#: where trials are short, and where they are long it is little beside them.
ANOTHER_WORKER_S: Final = 10.0
#: For how long it is kept off the devices on which it has failed, if there are others.
ANOTHER_DEVICE_S: Final = 30.0
#: For how long the task of a trial that is left to others stays away from its queue: this worker would take it again at
#: once.
PUT_BACK_S: Final = 0.5


class Failure(NamedTuple):
    """That a trial has failed on a worker.

    It has its last failed attempt, the time of that by the monotonic clock, and its devices.
    """

    attempt: int
    at: float
    devices: frozenset[str]


class Retries:
    """Remembers for some seconds which trials have failed on a worker, and where. Any thread may use it."""

    def __init__(self, clock: Clock = time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: dict[tuple[str, str], Failure] = {}

    def note(self, experiment: str, claim: Claim, ended: AttemptEnded, devices: tuple[str, ...]) -> None:
        """Record an attempt's end if it has failed, in user code or by a device.

        It is recorded before the journal has it, as the retry may come immediately then.
        """
        by_device = ended.end is AttemptEnd.HANDED_BACK and ended.pid and ended.error_type not in ("", UNDRIVEN)
        if ended.end is not AttemptEnd.FAILED and not by_device:
            return
        with self._lock:
            self._failures = {key: each for key, each in self._failures.items() if self.age_s(each) < ANOTHER_DEVICE_S}
            before = self._failures.get((experiment, claim.trial))
            known = before.devices if before is not None and before.attempt < claim.attempt else frozenset()
            now = self._clock.monotonic()
            self._failures[experiment, claim.trial] = Failure(claim.attempt, now, known.union(devices))

    def failure(self, experiment: str, claim: Claim) -> Failure | None:
        """Return the failure because of which an attempt is to run elsewhere, if that is possible.

        Return None if it may run anywhere.
        """
        found = self._failures.get((experiment, claim.trial))
        if found is None or found.attempt >= claim.attempt:
            return None
        return found if self.age_s(found) < (ANOTHER_DEVICE_S if found.devices else ANOTHER_WORKER_S) else None

    def age_s(self, failure: Failure) -> float:
        """Return how long ago a failure was."""
        return self._clock.monotonic() - failure.at
