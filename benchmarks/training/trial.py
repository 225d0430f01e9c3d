"""One trial, the same in every system except for the way to report.

Importing this module imports the training's libraries, as a user's script does at its top.
"""

from __future__ import annotations

import importlib

from benchmarks.training.epochs import SETTINGS, Epochs, Report, config_of
from benchmarks.training.lines import Line, append

__all__ = ["SETTINGS", "run"]

training = importlib.import_module(f"benchmarks.training.{SETTINGS.training}")


def run(index: int, report: Report) -> None:
    """Run one trial, to its end or until the report raises."""
    append(SETTINGS.folder, Line.of(index, "begin"))
    try:
        training.train(config_of(index), Epochs(index, report))
    finally:
        append(SETTINGS.folder, Line.of(index, "end"))
