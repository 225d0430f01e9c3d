"""The recorded learning curves of an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mqtune.core.trial import AttemptEnd, Config, Metrics, Trial, TrialId
from mqtune.results.experiments import RecordedReport
from mqtune.results.results import Results


class Curve(NamedTuple):
    """The recorded learning curve of a trial.

    Attributes:
        reports: for each report, the seconds since the report before, and the metrics.
        is_cut: whether the trial might have continued: it was stopped, or has not ended by itself.
        error: the error by which the trial failed, or empty.
        ending_s: seconds from the last report to the trial's end. It is 0 if *is_cut*.
    """

    trial: TrialId
    config: Config
    reports: list[tuple[float, Metrics]]
    is_cut: bool
    error: str
    ending_s: float


class Recorded(NamedTuple):
    """All curves of an experiment, in the order of its trials.

    Attributes:
        left_out: trials without a curve of their own: they were abandoned, changed their config, or continued from
            another trial's checkpoint.
        saves: whether any report came with a checkpoint.
    """

    curves: list[Curve]
    left_out: list[TrialId]
    saves: bool


def timed_reports(results: Results) -> Iterator[tuple[RecordedReport, float]]:
    """Yield each report with the seconds since the report before, or since its attempt's start.

    Raises:
        CopyIncomplete: as ``Results.reports``.
    """
    last: dict[TrialId, tuple[int, float]] = {}
    for report in results.reports():
        attempt, before = last.get(report.trial, (0, 0.0))
        if attempt != report.attempt:
            started = results.experiment.trials[report.trial].attempts[report.attempt - 1].started_at
            before = report.timestamp if started is None else started
        last[report.trial] = (report.attempt, report.timestamp)
        yield report, max(0.0, report.timestamp - before)


def recorded_curves(results: Results, *, trust_rules: bool) -> Recorded:
    """Return an experiment's curves, without reports that a later attempt repeated.

    Args:
        trust_rules: whether to treat trials that a stop rule ended as trials that ended by themselves.

    Raises:
        CopyIncomplete: as ``Results.reports``.
    """
    trials = results.experiment.trials
    done: dict[TrialId, list[tuple[RecordedReport, float]]] = {trial: [] for trial in trials}
    saves = False
    for report, seconds in timed_reports(results):
        so_far = done[report.trial]
        if so_far and so_far[-1][0].attempt != report.attempt:
            _drop_lost(so_far, trials[report.trial].attempts[report.attempt - 1].checkpoint)
        so_far.append((report, seconds))
        saves = saves or bool(report.checkpoint)
    ran = [trial for trial in trials.values() if any(attempt.started_at is not None for attempt in trial.attempts)]
    kept = [trial for trial in ran if _has_own_curve(trial)]
    curves = [_curve(trial, done[trial.id], trust_rules=trust_rules) for trial in kept]
    return Recorded(curves, [trial.id for trial in ran if trial not in kept], saves)


def _drop_lost(so_far: list[tuple[RecordedReport, float]], checkpoint: str) -> None:
    """Drop reports after the checkpoint from which the next attempt started.

    An empty *checkpoint* drops all. If no report came with the checkpoint, it was saved at the end of the attempt, and
    nothing is dropped.
    """
    if not checkpoint:
        so_far.clear()
    saving = [index for index, (report, _) in enumerate(so_far) if report.checkpoint == checkpoint]
    if saving:
        del so_far[saving[-1] + 1 :]


def _has_own_curve(trial: Trial) -> bool:
    attempts = trial.attempts
    is_own = all(attempt.source in (None, trial.id) and attempt.config in ({}, trial.config) for attempt in attempts)
    return is_own and not trial.is_abandoned


def _curve(trial: Trial, reports: list[tuple[RecordedReport, float]], *, trust_rules: bool) -> Curve:
    attempt = trial.attempts[-1]
    was_stopped = attempt.stop is not None and not (trust_rules and attempt.stop.by == "stop rule")
    is_cut = was_stopped or attempt.end not in (AttemptEnd.COMPLETED, AttemptEnd.FAILED)
    error = attempt.error or attempt.error_type or "it has failed" if attempt.end is AttemptEnd.FAILED else ""
    last = reports[-1][0].timestamp if reports else attempt.started_at
    ending_s = 0.0 if attempt.ended_at is None or last is None or is_cut else max(0.0, attempt.ended_at - last)
    timed = [(seconds, report.metrics) for report, seconds in reports]
    return Curve(trial.id, trial.config, timed, is_cut, error, ending_s)
