"""The config of a training, and its way to record and report epochs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypedDict

from benchmarks.training.lines import Line, Settings, append

__all__ = ["SETTINGS", "Config", "Epochs", "Report", "config_of"]

SETTINGS: Final = Settings.given()

#: The longest that trials wait for the measurement of memory.
PATIENCE_S: Final = 300.0
POLL_S: Final = 0.02

#: Called with the loss and the number of the epoch.
Report = Callable[[float, int], object]


class Config(TypedDict):
    """The config of one trial."""

    lr: float
    width: int
    seed: int
    epochs: int


def config_of(index: int) -> Config:
    """Return a trial's config, the same in each system."""
    rng = random.Random(index)
    return {
        "lr": 10 ** rng.uniform(-3.0, 0.0),
        "width": rng.randint(16, 128),
        "seed": index,
        "epochs": SETTINGS.epochs,
    }


class Epochs:
    """Records and reports the epochs of one trial."""

    def __init__(self, index: int, report: Report) -> None:
        self._index = index
        self._report = report
        self._done = 0
        self._began = 0.0

    def begin(self) -> None:
        """Note the beginning of an epoch."""
        self._began = time.monotonic()

    def end(self, loss: float) -> None:
        """Record and report the epoch's end.

        Raises:
            BaseException: the system ends the trial.
        """
        self._done += 1
        append(SETTINGS.folder, Line.of(self._index, "epoch", self._began))
        if self._done == 1 and SETTINGS.trials - SETTINGS.parked <= self._index < SETTINGS.trials:
            self._park()
        self._report(loss, self._done)

    def _park(self) -> None:
        folder, deadline = Path(SETTINGS.folder), time.monotonic() + PATIENCE_S
        (folder / f"ready-{self._index}").touch()
        while not (folder / "release").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not released within {PATIENCE_S:.0f} s")
            time.sleep(POLL_S)
