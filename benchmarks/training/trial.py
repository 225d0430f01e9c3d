"""One trial, the same in every system, which only hands in its way to report.

A script that imports this has at its top what a user's script has there: the training's libraries.
"""

from __future__ import annotations

import importlib

from benchmarks.training.epochs import SETTINGS, Epochs, Report, config_of, wait_until_left
from benchmarks.training.lines import Line, append

__all__ = ["SETTINGS", "run", "wait_until_left"]

training = importlib.import_module(f"benchmarks.training.{SETTINGS.training}")


def run(index: int, report: Report) -> None:
    """Train for one trial, to its end or until the report raises."""
    append(SETTINGS.folder, Line.of(index, "begin"))
    try:
        training.train(config_of(index), Epochs(index, report))
    finally:
        append(SETTINGS.folder, Line.of(index, "end"))
