"""Recently failed trials, which have to run on other devices or another worker.

A slot with a broken device fails its trials quickly and is free first. Without this, each retry would return to it.
"""

from __future__ import annotations

import threading
import time
from typing import Final, NamedTuple

from mqtune.core.clock import Clock
from mqtune.core.events import AttemptEnded
from mqtune.core.trial import UNDRIVEN, AttemptEnd
from mqtune.journal.base import Claim

#: How long after a failure a trial is left to other workers, in seconds. With short trials, another worker has a free
#: slot by then.
ANOTHER_WORKER_S: Final = 10.0
#: How long after a failure the trial gets no slot with a device on which it has failed, in seconds, if there are
#: others.
ANOTHER_DEVICE_S: Final = 30.0
#: How long the task of such a trial is kept out of its queue, in seconds, so that this worker does not receive it again
#: immediately.
PUT_BACK_S: Final = 0.5


class Failure(NamedTuple):
    """A trial's failures on this worker.

    Attributes:
        attempt: the number of its last failed attempt.
        at: the time of that failure, by the monotonic clock.
        devices: all devices on which its attempts have failed recently.
    """

    attempt: int
    at: float
    devices: frozenset[str]


class Retries:
    """Remembers a worker's failed trials and their devices for some seconds. Thread-safe."""

    def __init__(self, clock: Clock = time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: dict[tuple[str, str], Failure] = {}

    def note(self, experiment: str, claim: Claim, ended: AttemptEnded, devices: tuple[str, ...]) -> None:
        """Record an attempt that failed by its own code or by a device. Ignore other ends.

        It must be called before the end is journaled, because the retry may come immediately after.
        """
        by_device = ended.end is AttemptEnd.HANDED_BACK and ended.pid and ended.error_type not in ("", UNDRIVEN)
        if ended.end is not AttemptEnd.FAILED and not by_device:
            return
        with self._lock:
            self._failures = {
                key: failure for key, failure in self._failures.items() if self.age_s(failure) < ANOTHER_DEVICE_S
            }
            before = self._failures.get((experiment, claim.trial))
            known = before.devices if before is not None and before.attempt < claim.attempt else frozenset()
            now = self._clock.monotonic()
            self._failures[experiment, claim.trial] = Failure(claim.attempt, now, known.union(devices))

    def failure(self, experiment: str, claim: Claim) -> Failure | None:
        """Return the failure due to which an attempt should run elsewhere, or None."""
        failure = self._failures.get((experiment, claim.trial))
        if failure is None or failure.attempt >= claim.attempt:
            return None
        return failure if self.age_s(failure) < (ANOTHER_DEVICE_S if failure.devices else ANOTHER_WORKER_S) else None

    def age_s(self, failure: Failure) -> float:
        """Return the seconds since a failure."""
        return self._clock.monotonic() - failure.at
