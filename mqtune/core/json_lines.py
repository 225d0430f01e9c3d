"""Logs as JSON lines, with the experiment, trial, attempt and worker of each record."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, Literal

LogFormat = Literal["text", "json"]
#: Fields of a record, set by its ``extra`` or by ``logged_as``.
FIELDS: Final = ("experiment", "trial", "attempt", "worker", "action")
_about: ContextVar[Mapping[str, object]] = ContextVar("mqtune_log_fields", default={})  # noqa: B039 - nobody changes it


@contextlib.contextmanager
def logged_as(**fields: object) -> Iterator[None]:
    """Add these fields to all log records of this thread until the block ends."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON.

    The fields are ``time``, ``level``, ``logger``, ``message``, ``FIELDS`` and ``traceback``.

    Args:
        always: fields of every record.
    """

    def __init__(self, **always: object) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. ``FIELDS`` that the record lacks are left out."""
        own = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._always,
            **_about.get(),
            **own,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
