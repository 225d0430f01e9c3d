"""Finds invalid values in reports, before scheduler, searcher and stop rule get them."""

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
#: The types of values that a stop rule can read: a bool counts as 0 or 1, and None as missing.
_READABLE: Final = frozenset({int, float, bool, type(None)})


@dataclass(slots=True)
class _LastReport:
    """A trial's last report: its attempt, and the value of the scheduler's time."""

    attempt: int
    time: float


class Screened(NamedTuple):
    """A report whose invalid values were removed."""

    report: Report
    #: Whether the time is valid. The scheduler gets only reports with a valid time.
    has_time: bool
    #: Why the trial fails because of the report. Empty if it doesn't fail.
    fails: str


class Screening:
    """Checks each report's metrics and time, and removes invalid values.

    The *time* is the metric by which the scheduler orders a trial's reports, such as ``training_iteration``. A metric
    is invalid if it is not a number. A time is invalid if it is missing or not a finite number, or if it decreases
    within an attempt. An invalid metric is removed from the report. With an invalid time, all metrics of the objective
    are removed. A warning is logged once for each trial and key. With ``on_invalid_report="fail"`` the trial fails
    instead. NaN is a number: each scheduler has its own rule for it.

    If the reports lack the metric, the time or a constrained metric, its name may be mistyped: then ``missing`` is set.

    The same reports give the same results, so that a replay repeats them.
    """

    def __init__(self, experiment: Experiment, scheduler: Scheduler, rule: StopRule | None, failures: Failures) -> None:
        #: Whether the replay is over. Older problems were logged when they were new.
        self.is_live = False
        #: The error that a metric's name is probably mistyped, or None.
        self.missing: MetricMissing | None = None
        self._experiment = experiment
        self._metric, *self._others = self._metrics = experiment.objective.metrics
        self._scheduler = scheduler
        self._time = scheduler.time_attr
        self._read_by_rule = frozenset() if rule is None else rule.reads - {*self._metrics, self._time}
        self._fails = failures.on_invalid_report == "fail"
        self._expects_metric = failures.metric_required == "at_first_report" and not experiment.accept_no_report
        #: Constrained metrics that no report has had yet.
        self._unseen_constrained = (
            set()
            if experiment.accept_no_report
            else {constraint.metric for constraint in experiment.objective.constraints}
        )
        #: Whether any report had the scheduler's time.
        self._time_seen = self._time in ("", ITERATION)
        self._last_reports: dict[TrialId, _LastReport] = {}
        #: By trial, the keys that had invalid values.
        self._warned: dict[TrialId, set[str]] = {}

    def screen(self, trial: Trial, report: Report) -> Screened | None:
        """Return a report without its invalid values. Return None if all values are valid."""
        metrics = report.metrics
        if self._unseen_constrained:
            self._unseen_constrained -= {key for key in self._unseen_constrained if is_number(metrics.get(key))}
        value, time, known = metrics.get(self._metric), metrics.get(self._time), self._last_reports.get(report.trial)
        problem = ""
        if known is not None and time.__class__ is int and time >= known.time and known.attempt == report.attempt:
            # The usual case, and the hot path of a flood.
            known.time = time
        elif self._time:
            problem = self._check_time(report, time, known)
        if value.__class__ not in _PLAIN or problem:
            return self._check_closely(trial, report, value, problem)
        for key in self._others:
            if metrics.get(key).__class__ not in _PLAIN:
                return self._check_closely(trial, report, value, problem)
        for key in self._read_by_rule:
            if metrics.get(key).__class__ not in _READABLE:
                return self._check_closely(trial, report, value, problem)
        return None

    def forget(self, trial: Trial) -> None:
        """Forget an ended trial.

        If it completed without a constrained metric, set the error ``missing``.
        """
        is_sign = trial.status is TrialStatus.COMPLETED and trial.reports and not trial.outside
        if self._unseen_constrained and is_sign and self.missing is None:
            (constraint, *_) = [
                constraint
                for constraint in self._experiment.objective.constraints
                if constraint.metric in self._unseen_constrained
            ]
            self.missing = MetricMissing(
                f"no report has had a number for {constraint.metric!r}, which has the bound {constraint}, and trial "
                f"{trial.id} is complete; its last report has "
                f"{names_in_words(sorted(trial.last_metrics)) or 'nothing'}: correct the name in metric=, "
                "or have trials report it"
            )
        self._last_reports.pop(trial.id, None)
        self._warned.pop(trial.id, None)

    def _check_time(self, report: Report, time: Any, known: _LastReport | None) -> str:
        """Record the time of a report. If it is invalid, return the problem in words instead."""
        if time.__class__ is not int:
            if time is None:
                if self._time != ITERATION:
                    return f"lacks {self._time!r}, the time of {type(self._scheduler).__name__}"
                time = report.sequence
            elif not is_number(time) or not math.isfinite(time):
                return f"has {self._time}={name_in_words(time)}, which is not a finite number"
        if known is None or known.attempt != report.attempt:
            self._last_reports[report.trial] = _LastReport(report.attempt, time)
            self._time_seen = True
        elif time < known.time:
            return f"has {self._time}={time!r} after {known.time!r}, and a time must never go down"
        else:
            known.time = time
        return ""

    def _check_closely(self, trial: Trial, report: Report, value: Any, problem: str) -> Screened | None:
        metrics = report.metrics
        self._find_mistyped_names(trial, metrics, value)
        invalid = dict(self._find_invalid(metrics))
        if problem and (value is not None or self._time in metrics):
            invalid[self._time] = problem
        if not invalid and not problem:
            return None
        valid = {key: metric for key, metric in metrics.items() if key not in invalid}
        if problem:
            valid = {key: metric for key, metric in valid.items() if key not in self._metrics}
        texts = [f"trial {trial.id}: report {report.sequence} {text}" for text in invalid.values()]
        self._warn(trial, invalid, texts)
        return Screened(report._replace(metrics=valid), not problem, texts[0] if texts and self._fails else "")

    def _find_invalid(self, metrics: Metrics) -> Iterator[tuple[str, str]]:
        """Yield the keys of invalid values, and the problem with each in words."""
        for key in self._metrics:
            value = metrics.get(key)
            if value is not None and not is_number(value):
                yield key, f"has {key}={name_in_words(value)}, which is not a number"
        for key in self._read_by_rule:
            if not isinstance(metrics.get(key), int | float | None):
                yield key, f"has {key}={name_in_words(metrics[key])}, which is not a number"

    def _warn(self, trial: Trial, invalid: dict[str, str], texts: list[str]) -> None:
        warned = self._warned.setdefault(trial.id, set())
        for key, text in zip(invalid, texts, strict=True):
            if self.is_live and key not in warned and not self._fails:
                without = self._experiment.objective if key == self._time else repr(key)
                logger.warning("%s; it counts as a report without %s", text, without)
            warned.add(key)

    def _find_mistyped_names(self, trial: Trial, metrics: Metrics, value: Any) -> None:
        """Set ``missing`` if the first report lacks the metric or the time."""
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
