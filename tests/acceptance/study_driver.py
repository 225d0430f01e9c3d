"""Optimizes a study of a storage over workers, in one process after the other; each but the last is killed in the middle."""

from __future__ import annotations

import os
import sys

import objectives
import optuna

from mqtune.integrations import optuna_optimize as module


def optimize(broker: str, storage: str, n_trials: int, lag_s: float) -> None:
    vars(module)["_LAG_S"] = lag_s
    study = optuna.load_study(study_name="killed", storage=storage)
    module.optuna_optimize(study, objectives.slow, n_trials=n_trials, backend=broker)


if __name__ == "__main__":
    broker, storage, n_trials, *lags_s = sys.argv[1:]
    # Forked, since to import Optuna takes longer than all the rest.
    for lag_s in lags_s:
        if (pid := os.fork()) == 0:
            optimize(broker, storage, int(n_trials), float(lag_s))
            break
        os.waitpid(pid, 0)
