"""What a training is given: its config, and a way to tell of its epochs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypedDict

from benchmarks.training.lines import Line, Settings, append

__all__ = ["SETTINGS", "Config", "Epochs", "Report", "config_of", "wait_until_left"]

SETTINGS: Final = Settings.given()

#: The measurement looks at the memory of trials that wait for so long, at most.
PATIENCE_S: Final = 300.0
LOOK_S: Final = 0.02

#: Is given the loss and the number of the epoch.
Report = Callable[[float, int], object]


class Config(TypedDict):
    """What one trial is given."""

    lr: float
    width: int
    seed: int
    epochs: int


def config_of(index: int) -> Config:
    """Return the config of the trial of that number, in each system the same."""
    rng = random.Random(index)
    return {
        "lr": 10 ** rng.uniform(-3.0, 0.0),
        "width": rng.randint(16, 128),
        "seed": index,
        "epochs": SETTINGS.epochs,
    }


class Epochs:
    """What a training tells of its epochs: each leaves a line and is reported."""

    def __init__(self, index: int, report: Report) -> None:
        self._index = index
        self._report = report
        self._done = 0
        self._began = 0.0

    def begin(self) -> None:
        """An epoch begins."""
        self._began = time.monotonic()

    def end(self, loss: float) -> None:
        """The epoch has ended; returns, or raises whatever ends a trial, when it was reported."""
        self.note(loss, self._began, time.monotonic())

    def note(self, loss: float, began: float, ended: float) -> None:
        """An epoch was trained by another process, at these times."""
        self._done += 1
        append(SETTINGS.folder, Line.of(self._index, "epoch", began, ended))
        if self._done == 1 and SETTINGS.trials - SETTINGS.parked <= self._index < SETTINGS.trials:
            _touch_and_wait(f"ready-{self._index}", "release")
        self._report(loss, self._done)


def wait_until_left() -> None:
    """With all trials over and the system still up, have the memory measured, if this is a run for that."""
    if SETTINGS.parked:
        _touch_and_wait("idle", "leave")


def _touch_and_wait(said: str, awaited: str) -> None:
    folder, deadline = Path(SETTINGS.folder), time.monotonic() + PATIENCE_S
    (folder / said).touch()
    while not (folder / awaited).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no file {awaited} within {PATIENCE_S:.0f} s")
        time.sleep(LOOK_S)
