"""An experiment as other programs read it: a row a trial, CSV, and JSON that keeps to the standard."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mqtune.core.experiment import Experiment
from mqtune.core.trial import Trial

__all__ = ["csv_text", "json_text", "replace_file", "trial_rows"]

#: What a trial is, then what it was given, then what it reported.
_COLUMN_GROUPS: Final = {"config": 1, "metrics": 2}


def trial_rows(experiment: Experiment) -> list[dict[str, Any]]:
    """Return a flat row for each trial, with the metrics of the report that had its best value."""
    return [_trial_row(experiment, trial) for trial in experiment.trials.values()]


def _trial_row(experiment: Experiment, trial: Trial) -> dict[str, Any]:
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
        "best": trial.best_value if trial.has_metric else None,
        "last": trial.last_metrics.get(experiment.metric),
        "avg": trial.average if trial.has_metric else None,
        **({"tags": list(trial.labels.tags)} if trial.labels.tags else {}),
        **({"notes": trial.labels.notes} if trial.labels.notes else {}),
        **_flat("config", trial.config),
        **_flat("metrics", trial.best_metrics),
    }


def _flat(prefix: str, value: Mapping[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}.{key}"
        if isinstance(inner, Mapping):
            found |= _flat(name, inner)
        else:
            found[name] = inner
    return found


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV under one head; NaN is nan, infinities are inf and -inf, and what a row lacks is empty."""
    names = {name: None for row in rows for name in row}
    columns = sorted(names, key=lambda name: _COLUMN_GROUPS.get(name.partition(".")[0], 0))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: json_text(v) if isinstance(v, list | tuple | bytes) else v for k, v in row.items()})
    return text.getvalue()


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return *value* as JSON; NaN and the infinities become "NaN", "Infinity" and "-Infinity", bytes become text.

    That is how the JSON of Protocol Buffers has them; JSON itself has no such numbers, and float() reads these.
    """
    return json.dumps(_standard(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _standard(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    # Comprehensions would take twice the frames, and values that can be reported may be nested 500 deep.
    if isinstance(value, Mapping):
        return dict(zip(map(str, value), map(_standard, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return list(map(_standard, value))
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def replace_file(path: Path, parts: Iterable[str]) -> None:
    """Write a file in one step: who reads it sees the old one or the new one, and a failure leaves the old one.

    Raises:
        OSError: the folder can't be written.
    """
    aside = path.with_name(f"{path.name}.new")
    try:
        # A surrogate, as from an argument that was no UTF-8, must not cost the whole file.
        with aside.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.writelines(parts)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
