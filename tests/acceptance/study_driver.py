"""Optimizes a study of a storage over workers; it is killed in the middle."""

from __future__ import annotations

import sys

import objectives
import optuna

from mqtune.integrations import optuna_optimize as module

if __name__ == "__main__":
    broker, storage, n_trials, lag_s = sys.argv[1:]
    vars(module)["_LAG_S"] = float(lag_s)
    study = optuna.load_study(study_name="killed", storage=storage)
    module.optuna_optimize(study, objectives.slow, n_trials=int(n_trials), backend=broker)
