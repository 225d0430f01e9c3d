"""Base class of loggers, which write the trials of an experiment into another tool."""

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
#: The most reports of a trial that are buffered: some megabytes.
_MOST_WAITING: Final = 1000


@dataclass(slots=True)
class _TrialLog:
    """The reports of a trial: how many are written, and those still waiting."""

    trial: Trial
    written: int
    waiting: list[Report] = field(default_factory=list)
    has_ended: bool = False


class TrialLogger(Callback, ABC):
    """Writes trials into another tool: during a run as a callback, or afterwards by ``write``.

    Each report that the scheduler has seen is written once and in order, despite killed drivers, resumes and outages of
    the tool. Missing reports are read from the journal's copy. So a subclass returns how many reports the tool already
    has. Late reports of a stopped trial are left out.
    """

    interval_s = FLUSH_S
    #: A trial with this many buffered reports is written immediately.
    most_waiting: int = _MOST_WAITING

    def __init__(self) -> None:
        self._experiment_folder = Path()
        self._progress_by_trial: dict[TrialId, _TrialLog] = {}
        #: The driver's state of the experiment, in a run.
        self._live_experiment: Experiment | None = None
        #: The experiment after its end, for ``close``; None before.
        self.ended: Experiment | None = None

    # For subclasses.

    @abstractmethod
    def open(self, name: str) -> None:
        """Open or create the experiment's record."""

    @abstractmethod
    def begin_trial(self, trial: Trial) -> int:
        """Open or create a trial's record. Return how many reports it has already."""

    @abstractmethod
    def write_reports(self, trial: Trial, reports: Sequence[Report], first: int) -> None:
        """Write consecutive reports of a trial.

        Args:
            trial: the trial after the last of these reports, or later.
            reports: at least one.
            first: the first report's number, counted from 1 over all attempts.
        """

    @abstractmethod
    def end_trial(self, trial: Trial) -> None:
        """Write the end of a trial, after all its reports. A later driver may write it again."""

    @abstractmethod
    def close(self) -> None:
        """Flush and close the tool. It is called after a failed ``open``, too."""

    def setup(self, folder: Path) -> None:
        self._experiment_folder = folder

    def on_start(self, experiment: Experiment) -> None:
        self._open_experiment(experiment.name)
        self._live_experiment = experiment
        if experiment.trials:
            self._write_missing(self._live_results(experiment))

    def on_queue(self, trial: Trial) -> None:
        self._progress_of(trial)

    def on_report(self, trial: Trial, report: Report) -> None:
        progress = self._progress_of(trial)
        number = sum(attempt.reports for attempt in trial.attempts[: report.attempt - 1]) + report.sequence
        self._add_report(progress, report, number)

    def on_step(self, waiting_for: str) -> None:
        del waiting_for
        for progress in self._progress_by_trial.values():
            self._write_waiting(progress)

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
        """Write the reports and ends that are in the journal but not yet in the tool.

        Raises:
            MqtuneError: the tool refuses them, or the journal's copy is incomplete.
        """
        try:
            self._open_experiment(results.name)
            self._write_missing(results)
            self.ended = results.experiment
        finally:
            self.close()

    def _open_experiment(self, name: str) -> None:
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
                self._add_report(progress, Report(*recorded[:-1]), number)
        self._end_all()

    def _progress_of(self, trial: Trial) -> _TrialLog:
        progress = self._progress_by_trial.get(trial.id)
        if progress is None:
            progress = self._progress_by_trial[trial.id] = _TrialLog(trial, self.begin_trial(trial))
        progress.trial = trial
        return progress

    def _add_report(self, progress: _TrialLog, report: Report, number: int) -> None:
        expected = progress.written + len(progress.waiting) + 1
        if number == expected:
            if len(progress.waiting) >= self.most_waiting:
                # If this fails in an outage, the report is read from the journal later.
                self._write_waiting(progress)
            progress.waiting.append(report)

    def _lacks_reports(self, experiment: Experiment) -> bool:
        """Return whether some reports of the driver are neither written nor waiting."""
        return any(self._known_reports(trial.id) < trial.reports for trial in list(experiment.trials.values()))

    def _known_reports(self, trial: TrialId) -> int:
        progress = self._progress_by_trial.get(trial)
        return progress.written + len(progress.waiting) if progress else 0

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
    """Return the numbers among a report's metrics, under flat names. Booleans become 0 and 1."""
    flat = flatten(report.metrics)
    return {name: float(value) for name, value in flat if isinstance(value, int | float)}


def step_of(report: Report, number: int) -> int:
    """Return the step of a report in curves: its iteration, or else its number."""
    iteration = report.metrics.get(ITERATION)
    return iteration if isinstance(iteration, int) else number


def plain_config(config: Mapping[str, object]) -> dict[str, bool | float | str]:
    """Return a config under flat names, such as ``optimizer.lr``.

    Values other than numbers and texts become JSON.
    """
    return {name: _plain_value(value) for name, value in flatten(config)}


def _plain_value(value: object) -> bool | float | str:
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return json_text(value)
