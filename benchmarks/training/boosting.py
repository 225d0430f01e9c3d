"""Gradient boosting in scikit-learn: an epoch is one more round of trees."""

from __future__ import annotations

from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss

from benchmarks.training.epochs import Config, Epochs

TRAINED_ON = 600

digits = load_digits()


def train(config: Config, epochs: Epochs) -> None:
    model = HistGradientBoostingClassifier(
        learning_rate=config["lr"],
        max_leaf_nodes=max(2, config["width"] // 8),
        warm_start=True,
        early_stopping=False,
        random_state=config["seed"],
    )
    for epoch in range(1, config["epochs"] + 1):
        epochs.begin()
        model.set_params(max_iter=epoch).fit(digits.data[:TRAINED_ON], digits.target[:TRAINED_ON])
        loss = log_loss(digits.target[TRAINED_ON:], model.predict_proba(digits.data[TRAINED_ON:]))
        epochs.end(float(loss))
