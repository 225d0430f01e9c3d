"""Rules that end the whole experiment."""

from __future__ import annotations

import heapq
import math
from typing import ClassVar, Final, Literal, get_args

from mqtune.core import checks
from mqtune.core.errors import ConfigurationError
from mqtune.core.experiment import Experiment
from mqtune.core.objective import METRIC_KEY, Mode
from mqtune.core.trial import Report, Trial, TrialId, TrialStatus
from mqtune.schedulers.stopping.rule import Scope, StopRule, number, spread

#: The kinds of time that a limit may count.
TimeCount = Literal["wall_time", "driver_time", "trial_time"]
#: Seconds between two sums of all trials' run times. Each sum reads every trial.
_SUM_EVERY_S: Final = 1.0


class TimeLimit(StopRule):
    """Stops the experiment after *seconds*.

    Args:
        seconds: the limit, above 0.
        count: which time counts. "wall_time": all time since the experiment's creation, even without a driver, because
            trials continue then. "driver_time": only the time while a driver runs. "trial_time": the sum of all trials'
            run times.
    """

    kind = "time_limit"
    later: ClassVar = {"count": "wall_time"}
    scopes = frozenset({Scope.EXPERIMENT})
    takes_several = True

    def __init__(self, seconds: float, count: TimeCount = "wall_time") -> None:
        self._seconds = checks.positive("TimeLimit", "seconds", seconds)
        self._count = checks.one_of("TimeLimit", "count", count, get_args(TimeCount))
        self._sum_at = -math.inf

    def stops_experiment(self, experiment: Experiment, now: float) -> str:
        return self._text() if self._used(experiment, now) >= self._seconds else ""

    def due(self, experiment: Experiment, now: float) -> float:
        """Return when the limit is reached, or may be. Infinity if it has been reached already."""
        if self._count == "trial_time":
            return max(self._sum_at, math.nextafter(now, math.inf))
        end = now + self._seconds - self._used(experiment, now)
        return end if end > now else math.inf

    def _used(self, experiment: Experiment, now: float) -> float:
        """Return the time so far in seconds. With "trial_time", return 0 until the next sum is due."""
        if self._count == "driver_time":
            return experiment.driven_s(now)
        if self._count == "wall_time":
            return -math.inf if experiment.created_at is None else now - experiment.created_at
        if now < self._sum_at:
            return 0.0
        self._sum_at = now + _SUM_EVERY_S
        return _trial_s(experiment, now)

    def _text(self) -> str:
        if self._count == "trial_time":
            return f"the trials have run for {self._seconds:g} s in all, which is their limit"
        whose = " of the driver" if self._count == "driver_time" else ""
        return f"the time limit{whose} of {self._seconds:g} s is over"


def _trial_s(experiment: Experiment, now: float) -> float:
    if not experiment.counts[TrialStatus.RUNNING]:
        return experiment.run_s
    running = [trial.attempt for trial in experiment.trials.values() if trial.status is TrialStatus.RUNNING]
    return experiment.run_s + sum(max(0.0, now - a.started_at) for a in running if a.started_at is not None)


class _Count(StopRule):
    """Base of rules that stop the experiment when it has a number of trials in some status."""

    scopes = frozenset({Scope.EXPERIMENT})
    takes_several = True
    _WORD: str
    _STATUSES: frozenset[TrialStatus]

    def __init__(self, trials: int) -> None:
        self._trials = checks.whole_number(type(self).__name__, "trials", trials, 1)

    def stops_experiment(self, experiment: Experiment, now: float) -> str:
        count = sum(experiment.counts[status] for status in self._STATUSES)
        return f"{self._trials} trials have {self._WORD}" if count >= self._trials else ""


class TrialsStarted(_Count):
    """Stops the experiment, with its running trials, as soon as *trials* trials have started.

    A trial has started when its first attempt is queued. Retries and resumes don't count. To let the last trials run to
    their ends, use the tuner's ``max_trials`` instead.
    """

    kind = "trials_started"
    _WORD = "started"
    _STATUSES = frozenset(TrialStatus) - {TrialStatus.CANDIDATE}


class TrialsCompleted(_Count):
    """Stops the experiment as soon as *trials* trials are COMPLETED."""

    kind = "trials_completed"
    _WORD = "completed"
    _STATUSES = frozenset({TrialStatus.COMPLETED})


class TrialsFailed(_Count):
    """Stops the experiment as soon as *trials* trials are FAILED.

    Failures with a retry don't count.
    """

    kind = "trials_failed"
    _WORD = "failed"
    _STATUSES = frozenset({TrialStatus.FAILED})


class TrialsEnded(_Count):
    """Stops the experiment as soon as *trials* trials have ended, with any status."""

    kind = "trials_ended"
    _WORD = "ended"
    _STATUSES = frozenset(status for status in TrialStatus if status.is_terminal)


class ReportsReceived(StopRule):
    """Stops the experiment as soon as its trials have made *reports* reports together.

    Reports after a decision on their trial don't count.

    Args:
        reports: number of reports, at least 1.
    """

    kind = "reports_received"
    scopes = frozenset({Scope.EXPERIMENT})
    takes_several = True

    def __init__(self, reports: int) -> None:
        self._reports = checks.whole_number("ReportsReceived", "reports", reports, 1)

    def stops_experiment(self, experiment: Experiment, now: float) -> str:
        return f"its trials have made {self._reports} reports" if experiment.reports >= self._reports else ""


