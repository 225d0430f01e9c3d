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

#: How often reports are written, in seconds: seldom enough for a tool behind a network, soon enough for who looks at it.
FLUSH_S: Final = 1.0
#: The most reports of a trial that wait until they are written, which is some megabytes.
_MOST_WAITING: Final = 1000


@dataclass(slots=True)
class _Progress:
    """A trial, the number of its reports that the tool has, those that are to follow, and whether it was told of its end."""

    trial: Trial
    written: int
    waiting: list[Report] = field(default_factory=list)
    has_ended: bool = False


class TrialLogger(Callback, ABC):
    """Writes trials into another tool: while an experiment runs, as a callback, or afterwards, by ``write``.

    Each report that the scheduler has seen is written once and in order, also when drivers are killed, when one resumes, or when
    the tool was away for a while: what is missing comes from the journal's copy. For that a subclass says how many reports of a
    trial the tool has. Reports that came after a trial was stopped are left out.
    """

    interval_s = FLUSH_S
    #: The number of waiting reports of one trial at which a logger writes them before their time.
    most_waiting: int = _MOST_WAITING

    def __init__(self) -> None:
        self._experiment_folder = Path()
        self._progress_by_trial: dict[TrialId, _Progress] = {}
        #: What the driver has folded, while one tells this logger of events.
        self._live_experiment: Experiment | None = None
        #: The experiment with its outcome, for ``close``; None until it has ended.
        self.ended: Experiment | None = None

    # What a subclass writes.

    @abstractmethod
    def open(self, name: str) -> None:
        """Open what the tool has of the experiment with this name, or make it."""

    @abstractmethod
    def begin_trial(self, trial: Trial) -> int:
        """Open what the tool has of a trial, or make it, and return how many of its reports are there already."""

    @abstractmethod
    def write_reports(self, trial: Trial, reports: Sequence[Report], first: int) -> None:
        """Write reports that follow one another.

        Args:
            trial: the trial as it was at the last of them, or later.
            reports: at least one.
            first: the number of the first one, from 1 on over all attempts of the trial.
        """

    @abstractmethod
    def end_trial(self, trial: Trial) -> None:
        """Write how a trial has ended; all its reports are written. A later driver may write it again."""

    @abstractmethod
    def close(self) -> None:
        """Write what is buffered, and close the tool; also when ``open`` has failed."""

    # As a callback.

    def setup(self, folder: Path) -> None:
        self._experiment_folder = folder

    def on_start(self, experiment: Experiment) -> None:
        self._begin(experiment.name)
        self._live_experiment = experiment
        if experiment.trials:
            self._write_missing(self._live_results(experiment))

    def on_stage(self, trial: Trial) -> None:
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

    # From the journal.

    def write(self, results: Results) -> None:
        """Write an experiment as far as its journal goes; what the tool has already is not written again.

        Raises:
            MqtuneError: the tool refuses it, or the journal's copy is incomplete.
        """
        try:
            self._begin(results.name)
            self._write_missing(results)
            self.ended = results.experiment
        finally:
            self.close()

    def _begin(self, name: str) -> None:
        # One logger may be given one experiment after the other.
        self._progress_by_trial, self._live_experiment, self.ended = {}, None, None
        self.open(name)

    def _live_results(self, experiment: Experiment) -> Results:
        # The journal may be ahead of the driver, which may yet stop a trial at a report before its last.
        return Results(experiment, self._experiment_folder)

    def _write_missing(self, results: Results) -> None:
        counts: dict[TrialId, int] = {}
        for result in results:
            self._progress_of(result.trial)
        for recorded in results.reports():
            if not recorded.late:
                number = counts[recorded.trial] = counts.get(recorded.trial, 0) + 1
                # A running driver may have begun the trial since.
                progress = self._progress_by_trial.get(recorded.trial) or self._progress_of(
                    results[recorded.trial].trial
                )
                self._take_report(progress, Report(*recorded[:-1]), number)
        self._end_all()

    # A trial's progress.

    def _progress_of(self, trial: Trial) -> _Progress:
        progress = self._progress_by_trial.get(trial.id)
        if progress is None:
            progress = self._progress_by_trial[trial.id] = _Progress(trial, self.begin_trial(trial))
        progress.trial = trial
        return progress

    def _take_report(self, progress: _Progress, report: Report, number: int) -> None:
        expected = progress.written + len(progress.waiting) + 1
        if number == expected:
            if len(progress.waiting) >= self.most_waiting:
                # While the tool is away this fails, and the report comes from the journal later.
                self._write_waiting(progress)
            progress.waiting.append(report)

    def _lacks_reports(self, experiment: Experiment) -> bool:
        """Return whether a trial has more reports than were told: some were dropped, or came while the tool was away."""
        return any(self._taken(trial.id) < trial.reports for trial in list(experiment.trials.values()))

    def _taken(self, trial: TrialId) -> int:
        progress = self._progress_by_trial.get(trial)
        return progress.written + len(progress.waiting) if progress else 0

    def _write_all_waiting(self) -> None:
        for progress in self._progress_by_trial.values():
            self._write_waiting(progress)

    def _write_waiting(self, progress: _Progress) -> None:
        if progress.waiting:
            self.write_reports(progress.trial, progress.waiting, progress.written + 1)
            progress.written += len(progress.waiting)
            progress.waiting = []

    def _end_all(self) -> None:
        """Write all that waits, and the end of each trial that has one."""
        for progress in self._progress_by_trial.values():
            if progress.trial.status.is_terminal:
                self._end_once(progress)
            else:
                self._write_waiting(progress)

    def _end_once(self, progress: _Progress) -> None:
        self._write_waiting(progress)
        if not progress.has_ended and progress.written >= progress.trial.reports:
            self.end_trial(progress.trial)
            progress.has_ended = True


def numbers_of(report: Report) -> dict[str, float]:
    """Return a report's numbers under flat names, truth values as 0 and 1; of text and lists loggers make no curve."""
    flat = flatten(report.metrics)
    return {name: float(value) for name, value in flat if isinstance(value, int | float)}


def step_of(report: Report, number: int) -> int:
    """Return a report's place on the axis of its curves: its iteration, or else its number."""
    iteration = report.metrics.get(ITERATION)
    return iteration if isinstance(iteration, int) else number


def plain_config(config: Mapping[str, object]) -> dict[str, bool | float | str]:
    """Return a config under flat names, such as ``optimizer.lr``; what is neither number nor text is JSON."""
    return {name: _plain(value) for name, value in flatten(config)}


def _plain(value: object) -> bool | float | str:
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return json_text(value)
