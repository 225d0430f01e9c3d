"""What a trial leaves behind for the measurement: a line when it begins, for each epoch, and when it ends.

Imports nothing outside the standard library, since what a trial imports is part of what is measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["FILE_NAME", "Line", "Settings", "append", "read_lines"]

VARIABLE: Final = "BENCHMARKS_TRAINING"
FILE_NAME: Final = "lines.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a script is to run, handed to all its processes in one variable of the environment.

    Args:
        training: the module of ``benchmarks.training`` that trains.
        folder: where the lines are.
        epochs: the most that a trial trains for.
        parked: so many of the last trials wait after their first epoch until their memory was measured.
    """

    training: str
    folder: str
    trials: int
    slots: int
    epochs: int
    parked: int = 0

    def variables(self) -> dict[str, str]:
        """Return the environment's variable."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def given(cls) -> Settings:
        """Return those of this process's environment."""
        return cls(**json.loads(os.environ[VARIABLE]))


class Line(NamedTuple):
    """A moment of a trial ("begin", "end") or an epoch; times are CLOCK_MONOTONIC, which all processes of a machine share.

    ``modules`` is how many the process had imported by then.
    """

    trial: int
    what: str
    began: float
    ended: float
    pid: int
    modules: int

    @classmethod
    def of(cls, trial: int, what: str, began: float | None = None, ended: float | None = None) -> Line:
        """Return a line of this process; where a time is left out it is now."""
        now = time.monotonic()
        return cls(
            trial, what, now if began is None else began, now if ended is None else ended, os.getpid(), len(sys.modules)
        )


def append(folder: str, line: Line) -> None:
    """Add a line, with one write, since other trials add theirs at the same time."""
    file = os.open(Path(folder) / FILE_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def read_lines(folder: Path) -> list[Line]:
    """Return all lines, in the order in which they were added."""
    return [Line(*json.loads(text)) for text in (folder / FILE_NAME).read_text().splitlines()]
