"""Importer and exporter of Syne Tune's result folders. It needs no Syne Tune."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mqtune import Results, TrialStatus
from mqtune.extend import (
    ConfigurationError,
    Foreign,
    ForeignTrial,
    Metrics,
    RecordedReport,
    Row,
    cell_value,
    flatten,
    nested,
)

_METADATA: Final = "metadata.json"
_TABLE: Final = "results.csv"
#: Syne Tune's decision on the last report of a trial with this status.
_DECISIONS: Final = {TrialStatus.EARLY_STOPPED: "STOP", TrialStatus.PAUSED: "PAUSE"}


def export(results: Results, path: Path) -> None:
    """Write an experiment for Syne Tune's ``load_experiment``, without late reports.

    There, trials count from 0.

    Raises:
        ConfigurationError: the path exists.
        OSError: the folder can't be written.
    """
    if path.exists():
        raise ConfigurationError(f"{path} is there already; give the name of a new folder")
    path.mkdir(parents=True)
    names = [*dict.fromkeys(name for row in _rows(results) for name in row)]
    with (
        zipfile.ZipFile(path / f"{_TABLE}.zip", "w", zipfile.ZIP_DEFLATED) as packed,
        packed.open(_TABLE, "w", force_zip64=True) as file,
        io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="") as text,
    ):
        table = csv.DictWriter(text, names)
        table.writeheader()
        table.writerows(_rows(results))
    (path / _METADATA).write_text(json.dumps(_metadata(results)), encoding="utf-8")


def _metadata(results: Results) -> dict[str, object]:
    objective = results.experiment.objective
    return {
        "metric_names": list(objective.metrics),
        "metric_mode": objective.modes[0] if objective.is_single else list(objective.modes),
        "entrypoint": results.name,
        "backend": "mqtune",
        "scheduler_name": results.definition["scheduler"].get("scheduler", ""),
        "st_tuner_creation_timestamp": results.experiment.created_at,
        "st_tuner_start_timestamp": results.experiment.created_at,
    }


def _rows(results: Results) -> Iterator[Row]:
    """Yield a row for each report, in the order of decisions."""
    counts: dict[str, int] = {}
    for report in results.reports():
        if not report.late:
            counts[report.trial] = number = counts.get(report.trial, 0) + 1
            yield _row(results, report, number)


def _row(results: Results, report: RecordedReport, number: int) -> Row:
    trial = results.experiment.trials[report.trial]
    decision = _DECISIONS.get(trial.status, "CONTINUE") if number == trial.reports else "CONTINUE"
    began = results.experiment.created_at or report.timestamp
    return {
        **dict(flatten(report.metrics)),
        "st_worker_iter": number - 1,
        "st_worker_timestamp": report.timestamp,
        "st_tuner_time": report.timestamp - began,
        "st_decision": decision,
        "st_status": "InProgress",
        "trial_id": int(trial.id) - 1,
        **{f"config_{name}": value for name, value in flatten(trial.config)},
    }


def recognizes(source: str) -> bool:
    """Return whether a folder has an experiment of Syne Tune."""
    path = Path(source)
    return (path / _METADATA).is_file() and bool(_table_of(path))


def read(source: str, metric: str, mode: str, study: str) -> Foreign:  # noqa: ARG001 - importers are called alike
    """Return an experiment of Syne Tune. Trials that were paused at the end count as stopped early.

    If *metric* or *mode* is empty, the folder's is used. *study* is ignored.

    Raises:
        ConfigurationError: the metric or mode is unknown, or a file is unreadable.
    """
    path = Path(source)
    try:
        metadata = json.loads((path / _METADATA).read_text(encoding="utf-8"))
        rows = [*_read_table(path)]
    except (ValueError, OSError, LookupError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{path} can't be read: {error}") from error
    names, modes = metadata.get("metric_names"), metadata.get("metric_mode")
    metrics: str | list[str] = metric or (names[0] if isinstance(names, list) and len(names) == 1 else names) or ""
    mode_ = mode or (modes[0] if isinstance(modes, list) and len(modes) == 1 else modes) or ""
    if not metrics or not mode_:
        raise ConfigurationError(
            f"{path} does not say what it optimises: give --metric NAME, and --mode min or --mode max"
        )
    began = float(metadata.get("st_tuner_start_timestamp") or metadata.get("st_tuner_creation_timestamp") or 0)
    by_trial: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_trial.setdefault(row.get("trial_id", ""), []).append(row)
    return Foreign("syne-tune", path.name, metrics, mode_, [_trial(rows, began) for rows in by_trial.values()])


def _table_of(path: Path) -> Path | None:
    return next((table for name in (f"{_TABLE}.zip", _TABLE) if (table := path / name).is_file()), None)


def _read_table(path: Path) -> Iterator[dict[str, str]]:
    table = _table_of(path) or path / _TABLE
    if table.suffix != ".zip":
        with table.open(encoding="utf-8", newline="") as text:
            yield from csv.DictReader(text)
        return
    with zipfile.ZipFile(table) as packed, packed.open(packed.namelist()[0]) as file:
        yield from csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline=""))


def _trial(rows: list[dict[str, str]], began: float) -> ForeignTrial:
    decision = rows[-1].get("st_decision", "")
    is_stopped = decision in _DECISIONS.values()
    status = TrialStatus.EARLY_STOPPED if is_stopped else TrialStatus.COMPLETED
    config = nested(
        {
            name.removeprefix("config_"): cell_value(text)
            for name, text in rows[-1].items()
            if name.startswith("config_") and text
        }
    )
    reports = [(began + float(row.get("st_tuner_time") or 0), _metrics(row)) for row in rows]
    return ForeignTrial(config, reports, status, "it was paused" if decision == "PAUSE" else "")


def _metrics(row: dict[str, str]) -> Metrics:
    own = ("st_", "config_", "trial_id")
    return {name: cell_value(value) for name, value in row.items() if value and not name.startswith(own)}
