"""XGBoost with a callback: an epoch is a round."""

from __future__ import annotations

from typing import Any

import xgboost
from sklearn.datasets import load_digits

from benchmarks.training.epochs import Config, Epochs

TRAINED_ON = 1_000

digits = load_digits()


class Reporting(xgboost.callback.TrainingCallback):
    def __init__(self, epochs: Epochs) -> None:
        self.epochs = epochs

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self.epochs.begin()
        return False

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self.epochs.end(float(evals_log["validation"]["mlogloss"][-1]))
        return False


def train(config: Config, epochs: Epochs) -> None:
    xgboost.train(
        {
            "objective": "multi:softprob",
            "num_class": 10,
            "eta": config["lr"],
            "max_leaves": config["width"] // 4,
            "seed": config["seed"],
        },
        xgboost.DMatrix(digits.data[:TRAINED_ON], digits.target[:TRAINED_ON]),
        num_boost_round=config["epochs"],
        evals=[(xgboost.DMatrix(digits.data[TRAINED_ON:], digits.target[TRAINED_ON:]), "validation")],
        verbose_eval=False,
        callbacks=[Reporting(epochs)],
    )
