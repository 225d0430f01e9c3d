"""Reads reports from lines of output that are JSON objects.

This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Final

#: Stands in place of patterns in a script's ``metrics``.
JSON_LINES: Final = "json"


class JsonReports:
    """Reads each line that is a JSON object with one of the optimised metrics as a report.

    Other objects, such as those of a log, are no reports.

    Args:
        metric: names of the optimised metrics.
    """

    def __init__(self, metric: Collection[str] = ()) -> None:
        self._metric = metric

    def read(self, line: str) -> Iterator[dict[str, int | float | str]]:
        """Read a line. Yield the report that it is, if it is one."""
        if not line.lstrip().startswith("{"):
            return
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return
        if any(name in values for name in self._metric):
            yield values

    def finish(self) -> Iterator[dict[str, int | float | str]]:
        """Yield nothing: each line counts by itself."""
        yield from ()
