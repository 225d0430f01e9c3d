"""Screening of reports.

A report whose metric or time is invalid counts as one without the metric, before any decision on it.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mqtune.core.errors import MetricMissing
from mqtune.core.experiment import Experiment
from mqtune.core.text import name_in_words, names_in_words
from mqtune.core.trial import ITERATION, Metrics, Report, Trial, TrialId, TrialStatus, is_number
from mqtune.driver.setup.options import Failures
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.stopping.rule import StopRule

logger = logging.getLogger(__name__)

_PLAIN: Final = frozenset({int, float})
#: The values that a rule can read: a flag counts as 0 or 1, and None as missing.
_READABLE: Final = frozenset({int, float, bool, type(None)})


@dataclass(slots=True)
class _LastReport:
    """The attempt that a trial reported from last, and the time of that report."""

    attempt: int
    time: float


class Screened(NamedTuple):
    """The readable part of a report with unreadable values.

    ``is_placed`` says whether the scheduler can tell its time, without which it isn't shown the report; ``fails`` why
    its trial fails, or is empty.
    """

    report: Report
    is_placed: bool
    fails: str


class Screening:
    """Looks at each report before scheduler, searcher and rules do.

    A value of the metric that is no number, and a time that is missing, no finite number, or goes down within an
    attempt, is invalid. The report then counts as one without the metric, with one warning for each trial and key, or
    its trial fails. NaN is a number, which each scheduler treats by its own rule. A constrained metric that no report
    has had when the first trial completes is a mistake, too. A trial that was evaluated outside doesn't count there.

    It is deterministic, so that a replay comes to the same.
    """

    def __init__(self, experiment: Experiment, scheduler: Scheduler, rule: StopRule | None, failures: Failures) -> None:
        #: Whether the replay is over. Older problems were logged when they were new.
        self.is_live = False
        #: The error of a metric that the reports lack, so that its name must be a mistake.
        self.missing: MetricMissing | None = None
        self._experiment = experiment
        self._metric, *self._others = self._metrics = experiment.objective.metrics
        self._scheduler = scheduler
        self._time = scheduler.time_attr
        self._read_by_rule = frozenset() if rule is None else rule.reads - {*self._metrics, self._time}
        self._fails = failures.on_invalid_report == "fail"
        self._expects_metric = failures.metric_required == "at_first_report" and not experiment.accept_no_report
        #: Constrained metrics that no report has had yet.
        self._awaited = (
            set()
            if experiment.accept_no_report
            else {constraint.metric for constraint in experiment.objective.constraints}
        )
        #: Whether any report had the scheduler's time.
        self._time_seen = self._time in ("", ITERATION)
        self._times: dict[TrialId, _LastReport] = {}
        #: The keys that were odd in each trial's reports.
        self._told: dict[TrialId, set[str]] = {}

    def look(self, trial: Trial, report: Report) -> Screened | None:
        """Return what can be read of a report if that is not all of it, else None."""
        metrics = report.metrics
        if self._awaited:
            self._awaited -= {key for key in self._awaited if is_number(metrics.get(key))}
        value, time, known = metrics.get(self._metric), metrics.get(self._time), self._times.get(report.trial)
        problem = ""
        if known is not None and time.__class__ is int and time >= known.time and known.attempt == report.attempt:
            # The usual case, and the hot path of a flood.
            known.time = time
        elif self._time:
            problem = self._place(report, time, known)
        if value.__class__ not in _PLAIN or problem:
            return self._look_closely(trial, report, value, problem)
        for key in self._others:
            if metrics.get(key).__class__ not in _PLAIN:
                return self._look_closely(trial, report, value, problem)
        for key in self._read_by_rule:
            if metrics.get(key).__class__ not in _READABLE:
                return self._look_closely(trial, report, value, problem)
        return None

    def forget(self, trial: Trial) -> None:
        """Forget a trial that has ended, once it has shown that a name must be a mistake."""
        is_sign = trial.status is TrialStatus.COMPLETED and trial.reports and not trial.outside
        if self._awaited and is_sign and self.missing is None:
            (constraint, *_) = [
                constraint
                for constraint in self._experiment.objective.constraints
                if constraint.metric in self._awaited
            ]
            self.missing = MetricMissing(
                f"no report has had a number for {constraint.metric!r}, which is to keep to {constraint}, and trial "
                f"{trial.id} is complete; its last report has "
                f"{names_in_words(sorted(trial.last_metrics)) or 'nothing'}: correct the name in metric=, "
                "or have trials report it"
            )
        self._times.pop(trial.id, None)
        self._told.pop(trial.id, None)

    def _place(self, report: Report, time: Any, known: _LastReport | None) -> str:
        """Record the time of a report, or return what is wrong with it."""
        if time.__class__ is not int:
            if time is None:
                if self._time != ITERATION:
                    return f"lacks {self._time!r}, by which {type(self._scheduler).__name__} goes"
                time = report.sequence
            elif not is_number(time) or not math.isfinite(time):
                return f"has {self._time}={name_in_words(time)}, which is not a finite number"
        if known is None or known.attempt != report.attempt:
            self._times[report.trial] = _LastReport(report.attempt, time)
            self._time_seen = True
        elif time < known.time:
            return f"has {self._time}={time!r} after {known.time!r}, and a time must never go down"
        else:
            known.time = time
        return ""

    def _look_closely(self, trial: Trial, report: Report, value: Any, problem: str) -> Screened | None:
        metrics = report.metrics
        self._look_for_names(trial, metrics, value)
        odd = dict(self._odd_values(metrics))
        if problem and (value is not None or self._time in metrics):
            odd[self._time] = problem
        if not odd and not problem:
            return None
        shown = {key: metric for key, metric in metrics.items() if key not in odd}
        if problem:
            shown = {key: metric for key, metric in shown.items() if key not in self._metrics}
        texts = [f"trial {trial.id}: report {report.sequence} {text}" for text in odd.values()]
        self._say(trial, odd, texts)
        return Screened(report._replace(metrics=shown), not problem, texts[0] if texts and self._fails else "")

    def _odd_values(self, metrics: Metrics) -> Iterator[tuple[str, str]]:
        for key in self._metrics:
            value = metrics.get(key)
            if value is not None and not is_number(value):
                yield key, f"has {key}={name_in_words(value)}, which is not a number"
        for key in self._read_by_rule:
            if not isinstance(metrics.get(key), int | float | None):
                yield key, f"has {key}={name_in_words(metrics[key])}, which is not a number"

    def _say(self, trial: Trial, odd: dict[str, str], texts: list[str]) -> None:
        told = self._told.setdefault(trial.id, set())
        for key, text in zip(odd, texts, strict=True):
            if self.is_live and key not in told and not self._fails:
                without = self._experiment.objective if key == self._time else repr(key)
                logger.warning("%s; it counts as a report without %s", text, without)
            told.add(key)

    def _look_for_names(self, trial: Trial, metrics: Metrics, value: Any) -> None:
        """Find out at the first report that the name of the metric, or of the time, must be a mistake."""
        if self.missing is not None or not self._expects_metric:
            return
        lacking = [key for key in self._metrics if key not in metrics]
        if lacking and not self._experiment.metric_seen:
            self.missing = _missing(trial, "metric", lacking[0], metrics)
        elif value is not None and self._time not in metrics and not self._time_seen:
            self.missing = _missing(trial, "time_attr", self._time, metrics)


def _missing(trial: Trial, argument: str, key: str, metrics: Metrics) -> MetricMissing:
    near = difflib.get_close_matches(key, metrics, n=1, cutoff=0.5)
    hint = f" (did you mean {name_in_words(near[0])}?)" if near else ""
    return MetricMissing(
        f"{argument}={key!r} is not in the first report, of trial {trial.id}, which has "
        f"{names_in_words(metrics) or 'nothing'}{hint}: correct the name here or in the trainable, or give "
        "failures=mqtune.Failures(metric_required='eventually') if it comes with later reports only"
    )
