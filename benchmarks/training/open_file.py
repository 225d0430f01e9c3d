"""A program with a slow import that leaves a file open, so each process of a trial executes it."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.training.epochs import Config, Epochs

#: The import takes less time than a trial, so it can be done while the slot is busy.
IMPORT_S = 2.5
EPOCH_S = 5.0

data = Path(__file__).open()  # noqa: SIM115 - it stays open
time.sleep(IMPORT_S)


def train(config: Config, epochs: Epochs) -> None:
    epochs.begin()
    time.sleep(EPOCH_S)
    epochs.end(1 / config["width"])
