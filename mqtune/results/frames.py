"""Tables of an experiment's trials, attempts and reports: plain rows, and data frames."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple

from mqtune.core import checks
from mqtune.core.errors import MqtuneError
from mqtune.core.experiment import Experiment
from mqtune.core.text import flatten
from mqtune.core.trial import Attempt, Trial, TrialId

Row = dict[str, object]
Rows = Literal["trials", "attempts", "reports"]
Library = Literal["pandas", "polars"]

_COLUMN_GROUPS: Final = {"config": 1, "metrics": 2}


def trial_rows(experiment: Experiment) -> list[Row]:
    """Return a flat dict for each trial, with keys such as ``config.lr`` and ``metrics.loss``.

    The metrics are those of its best report.
    """
    front = {trial.id for trial in experiment.pareto_front}
    return [_trial_row(experiment, trial, front) for trial in list(experiment.trials.values())]


def _trial_row(experiment: Experiment, trial: Trial, front: Container[TrialId]) -> Row:
    started = [attempt.started_at for attempt in trial.attempts if attempt.started_at is not None]
    return {
        "trial": trial.id,
        "status": trial.status.value,
        "reason": trial.reason,
        "attempts": len(trial.attempts),
        "reports": trial.reports,
        "late_reports": trial.late_reports,
        "worker": trial.attempts[-1].worker if trial.attempts else "",
        "started_at": started[0] if started else None,
        "ended_at": trial.attempts[-1].ended_at if trial.attempts else None,
        **({"feasible": experiment.is_feasible(trial)} if experiment.objective.constraints else {}),
        **(_ranking(experiment.metric, trial) if experiment.objective.is_single else {"on_front": trial.id in front}),
        **({"tags": list(trial.labels.tags)} if trial.labels.tags else {}),
        **({"notes": trial.labels.notes} if trial.labels.notes else {}),
        **_prefixed("config", trial.config),
        **_prefixed("metrics", trial.best_metrics),
    }


def _ranking(metric: str, trial: Trial) -> Row:
    return {
        "best": trial.best_value if trial.has_metric else None,
        "last": trial.last_metrics.get(metric),
        "avg": trial.average if trial.has_metric else None,
    }


def attempt_rows(experiment: Experiment) -> Iterator[Row]:
    """Yield a flat dict for each attempt, trial by trial. Unknown values are None or empty."""
    for trial in list(experiment.trials.values()):
        for attempt in list(trial.attempts):
            yield _attempt_row(trial, attempt)


def _attempt_row(trial: Trial, attempt: Attempt) -> Row:
    return {
        "trial": trial.id,
        "attempt": attempt.number,
        "queued_at": attempt.queued_at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "end": None if attempt.end is None else attempt.end.value,
        "reason": attempt.stop.reason if attempt.stop else "",
        "reports": attempt.reports,
        "worker": attempt.worker,
        "host": attempt.host,
        "queue": attempt.queue,
        "devices": ",".join(attempt.devices),
        "pid": attempt.pid,
        "checkpoint": attempt.checkpoint,
        "source": attempt.source or "",
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "error_type": attempt.error_type,
        "error": attempt.error,
        **_prefixed("usage", attempt.usage),
        **_prefixed("config", attempt.config),
    }


def report_rows(reports: Iterable[NamedTuple]) -> Iterator[Row]:
    """Yield a flat dict for each recorded report."""
    for report in reports:
        row = report._asdict()
        metrics = row.pop("metrics")
        yield {**row, **_prefixed("metrics", metrics)}


def _prefixed(group: str, values: Mapping[str, object]) -> Row:
    return {name: value for name, value in flatten(values, f"{group}.") if value != {}}


def in_order(names: Iterable[str]) -> list[str]:
    """Sort column names: first those of the trial, then of its config, then of its metrics."""
    return sorted(names, key=lambda name: _COLUMN_GROUPS.get(name.partition(".")[0], 0))


def frame_of(rows: Iterable[Row], library: Library) -> Any:
    """Return rows as a data frame. Missing values are null.

    Raises:
        ConfigurationError: *library* is invalid.
        MqtuneError: the library is not installed.
    """
    checks.one_of("dataframe", "library", library, ("pandas", "polars"))
    try:
        module = import_module(library)
    except ImportError:
        raise MqtuneError(f"dataframe() needs {library}: pip install {library}, or use to_csv()") from None
    # The frame is built from columns, as a million dicts would take gigabytes.
    columns = _columns(rows)
    frame = {name: columns[name] for name in in_order(columns)}
    # The options of a choice may have several types, which a strict column of polars would refuse.
    return module.DataFrame(frame) if library == "pandas" else module.DataFrame(frame, strict=False)


def _columns(rows: Iterable[Row]) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {}
    count = 0
    for row in rows:
        for name, value in row.items():
            column = columns.setdefault(name, [])
            column.extend([None] * (count - len(column)))
            column.append(value)
        count += 1
    for column in columns.values():
        column.extend([None] * (count - len(column)))
    return columns
