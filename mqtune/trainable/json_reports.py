"""Reads reports from lines of output that are JSON objects.

This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Final

#: The value of a script's ``metrics`` that asks for JSON lines instead of patterns.
JSON_LINES: Final = "json"


class JsonReports:
    """Reads reports from lines that are JSON objects with at least one of the optimised metrics.

    Other objects, such as log records, are no reports.

    Args:
        metric: names of the optimised metrics.
    """

    def __init__(self, metric: Collection[str] = ()) -> None:
        self._metric = metric

    def read(self, line: str) -> Iterator[dict[str, int | float | str]]:
        """Yield the report in a line, if the line is one."""
        if not line.lstrip().startswith("{"):
            return
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return
        if any(name in values for name in self._metric):
            yield values

    def finish(self) -> Iterator[dict[str, int | float | str]]:
        """Yield nothing: each line is complete."""
        yield from ()