class TargetReached(StopRule):
    """Stops the experiment as soon as a trial's metric has reached *value*.

    Args:
        value: the target. In mode "min" it is reached by this value or less, in mode "max" by this value or more.
    """

    kind = "target_reached"
    scopes = frozenset({Scope.EXPERIMENT})

    def __init__(self, value: float) -> None:
        self._value = checks.number("TargetReached", "value", value)

    def stops_experiment(self, experiment: Experiment, now: float) -> str:
        best = experiment.best
        if best is None or experiment.is_better(self._value, best.best_value):
            return ""
        return f"trial {best.id} has reached the target: {experiment.metric}={best.best_value:g}"


class ExperimentPlateau(StopRule):
    """Stops the experiment when its best trials hardly differ.

    Compare the best value of each trial. There is a *plateau* while the *top* best of these values have a population
    standard deviation of *std* or less. Trials that end during a plateau are counted if they have reported the metric.
    The experiment is stopped when *patience* of them have ended. The count begins again when a better value ends the
    plateau, but not if the plateau continues with that value. NaN, reports without the metric, and reports that violate
    an outcome constraint are ignored.

    Args:
        metric: the metric's key in the reports. By default the experiment's metric, if it has only one.
        std: largest standard deviation of a plateau. 0 means equal values.
        top: number of best trials that are compared, at least 2.
        patience: number of trials that must end during the plateau. With 0 the experiment is stopped immediately.
        mode: "min" or "max". It is needed for a metric that the experiment does not optimise.
    """

    kind = "experiment_plateau"
    scopes = frozenset({Scope.EXPERIMENT})

    def __init__(
        self,
        metric: str | None = None,
        *,
        std: float = 0.001,
        top: int = 10,
        patience: int = 0,
        mode: Mode | None = None,
    ) -> None:
        if mode is not None:
            checks.one_of("ExperimentPlateau", "mode", mode, ("min", "max"))
        self._metric = "" if metric is None else checks.name("ExperimentPlateau", "metric", metric, METRIC_KEY)
        self._std = checks.number("ExperimentPlateau", "std", std, least=0)
        self._top = checks.whole_number("ExperimentPlateau", "top", top, 2)
        self._patience = checks.whole_number("ExperimentPlateau", "patience", patience, 0)
        self.takes_several = bool(self._metric)
        self._mode: str = mode or ""
        self._sign = 0.0
        #: The best score of each trial. Lower is better.
        self._scores: dict[TrialId, float] = {}
        #: The scores of the *top* best trials.
        self._best: dict[TrialId, float] = {}
        #: The worst of these scores. Infinity while there are fewer.
        self._worst = math.inf
        #: Their standard deviation. NaN while there are fewer.
        self._spread = math.nan
        #: Unfinished trials that have reported the metric.
        self._reporting: set[TrialId] = set()
        #: Number of trials that have ended during the plateau.
        self._waited = 0

    def bind(self, metric: str, mode: str) -> None:
        """Set the metric and its mode."""
        super().bind(metric, mode)
        self._metric = self._metric or metric
        wanted = self.objective.mode_of(self._metric) if self.objective is not None else None
        if wanted is None and not self._mode:
            raise ConfigurationError(
                f"ExperimentPlateau: {self._metric!r} is not the experiment's metric {self.objective}; say mode='min' "
                "or mode='max'"
            )
        if wanted is not None and self._mode not in ("", wanted):
            raise ConfigurationError(
                f"ExperimentPlateau: mode={self._mode!r} for {self._metric!r}, of which the experiment wants the "
                f"{wanted}; leave mode out"
            )
        self._mode = self._mode or wanted or mode
        self._sign = 1.0 if self._mode == "min" else -1.0

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self._metric})

    @property
    def _is_flat(self) -> bool:
        return self._spread <= self._std

    def stops_trial(self, trial: Trial, report: Report) -> str:
        """Record the report. This rule stops no single trial, so the result is empty."""
        if not self._sign:
            raise ConfigurationError("ExperimentPlateau: the metric is not known; call bind(metric, mode) first")
        value = number(report, self._metric, self.metrics)
        if value is None or value != value:  # noqa: PLR0124 - NaN is not itself
            return ""
        self._reporting.add(trial.id)
        if self.objective is not None and not self.objective.is_feasible(report.metrics):
            return ""
        score = self._sign * value
        if score < self._scores.get(trial.id, math.inf):
            self._scores[trial.id] = score
        known = self._best.get(trial.id)
        # A trial that is not among the best enters only with a score that beats the worst of them.
        if score < (self._worst if known is None else known):
            self._enter(trial.id, score)
        return ""

    def _enter(self, trial: TrialId, score: float) -> None:
        if trial not in self._best and len(self._best) == self._top:
            del self._best[max(self._best, key=self._best.__getitem__)]
        self._best[trial] = score
        self._compare()

    def _compare(self) -> None:
        is_full = len(self._best) == self._top
        self._worst = max(self._best.values()) if is_full else math.inf
        self._spread = spread(list(self._best.values())) if is_full else math.nan
        if not self._is_flat:
            self._waited = 0

    def on_abandon(self, trial: Trial) -> None:
        self._reporting.discard(trial.id)
        self._scores.pop(trial.id, None)
        if trial.id in self._best:
            best = heapq.nsmallest(self._top, self._scores, key=self._scores.__getitem__)
            self._best = {id_: self._scores[id_] for id_ in best}
            self._compare()

    def stops_experiment(self, experiment: Experiment, now: float) -> str:
        if not self._is_flat or self._waited < self._patience:
            return ""
        return f"{self._metric} has a plateau: std {self._spread:.3g} over the best {self._top} trials"

    def on_trial_end(self, trial: Trial) -> None:
        """Count an ended trial if it has reported the metric and there is a plateau."""
        if trial.id in self._reporting:
            self._reporting.remove(trial.id)
            self._waited += self._is_flat
