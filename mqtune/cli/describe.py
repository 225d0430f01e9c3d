"""The JSON of experiments, trials and attempts. docs/cli.md has the schema."""

from __future__ import annotations

from mqtune.cli.machine_use import described_use, usage_of
from mqtune.cli.place import View
from mqtune.core.trial import Attempt, FurtherTask, Trial
from mqtune.core.usage import LiveUse


def described_experiment(view: View) -> dict[str, object]:
    """Return an experiment's summary for JSON, with its state in words and its place."""
    return {**view.results.summary(), "state": view.state, "place": view.place}


def described_trial(trial: Trial, use: LiveUse | None = None) -> dict[str, object]:
    """Return a trial for JSON. *use* is how its last attempt uses the machine now, or None."""
    last = trial.attempts[-1] if trial.attempts else None
    return {
        "trial": trial.id,
        "status": trial.status.value,
        "reason": trial.reason,
        "config": trial.config,
        "best": trial.best_value if trial.has_metric else None,
        "metrics": trial.best_metrics,
        "last_metrics": trial.last_metrics,
        "reports": trial.reports,
        "late_reports": trial.late_reports,
        "parent": trial.parent,
        "checkpoint": trial.checkpoint,
        "tags": list(trial.labels.tags),
        "notes": trial.labels.notes,
        "attempts": [_attempt(attempt, use if attempt is last else None) for attempt in trial.attempts],
    }


def _attempt(attempt: Attempt, use: LiveUse | None) -> dict[str, object]:
    return {
        "attempt": attempt.number,
        "worker": attempt.worker,
        "host": attempt.host,
        "devices": list(attempt.devices),
        "pid": attempt.pid,
        "queued_at": attempt.queued_at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "end": None if attempt.end is None else attempt.end.value,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "error": attempt.error,
        "retired": attempt.retired,
        "checkpoint": attempt.checkpoint,
        "source": attempt.source,
        "stdout": attempt.stdout_path,
        "stderr": attempt.stderr_path,
        "seats": [_described(task) for task in attempt.further_tasks],
        "usage": usage_of(attempt, use),
        "use": described_use(use),
    }


def _described(task: FurtherTask) -> dict[str, object]:
    files = {"stdout": task.stdout_path, "stderr": task.stderr_path}
    return {"seat": task.number, "worker": task.worker, "host": task.host, "devices": list(task.devices), **files}
