"""Optimizes a study of a storage over workers; it is killed in the middle."""

from __future__ import annotations

import sys

import objectives
import optuna

from mqtune.integrations.optuna_optimize import optuna_optimize

if __name__ == "__main__":
    broker, storage, n_trials = sys.argv[1:]
    study = optuna.load_study(study_name="killed", storage=storage)
    optuna_optimize(study, objectives.slow, n_trials=int(n_trials), backend=broker)
