"""All that results say of an experiment, as plain values that JSON can carry."""

from __future__ import annotations

import json
import math
from typing import Any, Final

__all__ = ["said", "text_of"]


def said(results: Any) -> dict[str, Any]:
    """Return what the results of an experiment say."""
    found = {
        "summary": results.summary(),
        "trials": [_trial(result.trial) for result in results],
        "reports": [[r.trial, r.attempt, r.sequence, r.metrics["loss"], r.late] for r in results.reports()],
    }
    plain: dict[str, Any] = json.loads(text_of(found))
    return plain


def text_of(said: dict[str, Any]) -> str:
    """Return the text that a file keeps: NaN stands as text, as it equals nothing, itself included."""
    return json.dumps(_plain(said), sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


#: What stands in a file as it is.
_OF_TRIAL: Final = "id config reason parent checkpoint run_s reports late_reports failures best_value best_metrics last_metrics average"
_OF_ATTEMPT: Final = (
    "number config checkpoint source worker queued_at started_at ended_at stop error_type error reports"
)


def _trial(trial: Any) -> dict[str, Any]:
    return {
        **{name: getattr(trial, name) for name in _OF_TRIAL.split()},
        "status": trial.status.value,
        "history": [[step.status.value, step.at, step.reason, step.by] for step in trial.history],
        "tags": trial.labels.tags,
        "notes": trial.labels.notes,
        "checkpoints": [[saved.id, saved.at, saved.metrics] for saved in trial.checkpoints.values()],
        "attempts": [_attempt(attempt) for attempt in trial.attempts],
    }


def _attempt(attempt: Any) -> dict[str, Any]:
    plain = {name: getattr(attempt, name) for name in _OF_ATTEMPT.split()}
    return {**plain, "end": None if attempt.end is None else attempt.end.value, "intent": attempt.intent.value}
