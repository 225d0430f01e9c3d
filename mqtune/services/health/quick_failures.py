"""Detects broken devices: attempts fail there within seconds while they do well elsewhere.

Without this, such a device would fail one trial of an experiment after the other.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from mqtune.core.clock import Clock
from mqtune.core.errors import AccessDenied, BrokerUnavailable
from mqtune.core.timing import Timing
from mqtune.core.trial import DEVICE_BROKEN, AttemptEnd
from mqtune.journal import Fared, Journal, Others
from mqtune.worker import ImpairmentCause, Impairments, RunResult, broken_device
from mqtune.worker.ports import AttemptHere, WorkerService

logger = logging.getLogger(__name__)

#: An attempt that fails within this time, and without a report, is a quick failure: a first batch takes less on a sound
#: device.
QUICK_S: Final = 10.0
#: How many quick failures in a row close a device, and from how many trials they must be, because one trial may be at
#: fault itself. After a wrong quarantine, its experiment needs twice as many failures.
IN_A_ROW: Final = 3
OF_TRIALS: Final = 2
#: Each probe that fails immediately doubles the pause before the next one, up to this: the longest until a repaired
#: device is used again.
LONGEST_PAUSE_S: Final = 1800.0
#: How long an attempt that did well elsewhere counts, and how often a worker records such an attempt.
LATELY_S: Final = 60.0
NOTED_EACH_S: Final = 30.0
#: The number of remembered experiments: more than a worker runs at the same time.
REMEMBERED: Final = 32
#: The kind of its impairments.
_KIND: Final = "failures"

Devices = tuple[str, ...]


@dataclass(slots=True)
class _Row:
    """Quick failures of one experiment, one after the other, on the devices of a slot."""

    since: float
    number: int = 0
    trials: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Experiment:
    """The attempts of one experiment, as this worker knows them.

    Times are by ``time.monotonic``.
    """

    needed: int = IN_A_ROW
    rows: dict[Devices, _Row] = field(default_factory=dict)
    #: The times of the last attempt that did well, and of the last quick failure, on the devices of each slot here.
    well: dict[Devices, float] = field(default_factory=dict)
    failed: dict[Devices, float] = field(default_factory=dict)
    #: The same on other workers.
    well_elsewhere: float = -math.inf
    failed_elsewhere: float = -math.inf
    #: The time of the last note that an attempt does well here.
    noted_at: float = -math.inf


@dataclass(slots=True, eq=False)
class _Suspicion(ImpairmentCause):
    """The cause of a quarantine: *number* quick failures of an experiment, before *began_at*."""

    began_at: float = 0.0
    experiment: str = ""
    number: int = 0


class QuickFailures(WorkerService):
    """Quarantines the devices of a slot after quick failures. Thread-safe.

    **The rule.** A slot's devices are closed after ``IN_A_ROW`` quick failures of one experiment, of ``OF_TRIALS``
    trials, with no attempt in between that did well. In addition, the experiment must do better elsewhere, on other
    devices here or on other workers. It does if an attempt has done well there since the first failure. It also does if
    no quick failure is known there since, and an attempt runs there or did well there lately. So trials that fail
    everywhere, by their own code, close no device.

    After a pause one attempt may start as a probe. The quarantine ends when an attempt does well there, or when one
    fails and others do no better.

    A single error that names a broken device is enough. It does not count if an attempt of the same experiment has
    named another device in the last ``BROKEN_S``: then the experiment itself is probably at fault.

    Args:
        worker: the worker's name in the fleet.
        impairments: takes the devices.
        here: returns the devices of the attempts of an experiment that have a slot here, and whether each is claimed.
    """

    def __init__(
        self,
        worker: str,
        impairments: Impairments,
        here: Callable[[str], Iterable[tuple[Devices, bool]]],
        timing: Timing = Timing(),
        clock: Clock = time,
    ) -> None:
        self._clock = clock
        self._timing = timing
        self._worker = worker
        self._impairments = impairments
        self._here = here
        self._lock = threading.Lock()
        self._experiments: dict[str, _Experiment] = {}
        self._is_denied = False

    def renewed(self, run: AttemptHere) -> None:
        """Note an attempt that does well."""
        if run.devices and self._does_well(run):
            self.note_well(run.journal, run.devices, self._seen_well_at(run))

    def ended(self, run: AttemptHere, result: RunResult) -> None:
        """Note whether an attempt did well or failed; an early stop or pause says nothing."""
        broken = result.error_type == DEVICE_BROKEN
        if not run.devices or result.end is None:
            return
        # All tasks of an attempt fail with the first one, which is not known.
        if broken or (result.end is AttemptEnd.FAILED and run.resources.slots == 1 and not self._does_well(run)):
            self.note_failed(
                run.journal,
                run.slot,
                run.devices,
                run.claim.trial,
                result.note,
                broken=broken,
            )
        elif result.end is AttemptEnd.COMPLETED or self._does_well(run):
            self.note_well(run.journal, run.devices, self._seen_well_at(run))

    def note_well(self, journal: Journal, devices: Devices, at: float) -> None:
        """Note that an attempt did well: it had reported, completed, or run for ``QUICK_S`` by then."""
        with self._lock:
            known = self._of(journal.experiment)
            known.well[devices] = max(at, known.well.get(devices, at))
            if (row := known.rows.get(devices)) is not None and row.since <= at:
                del known.rows[devices]
            is_due = at >= known.noted_at + NOTED_EACH_S
            if is_due:
                known.noted_at = at
        if (suspicion := self._suspicion(devices)) and suspicion.began_at <= at:
            self._lift(suspicion, devices, "an attempt does well there")
        if is_due:
            self._compare(journal, "well", devices)

    def note_failed(
        self,
        journal: Journal,
        slot: int,
        devices: Devices,
        trial: str,
        error: str,
        *,
        broken: bool = False,
    ) -> None:
        """Note a quick failure, or, if *broken*, an error that names a broken device."""
        now = self._clock.monotonic()
        with self._lock:
            known = self._of(journal.experiment)
            known.failed[devices] = now
            row = known.rows.setdefault(devices, _Row(now))
            row.number += 1
            row.trials.add(trial)
            is_enough = row.number >= known.needed and len(row.trials) >= OF_TRIALS
        suspicion = self._suspicion(devices)
        # The first of a row is noted for others, which may fail too.
        if not (broken or suspicion is not None or is_enough or row.number == 1):
            return
        others = self._compare(journal, "broken" if broken else "failed", devices)
        last = (error.strip().splitlines() or ["?"])[-1]
        # A probe shows the present state: where all remaining trials fail, earlier successes keep no device closed.
        since = suspicion.began_at if suspicion is not None and suspicion.is_open else row.since
        is_likely = (is_enough or suspicion is not None) and self._do_well_elsewhere(journal, devices, since, others)
        if suspicion is not None and not suspicion.is_open and (is_likely or broken):
            # The attempt is no probe: it was about to start when the devices were quarantined.
            return
        if broken and not others.broken:
            phrase = broken_device(error)
            self._quarantine(journal, slot, devices, row, f"an attempt failed there by {phrase!r}", last, suspicion)
        elif is_likely:
            attempts = "attempt" if row.number == 1 else f"{row.number} attempts"
            text = f"its last {attempts} failed within seconds, and others elsewhere have not"
            self._quarantine(journal, slot, devices, row, text, last, suspicion)
        elif suspicion is not None:
            self._lift(suspicion, devices, "attempts fail elsewhere too")

    def _of(self, experiment: str) -> _Experiment:
        known = self._experiments.pop(experiment, None) or _Experiment()
        self._experiments[experiment] = known
        if len(self._experiments) > REMEMBERED:
            del self._experiments[next(iter(self._experiments))]
        return known

    def _suspicion(self, devices: Devices) -> _Suspicion | None:
        causes = (self._impairments.cause_of(device, _KIND) for device in devices)
        return next((cause for cause in causes if isinstance(cause, _Suspicion)), None)

    def _quarantine(
        self, journal: Journal, slot: int, devices: Devices, row: _Row, text: str, error: str, before: _Suspicion | None
    ) -> None:
        pause_s = self._timing.first_probe_s if before is None else min(2 * before.pause_s, LONGEST_PAUSE_S)
        cause = _Suspicion(
            text,
            ends="an attempt does well there",
            probe_slot=slot,
            pause_s=pause_s,
            began_at=self._clock.monotonic(),
            experiment=journal.experiment,
            number=row.number,
        )
        # Everybody sees the note. The experiment and its error are for the operator, in the log.
        last = f"The last one, of experiment {journal.experiment}: {error}"
        says = f"{text}. It gets an attempt to try in {pause_s:.0f} s. {last}"
        self._impairments.put(devices, _KIND, cause, says=says)

    def _lift(self, suspicion: _Suspicion, devices: Devices, why: str) -> None:
        """End a quarantine, and require more failures of its experiment for the next one.

        The experiment's failures have turned out to say little about devices.
        """
        with self._lock:
            known = self._of(suspicion.experiment)
            known.needed = max(known.needed, 2 * suspicion.number)
            known.rows.pop(devices, None)
        self._impairments.lift(suspicion, why)

    def _do_well_elsewhere(self, journal: Journal, devices: Devices, since: float, others: Others) -> bool:
        here = [*self._here(journal.experiment)]
        # Attempts that wait here soon show how they do. Attempts elsewhere count once they are claimed.
        runs = sum(place != devices for place, _ in here) + max(0, others.running - sum(claimed for _, claimed in here))
        with self._lock:
            known = self._of(journal.experiment)
            well = max([known.well_elsewhere, *(at for place, at in known.well.items() if place != devices)])
            failed = max([known.failed_elsewhere, *(at for place, at in known.failed.items() if place != devices)])
        is_likely = runs > 0 or well >= self._clock.monotonic() - LATELY_S
        return well >= since or (failed < since and is_likely)

    def _compare(self, journal: Journal, fared: Fared, devices: Devices) -> Others:
        """Record in Redis how an attempt did, and return how others do."""
        try:
            others = journal.compare(fared, self._worker, ",".join(devices))
        except (BrokerUnavailable, AccessDenied) as error:
            if isinstance(error, AccessDenied) and not self._is_denied:
                self._is_denied = True
                logger.warning("whether attempts do well on other workers is not known: %s", error)
            return Others(math.inf, math.inf, broken=True, running=0)
        now = self._clock.monotonic()
        with self._lock:
            known = self._of(journal.experiment)
            known.well_elsewhere = max(known.well_elsewhere, now - others.well)
            known.failed_elsewhere = max(known.failed_elsewhere, now - others.failed)
        return others

    def _does_well(self, run: AttemptHere) -> bool:
        began_at = run.began_at
        return run.has_reported or (began_at is not None and self._clock.monotonic() - began_at >= QUICK_S)

    def _seen_well_at(self, run: AttemptHere) -> float:
        """Return when an attempt was last seen to do well: now, or when its last process exited.

        After that, the slot's next attempt may have failed already.
        """
        return min(self._clock.monotonic(), run.gone_at)
