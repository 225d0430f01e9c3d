"""Attempts that fail at once on one device while others do well.

The device is broken, and would take all trials of an experiment.
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
from mqtune.worker import Cause, Impairments, RunResult, broken_device
from mqtune.worker.ports import AttemptHere, WorkerService

logger = logging.getLogger(__name__)

#: An attempt that fails within this time, without a report, has failed at once: a first batch takes less on a sound
#: device, and one that breaks later takes few trials.
QUICK_S: Final = 10.0
#: How many attempts must fail at once in a row, of how many trials: one trial may be at fault itself, as each trial of
#: an experiment may. After a quarantine that turns out wrong it takes twice as many.
IN_A_ROW: Final = 3
OF_TRIALS: Final = 2
#: Each probe that fails immediately doubles the pause before the next one, up to this: the longest until a repaired
#: device is used again.
LONGEST_PAUSE_S: Final = 1800.0
#: For how long it counts that an attempt has done well elsewhere, and how often a worker notes that one has.
LATELY_S: Final = 60.0
NOTED_EACH_S: Final = 30.0
#: Of how many experiments something is remembered: more than a worker runs at once.
REMEMBERED: Final = 32
_KIND: Final = "failures"

Devices = tuple[str, ...]


@dataclass(slots=True)
class _Row:
    """Attempts of one experiment that have failed at once, one after the other, on the devices of a slot."""

    since: float
    number: int = 0
    trials: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Experiment:
    """What a worker knows of one experiment; times are by ``time.monotonic``."""

    needed: int = IN_A_ROW
    rows: dict[Devices, _Row] = field(default_factory=dict)
    #: When an attempt has last done well, and when one has last failed at once, on the devices of each slot here.
    well: dict[Devices, float] = field(default_factory=dict)
    failed: dict[Devices, float] = field(default_factory=dict)
    #: The same on other workers.
    well_elsewhere: float = -math.inf
    failed_elsewhere: float = -math.inf
    #: When it was last noted that one does well here.
    noted_at: float = -math.inf


@dataclass(slots=True, eq=False)
class _Suspicion(Cause):
    """Failures as a cause: from when on, by ``time.monotonic``, of which experiment, and how many."""

    began_at: float = 0.0
    experiment: str = ""
    number: int = 0


class QuickFailures(WorkerService):
    """Quarantines the devices of a slot on which attempts fail at once. Any thread may call it.

    **The rule.** ``IN_A_ROW`` attempts of an experiment, of ``OF_TRIALS`` trials, have failed at once there, and none
    has done well in between; and elsewhere, on other devices here or on other workers, one of that experiment has done
    well since; or one runs, or has done well lately, and none has failed at once. So trials that fail everywhere, by
    their own code, close no device. After a pause one attempt may start as a probe. The quarantine ends when one does
    well there, and when one fails and others do no better.

    An error that says that the device is broken is enough by itself, unless one of that experiment has said so of
    another device in the last ``BROKEN_S``: errors that say it everywhere are the experiment's own.

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
        """Note that an attempt that runs does well, if it does."""
        if run.devices and self._does_well(run):
            self.note_well(run.journal, run.devices, self._seen_well_at(run))

    def ended(self, run: AttemptHere, result: RunResult) -> None:
        """Note how an attempt that has ended here has fared; a stop or a pause at once says nothing."""
        broken = result.error_type == DEVICE_BROKEN
        if not run.devices or result.end is None:
            return
        # All seats of a gang fail with the first, and nobody knows which that was.
        if broken or (result.end is AttemptEnd.FAILED and not run.is_gang and not self._does_well(run)):
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
        """Note that an attempt did well at that time: it had reported, completed, or run for ``QUICK_S``."""
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
        """Note that an attempt has failed at once, or, if *broken*, by an error that says that its device is broken."""
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
        # A probe shows how it is now: where all that is left of an experiment fails, what did well before keeps no
        # device closed.
        since = suspicion.began_at if suspicion is not None and suspicion.is_open else row.since
        is_likely = (is_enough or suspicion is not None) and self._do_well_elsewhere(journal, devices, since, others)
        if suspicion is not None and not suspicion.is_open and (is_likely or broken):
            # No probe: it was about to start when the devices were quarantined.
            return
        if broken and not others.broken:
            phrase = broken_device(error)
            self._suspect(journal, slot, devices, row, f"an attempt failed there by {phrase!r}", last, suspicion)
        elif is_likely:
            attempts = "attempt" if row.number == 1 else f"{row.number} attempts"
            text = f"its last {attempts} failed at once, and others elsewhere have not"
            self._suspect(journal, slot, devices, row, text, last, suspicion)
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

    def _suspect(
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
        # Whose they were, and what they said, is for the operator alone: everybody sees the note.
        last = f"The last one, of experiment {journal.experiment}: {error}"
        says = f"{text}. It gets an attempt to try in {pause_s:.0f} s. {last}"
        self._impairments.put(devices, _KIND, cause, says=says)

    def _lift(self, suspicion: _Suspicion, devices: Devices, why: str) -> None:
        """End a quarantine, and ask more of the experiment whose failures have led to it.

        They say little about devices.
        """
        with self._lock:
            known = self._of(suspicion.experiment)
            known.needed = max(known.needed, 2 * suspicion.number)
            known.rows.pop(devices, None)
        self._impairments.lift(suspicion, why)

    def _do_well_elsewhere(self, journal: Journal, devices: Devices, since: float, others: Others) -> bool:
        here = [*self._here(journal.experiment)]
        # One that is about to run here soon shows how it does; of others it is known once they are claimed.
        runs = sum(each != devices for each, _ in here) + max(0, others.running - sum(claimed for _, claimed in here))
        with self._lock:
            known = self._of(journal.experiment)
            well = max([known.well_elsewhere, *(at for each, at in known.well.items() if each != devices)])
            failed = max([known.failed_elsewhere, *(at for each, at in known.failed.items() if each != devices)])
        is_likely = runs > 0 or well >= self._clock.monotonic() - LATELY_S
        return well >= since or (failed < since and is_likely)

    def _compare(self, journal: Journal, fared: Fared, devices: Devices) -> Others:
        """Note in Redis how an attempt has fared, and take in how others do."""
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
        """Return when an attempt has last done well.

        Behind the end of one that is gone the slot's next may have failed already.
        """
        return min(self._clock.monotonic(), run.gone_at)
