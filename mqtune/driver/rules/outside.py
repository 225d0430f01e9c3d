"""Trials that a person evaluates outside, without a worker: their reports and time limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

from mqtune.core.codec import decode_value, pack_metrics
from mqtune.core.errors import ConfigurationError, ReportTooLarge
from mqtune.core.events import AttemptEnded, Told
from mqtune.core.experiment import Experiment
from mqtune.core.text import name_in_words, names_in_words
from mqtune.core.trial import (
    ITERATION,
    TIME_THIS_ITER,
    TIME_TOTAL,
    AttemptEnd,
    Metrics,
    Trial,
    TrialId,
    TrialStatus,
    is_number,
)
from mqtune.driver.writing.actions import Stage, Writing, Written, record

#: Maximum number of trials named in a message.
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Journal a report of a trial that is evaluated outside."""

    trial: TrialId
    metrics: Metrics
    #: Whether this is the last report, which completes the trial.
    ends: bool
    #: Stages the trial in the same step if it is new.
    stage: Stage | None = None
    request: str = ""

    def write(self, to: Writing) -> list[Written]:
        if self.stage is not None:
            staged, _ = self.stage.prepare(to)
            told = self._told(to, 1, 1, counted(self.metrics, {}, 0.0))
            return record(to, staged, told, *self._end(to, 1))
        trial = to.experiment.trials[self.trial]
        attempt = trial.attempt
        since = trial.last_timestamp if attempt.reports else attempt.queued_at
        metrics = counted(self.metrics, trial.last_metrics, max(0.0, to.at - since))
        told = self._told(to, attempt.number, attempt.reports + 1, metrics)
        return record(to, told, *self._end(to, attempt.number))

    def _told(self, to: Writing, attempt: int, sequence: int, metrics: Metrics) -> Told:
        return Told(
            trial=self.trial,
            attempt=attempt,
            sequence=sequence,
            metrics=metrics,
            at=to.at,
            cursor=to.cursor,
            ends=self.ends,
            request=self.request,
        )

    def _end(self, to: Writing, attempt: int) -> Iterator[AttemptEnded]:
        if self.ends:
            yield AttemptEnded(trial=self.trial, attempt=attempt, end=AttemptEnd.COMPLETED, at=to.at, cursor=to.cursor)


@dataclass(frozen=True, slots=True)
class Expire:
    """End an outside trial as FAILED, because its result has not come within its ``timeout_s``."""

    trial: Trial

    def write(self, to: Writing) -> list[Written]:
        trial = self.trial
        ended = AttemptEnded(
            trial=trial.id,
            attempt=trial.attempt.number,
            end=AttemptEnd.FAILED,
            at=to.at,
            error_type="AttemptTimeout",
            error=f"nobody has told its result within its timeout_s of {trial.timeout_s:g} s",
            outlived=True,
            cursor=to.cursor,
        )
        return record(to, ended)


def expired(experiment: Experiment, now: float) -> Iterator[Expire]:
    """Yield an action for each outside trial past its ``timeout_s``.

    *now* is in seconds since the epoch.
    """
    for trial in list(experiment.outside.values()):
        if trial.timeout_s is not None and now > trial.attempt.queued_at + trial.timeout_s:
            yield Expire(trial)


def counted(metrics: Metrics, last: Metrics, took_s: float) -> Metrics:
    """Return a report's metrics with the iteration and times, as a worker's trial reports them.

    Values in *metrics* take precedence. *last* has the previous report's metrics, and *took_s* is the time since that
    report, in seconds.
    """
    iteration, total_s = last.get(ITERATION, 0), last.get(TIME_TOTAL, 0.0)
    return {
        ITERATION: 1 + (iteration if is_number(iteration) else 0),
        TIME_THIS_ITER: took_s,
        TIME_TOTAL: took_s + (total_s if is_number(total_s) else 0.0),
        **metrics,
    }


def check_told(metrics: object, experiment: Experiment, time_attr: str) -> Metrics:
    """Return the metrics of an outside report as plain values.

    *time_attr* is the name of the metric that the scheduler uses as time, or empty.

    Raises:
        ConfigurationError: they are not a dict of reportable values, are too large, or lack a number for the objective
            or the scheduler's time.
    """
    if not isinstance(metrics, dict):
        raise ConfigurationError(f"metrics={metrics!r:.80} is not a dict of metrics, such as {{'loss': 0.1}}")
    try:
        _, plain = decode_value(pack_metrics(0.0, metrics))
    except (TypeError, ReportTooLarge) as error:
        raise ConfigurationError(str(error).replace("report:", "tell:", 1)) from None
    metrics = cast("Metrics", plain)
    for name in experiment.objective.metrics if experiment.objective.metrics != ("",) else ():
        if not is_number(metrics.get(name)):
            mistake = (
                f"{name}={name_in_words(metrics[name])}, which is not a number" if name in metrics else f"no {name!r}"
            )
            raise ConfigurationError(
                f"tell has {mistake}: give a number for {experiment.objective}; it has "
                f"{names_in_words(metrics) or 'nothing'}"
            )
    for name in {time_attr, ITERATION} - {""}:
        time = metrics.get(name)
        if (name in metrics or name != ITERATION) and not (is_number(time) and math.isfinite(time)):
            raise ConfigurationError(f"tell has {name}={name_in_words(time)}: give the step as a finite number")
    return metrics


def is_repeated(trial: Trial, metrics: Metrics, time_attr: str) -> bool:
    """Whether an outside report has the same step as the trial's last report.

    Raises:
        ConfigurationError: its step is lower than the last report's.
    """
    name = time_attr or ITERATION
    last, time = trial.last_metrics.get(name), metrics.get(name)
    if time is None or not is_number(last) or not is_number(time):
        return False
    if time < last:
        raise ConfigurationError(
            f"tell has {name}={time:g} after {last:g} of trial {trial.id}, and a step must never go down"
        )
    return bool(time == last)


def has_told_all(trial: Trial, metrics: Metrics) -> bool:
    """Whether a trial has completed, and its last report had these metrics."""
    last = trial.last_metrics
    return trial.status is TrialStatus.COMPLETED and all(
        name in last and last[name] == metrics[name] for name in metrics
    )


def why_over(trial: Trial) -> str:
    """Return the status of an outside trial in words, with the reason.

    Empty if it is RUNNING or COMPLETED.
    """
    if trial.status in (TrialStatus.RUNNING, TrialStatus.COMPLETED):
        return ""
    return f"trial {trial.id} is {trial.status.name}{trial.reason and f': {trial.reason}'}"


def waits_outside(experiment: Experiment) -> str:
    """Return in words which outside trials an experiment waits for.

    Empty if it waits for none of them.
    """
    ids = list(experiment.outside)
    if not ids:
        return ""
    shown = ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")
    which = f"trials {shown}, which are" if len(ids) > 1 else f"trial {shown}, which is"
    return (
        f"the results of {which} evaluated outside: tell them (mqtune tell {experiment.name} TRIAL METRIC=VALUE), or "
        f"end trials (mqtune stop {experiment.name} TRIAL)"
    )
