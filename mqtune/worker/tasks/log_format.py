"""A worker's log as JSON lines, including Celery's records about tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from mqtune.core.json_lines import JsonLines


def format_handlers(worker: str, *, logger: logging.Logger, **_: object) -> None:
    """Make a logger's handlers write JSON lines with the worker's name, on Celery's signals."""
    for handler in logger.handlers:
        handler.setFormatter(JsonLines(worker=worker))
        handler.addFilter(_with_attempt)


def _with_attempt(record: logging.LogRecord) -> bool:
    """Add experiment, trial and attempt to Celery's record about a task, from the task's id."""
    asked = record.args if isinstance(record.args, Mapping) else {}
    experiment, _, rest = str(asked.get("id", "")).partition("/")
    trial, _, attempt = rest.partition("/")
    if attempt.isdecimal():
        vars(record).update(experiment=experiment, trial=trial, attempt=int(attempt))
    return True
