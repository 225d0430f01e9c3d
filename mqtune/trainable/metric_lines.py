"""Reports that a script prints, a line each, as Syne Tune's reporter does: ``[tune-metric]: {"loss": 0.1}``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

__all__ = ["MetricLines"]

_TAG: Final = b"[tune-metric]: "
_LINE: Final = re.compile(re.escape(_TAG) + rb"(\{.*\})")
#: A line without an end is not kept beyond this, so that output of one endless line fills no memory; a report that
#: Syne Tune's reporter would print has at most 50 kB.
_MAX_LINE_BYTES: Final = 2**20
#: What is shown of a line that can't be read.
_SHOWN_BYTES: Final = 1_000


class MetricLines:
    """Finds reports in a script's output, which comes in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any] | str]:
        """Take a piece of output; yield the metrics of each report that is complete now, or what is wrong with it."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        self._rest = rest if len(rest) <= _MAX_LINE_BYTES else b""
        if _TAG in data[:end]:
            yield from _reports_in(data[:end])
        if not self._rest and _TAG in rest:
            yield f"no report: a line of more than {_MAX_LINE_BYTES:,} bytes was printed: {_beginning(rest)}"

    def finish(self) -> Iterator[dict[str, Any] | str]:
        """Yield what is in the last line, which need not have an end."""
        rest, self._rest = self._rest, b""
        yield from _reports_in(rest)


def _reports_in(text: bytes) -> Iterator[dict[str, Any] | str]:
    for line in text.splitlines():
        if _TAG in line:
            yield _report_in(line)


def _report_in(line: bytes) -> dict[str, Any] | str:
    found = _LINE.search(line)
    try:
        metrics: dict[str, Any] = json.loads(found[1] if found else line.partition(_TAG)[2])
        if found:
            return metrics
        problem = "there is no {…} behind the tag"
    except ValueError as error:
        problem = str(error)
    return f"no report: {_beginning(line)} can't be read as metrics: {problem}"


def _beginning(line: bytes) -> str:
    return repr(line[:_SHOWN_BYTES].decode(errors="replace"))
