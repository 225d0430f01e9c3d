"""All that results say of an experiment, as plain values that JSON can carry."""

from __future__ import annotations

import json
import math
from typing import Any

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


def _trial(trial: Any) -> dict[str, Any]:
    return {
        "id": trial.id,
        "config": trial.config,
        "status": trial.status.value,
        "reason": trial.reason,
        "history": [[step.status.value, step.at, step.reason, step.by] for step in trial.history],
        "parent": trial.parent,
        "tags": trial.labels.tags,
        "notes": trial.labels.notes,
        "checkpoint": trial.checkpoint,
        "checkpoints": [[saved.id, saved.at, saved.metrics] for saved in trial.checkpoints.values()],
        "run_s": trial.run_s,
        "reports": trial.reports,
        "late_reports": trial.late_reports,
        "failures": trial.failures,
        "best_value": trial.best_value,
        "best_metrics": trial.best_metrics,
        "last_metrics": trial.last_metrics,
        "average": trial.average,
        "attempts": [_attempt(attempt) for attempt in trial.attempts],
    }


def _attempt(attempt: Any) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "config": attempt.config,
        "checkpoint": attempt.checkpoint,
        "source": attempt.source,
        "worker": attempt.worker,
        "staged_at": attempt.staged_at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "end": None if attempt.end is None else attempt.end.value,
        "intent": attempt.intent.value,
        "stop": attempt.stop,
        "error_type": attempt.error_type,
        "error": attempt.error,
        "reports": attempt.reports,
    }
