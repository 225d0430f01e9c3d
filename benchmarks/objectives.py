"""Objectives of Optuna, the same code wherever they run."""

from __future__ import annotations

import time
from typing import Any, Final

__all__ = ["noop", "training"]

EPOCHS: Final = 10
EPOCH_S: Final = 0.010


def noop(trial: Any) -> float:
    """Ask for four numbers and end."""
    return sum(trial.suggest_float(f"x{number}", 0.0, 1.0) for number in range(4))


def training(trial: Any) -> float:
    """Train for at most 10 epochs of 10 ms, and report after each."""
    from optuna import TrialPruned

    rate = trial.suggest_float("rate", 1e-5, 1e-1, log=True)
    width = trial.suggest_int("width", 16, 256, log=True)
    dropout = trial.suggest_float("dropout", 0.0, 0.5)
    kind = trial.suggest_categorical("kind", ["adam", "sgd"])
    end = abs(rate - 3e-3) * 10 + abs(width - 128) / 256 + (dropout - 0.2) ** 2 + (kind == "sgd") * 0.1
    for epoch in range(1, EPOCHS + 1):
        time.sleep(EPOCH_S)
        trial.report(end + 1 / epoch, epoch)
        if trial.should_prune():
            raise TrialPruned
    return float(end)
