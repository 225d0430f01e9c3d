"""Lines that a trial leaves for the measurement: its beginning, its epochs and its end.

It imports nothing outside the standard library, since a trial's imports are measured too.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["FILE_NAME", "Line", "Settings", "append", "read_lines"]

VARIABLE: Final = "BENCHMARKS_TRAINING"
FILE_NAME: Final = "lines.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a script, passed to all its processes in one environment variable.

    Args:
        training: name of a module of ``benchmarks.training``.
        folder: of the lines.
        epochs: most epochs of a trial.
        parked: number of last trials that wait after their first epoch until memory is measured.
    """

    training: str
    folder: str
    trials: int
    slots: int
    epochs: int
    parked: int = 0

    def variables(self) -> dict[str, str]:
        """Return the environment variable."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def given(cls) -> Settings:
        """Return the settings in this process's environment."""
        return cls(**json.loads(os.environ[VARIABLE]))


class Line(NamedTuple):
    """A moment of a trial ("begin", "end") or an epoch, in seconds of CLOCK_MONOTONIC."""

    trial: int
    what: str
    began: float
    ended: float

    @classmethod
    def of(cls, trial: int, what: str, began: float | None = None, ended: float | None = None) -> Line:
        """Return a line. Missing times are now."""
        now = time.monotonic()
        return cls(trial, what, now if began is None else began, now if ended is None else ended)


def append(folder: str, line: Line) -> None:
    """Add a line in one write, because other trials write at the same time."""
    file = os.open(Path(folder) / FILE_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def read_lines(folder: Path) -> list[Line]:
    """Return all lines in their order."""
    return [Line(*json.loads(text)) for text in (folder / FILE_NAME).read_text().splitlines()]
