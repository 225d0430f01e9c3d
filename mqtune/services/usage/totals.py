"""An experiment's resource use within a period, summed up from its journal."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from mqtune.core.codec import REPORTS_PREFIX
from mqtune.core.errors import ConfigurationError
from mqtune.core.events import AttemptEnded, AttemptStarted, DriverStarted, ExperimentCreated, TrialStaged, decode_event
from mqtune.core.machine import SIMULATION
from mqtune.core.owner import NOBODY, Owner
from mqtune.core.resources import Resources, gpus_in
from mqtune.core.trial import TrialId
from mqtune.core.usage import sound_usage
from mqtune.journal import Entry, entry_time

_RESOURCES: Final = "resources"


@dataclass(slots=True)
class Used:
    """Resource use of attempts. Two of them can be added.

    Attributes:
        trials: number of trials with an attempt that ran.
        attempts: number of attempts that ran.
        slot_s: seconds of their slots, together; each task of an attempt has one.
        gpu_s: the same, times the GPUs of each slot; half a GPU counts as half.
        energy_j: sampled energy of their GPUs; slots that share a GPU share its energy.
        measured_gpu_s: part of ``gpu_s`` of attempts with known energy.
        waited_slot_s: part of ``slot_s`` in which data waited for Redis, if known.
        waited_gpu_s: the same part of ``gpu_s``.
    """

    trials: int = 0
    attempts: int = 0
    slot_s: float = 0.0
    gpu_s: float = 0.0
    energy_j: float = 0.0
    measured_gpu_s: float = 0.0
    waited_slot_s: float = 0.0
    waited_gpu_s: float = 0.0

    def __add__(self, other: Used) -> Used:
        return Used(
            self.trials + other.trials,
            self.attempts + other.attempts,
            self.slot_s + other.slot_s,
            self.gpu_s + other.gpu_s,
            self.energy_j + other.energy_j,
            self.measured_gpu_s + other.measured_gpu_s,
            self.waited_slot_s + other.waited_slot_s,
            self.waited_gpu_s + other.waited_gpu_s,
        )


@dataclass(slots=True)
class _AttemptUsage:
    trial: TrialId
    #: GPUs of task 0, whose figures the attempt has.
    gpus: float
    begin: float
    #: Number of its slots, and the GPUs of the further ones.
    slots: int = 1
    gpus_beside: float = 0.0
    end: float = math.inf
    figures: dict[str, float] = field(default_factory=dict)


class JournalUse:
    """Resource use of the attempts in a journal.

    Reports are skipped, and nothing is folded.

    Args:
        entries: the journal's entries.

    Attributes:
        owner: account that created the experiment.

    Raises:
        MessageVersionError: an entry can't be read.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.owner: Owner = NOBODY
        self._asks = Resources()
        #: Resources of staged attempts, if they depend on the config.
        self._asked: dict[tuple[TrialId, int], Resources] = {}
        #: Whether an mqtune driver has run it in real time.
        self._is_real = False
        self._attempts: dict[tuple[TrialId, int], _AttemptUsage] = {}
        self._last = 0.0
        for entry in entries:
            # Nearly all entries of a long journal are reports; their ids have their times.
            self._last = max(self._last, entry_time(entry.id))
            if not entry.data.startswith(REPORTS_PREFIX):
                self._apply(decode_event(entry.data, entry.id))

    def within(self, since: float, until: float, *, is_driven: bool) -> Used:
        """Return the use between two times. Simulations and other tools' trials count as nothing.

        Args:
            since: start of the period, in seconds since the epoch.
            until: its end; not after now.
            is_driven: whether a driver has the experiment. Otherwise attempts are unknown beyond the newest entry.
        """
        used, trials = Used(), set[TrialId]()
        open_until = until if is_driven else self._last
        for attempt in self._attempts.values() if self._is_real else ():
            end = open_until if attempt.end == math.inf else attempt.end
            took_s = min(end, until) - max(attempt.begin, since)
            if took_s <= 0:
                continue
            trials.add(attempt.trial)
            gpus, whole_s = attempt.gpus + attempt.gpus_beside, end - attempt.begin
            # No journal has the times of waiting, so each part of the attempt gets its proportion.
            waited_s = min(attempt.figures.get("redis_wait_s", 0.0), whole_s) * took_s / whole_s
            energy = _energy(attempt, took_s, whole_s)
            used += Used(
                0, 1, took_s * attempt.slots, took_s * gpus, *energy, waited_s * attempt.slots, waited_s * gpus
            )
        used.trials = len(trials)
        return used

    def _apply(self, event: object) -> None:
        match event:
            case ExperimentCreated():
                self.owner = event.owner
                self._read_resources(event.definition)
            case DriverStarted():
                self._is_real = self._is_real or event.driver != SIMULATION
                self._read_resources(event.changes)
            case TrialStaged(resources=Resources() as asked):
                self._asked[event.trial, event.attempt] = asked
            case AttemptStarted():
                gpus = gpus_in(event.queue, self._asked.get((event.trial, event.attempt), self._asks))
                self._start(event, gpus)
            case AttemptEnded() if (attempt := self._attempts.get((event.trial, event.attempt))) is not None:
                attempt.end, attempt.figures = event.at, sound_usage(event.usage)

    def _start(self, event: AttemptStarted, gpus: float) -> None:
        key = event.trial, event.attempt
        if not event.task:
            self._attempts[key] = _AttemptUsage(event.trial, gpus, event.at)
        elif (known := self._attempts.get(key)) is not None:
            known.slots += 1
            known.gpus_beside += gpus

    def _read_resources(self, given: dict[str, Any]) -> None:
        if _RESOURCES in given:
            with contextlib.suppress(ConfigurationError, TypeError, AttributeError):
                self._asks = Resources.decode(given[_RESOURCES])


def _energy(attempt: _AttemptUsage, took_s: float, whole_s: float) -> tuple[float, float]:
    """Return the joules of a part of an attempt, and its measured GPU-seconds."""
    joules = attempt.figures.get("gpu_energy_j")
    if joules is None:
        return 0.0, 0.0
    # The figures of a shared device include all of its attempts.
    part = attempt.gpus if 0 < attempt.gpus < 1 else 1 / max(1.0, attempt.figures.get("gpu_slots", 1.0))
    return joules * part * took_s / whole_s, took_s * attempt.gpus
