"""LightGBM with callbacks: an epoch is a round."""

from __future__ import annotations

from typing import Any

import lightgbm
from sklearn.datasets import load_digits

from benchmarks.training.epochs import Config, Epochs

TRAINED_ON = 1_000

digits = load_digits()


class Begins:
    """Called before each round, as it says so."""

    before_iteration = True

    def __init__(self, epochs: Epochs) -> None:
        self.epochs = epochs

    def __call__(self, _environment: Any) -> None:
        self.epochs.begin()


def train(config: Config, epochs: Epochs) -> None:
    def report(environment: Any) -> None:
        epochs.end(float(environment.evaluation_result_list[0][2]))

    lightgbm.train(
        {
            "objective": "multiclass",
            "num_class": 10,
            "learning_rate": config["lr"],
            "num_leaves": max(2, config["width"] // 4),
            "seed": config["seed"],
            "verbose": -1,
        },
        lightgbm.Dataset(digits.data[:TRAINED_ON], digits.target[:TRAINED_ON]),
        num_boost_round=config["epochs"],
        valid_sets=[lightgbm.Dataset(digits.data[TRAINED_ON:], digits.target[TRAINED_ON:])],
        callbacks=[Begins(epochs), report],
    )
