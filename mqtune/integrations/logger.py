"""Base class of loggers, which write trials into another tool."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqtune import Callback, Results
from mqtune.extend import ITERATION, Report, Trial, TrialId, flatten, json_text

if TYPE_CHECKING:
    from mqtune.extend import Experiment

#: Seconds between writes.
FLUSH_S: Final = 1.0
#: Limit on a trial's buffered reports, some megabytes.
_MOST_WAITING: Final = 1000


@dataclass(slots=True)
class _TrialLog:
    """Written and buffered reports of a trial."""

    trial: Trial
    written: int
    waiting: list[Report] = field(default_factory=list)
    has_ended: bool = False


class TrialLogger(Callback, ABC):
    """Writes trials into another tool: as a callback, or afterwards by ``write``.

    Each report that the scheduler has seen is written once and in order, despite killed drivers, resumes and outages of
    the tool: missing reports are read from the journal's copy. A subclass therefore returns how many reports the tool
    already has. Late reports of a stopped trial are left out.
    """

    interval_s = FLUSH_S
    #: A trial with this many buffered reports is written immediately.
    most_waiting: int = _MOST_WAITING

    def __init__(self) -> None:
        self._experiment_folder = Path()
        self._progress_by_trial: dict[TrialId, _TrialLog] = {}
        #: The driver's state, while used as a callback.
        self._live_experiment: Experiment | None = None
        #: The ended experiment, for ``close``; None before.
        self.ended: Experiment | None = None

    # For subclasses.

    @abstractmethod
    def open(self, name: str) -> None:
        """Open or create the experiment's record."""

    @abstractmethod
    def begin_trial(self, trial: Trial) -> int:
        """Open or create a trial's record. Return the number of its reports."""

    @abstractmethod
    def write_reports(self, trial: Trial, reports: Sequence[Report], first: int) -> None:
        """Write consecutive reports.

        Args:
            trial: the trial at the last report, or later.
            reports: at least one.
            first: the first report's number, counted from 1 over all attempts.
        """

    @abstractmethod
    def end_trial(self, trial: Trial) -> None:
        """Write a trial's end, after all its reports. A later driver may write it again."""

    @abstractmethod
    def close(self) -> None:
        """Flush and close the tool, also after a failed ``open``."""

    def setup(self, folder: Path) -> None:
        self._experiment_folder = folder

    def on_start(self, experiment: Experiment) -> None:
        self._begin(experiment.name)
        self._live_experiment = experiment
        if experiment.trials:
            self._write_missing(self._live_results(experiment))

    def on_queue(self, trial: Trial) -> None:
        self._progress_of(trial)

    def on_report(self, trial: Trial, report: Report) -> None:
        progress = self._progress_of(trial)
        number = sum(attempt.reports for attempt in trial.attempts[: report.attempt - 1]) + report.sequence
        self._take_report(progress, report, number)

    def on_step(self, waiting_for: str) -> None:
        del waiting_for
        self._write_all_waiting()

    def on_trial_end(self, trial: Trial) -> None:
        self._end_once(self._progress_of(trial))

    def on_end(self) -> None:
        try:
            experiment = self._live_experiment
            self.ended = experiment
            if experiment is not None and self._lacks_reports(experiment):
                self._write_missing(self._live_results(experiment))
            else:
                self._end_all()
        finally:
            self.close()

    def write(self, results: Results) -> None:
        """Write the journalled reports and ends that the tool lacks.

        Raises:
            MqtuneError: the tool refuses them, or the journal's copy is incomplete.
        """
        try:
            self._begin(results.name)
            self._write_missing(results)
            self.ended = results.experiment
        finally:
            self.close()

    def _begin(self, name: str) -> None:
        self._progress_by_trial, self._live_experiment, self.ended = {}, None, None
        self.open(name)

    def _live_results(self, experiment: Experiment) -> Results:
        # The driver may still stop a trial before its last journalled report.
        return Results(experiment, self._experiment_folder)

    def _write_missing(self, results: Results) -> None:
        counts: dict[TrialId, int] = {}
        for result in results:
            self._progress_of(result.trial)
        for recorded in results.reports():
            if not recorded.late:
                number = counts[recorded.trial] = counts.get(recorded.trial, 0) + 1
                # A running driver may have begun the trial.
                progress = self._progress_by_trial.get(recorded.trial) or self._progress_of(
                    results[recorded.trial].trial
                )
                self._take_report(progress, Report(*recorded[:-1]), number)
        self._end_all()

    def _progress_of(self, trial: Trial) -> _TrialLog:
        progress = self._progress_by_trial.get(trial.id)
        if progress is None:
            progress = self._progress_by_trial[trial.id] = _TrialLog(trial, self.begin_trial(trial))
        progress.trial = trial
        return progress

    def _take_report(self, progress: _TrialLog, report: Report, number: int) -> None:
        expected = progress.written + len(progress.waiting) + 1
        if number == expected:
            if len(progress.waiting) >= self.most_waiting:
                # This fails in an outage. The journal then supplies the report later.
                self._write_waiting(progress)
            progress.waiting.append(report)

    def _lacks_reports(self, experiment: Experiment) -> bool:
        """Return whether reports were dropped, or missed in an outage."""
        return any(self._taken(trial.id) < trial.reports for trial in list(experiment.trials.values()))

    def _taken(self, trial: TrialId) -> int:
        progress = self._progress_by_trial.get(trial)
        return progress.written + len(progress.waiting) if progress else 0

    def _write_all_waiting(self) -> None:
        for progress in self._progress_by_trial.values():
            self._write_waiting(progress)

    def _write_waiting(self, progress: _TrialLog) -> None:
        if progress.waiting:
            self.write_reports(progress.trial, progress.waiting, progress.written + 1)
            progress.written += len(progress.waiting)
            progress.waiting = []

    def _end_all(self) -> None:
        for progress in self._progress_by_trial.values():
            if progress.trial.status.is_terminal:
                self._end_once(progress)
            else:
                self._write_waiting(progress)

    def _end_once(self, progress: _TrialLog) -> None:
        self._write_waiting(progress)
        if not progress.has_ended and progress.written >= progress.trial.reports:
            self.end_trial(progress.trial)
            progress.has_ended = True


def numbers_of(report: Report) -> dict[str, float]:
    """Return the numbers of a report under flat names. Booleans become 0 and 1."""
    flat = flatten(report.metrics)
    return {name: float(value) for name, value in flat if isinstance(value, int | float)}


def step_of(report: Report, number: int) -> int:
    """Return a report's step for curves: its iteration, or else its number."""
    iteration = report.metrics.get(ITERATION)
    return iteration if isinstance(iteration, int) else number


def plain_config(config: Mapping[str, object]) -> dict[str, bool | float | str]:
    """Return a config under flat names, such as ``optimizer.lr``.

    Values other than numbers and texts become JSON.
    """
    return {name: _plain(value) for name, value in flatten(config)}


def _plain(value: object) -> bool | float | str:
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return json_text(value)
