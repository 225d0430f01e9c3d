"""A network of scikit-learn, trained by partial_fit. The function imports its libraries."""

from __future__ import annotations

from benchmarks.training.epochs import Config, Epochs

TRAINED_ON = 1_400


def train(config: Config, epochs: Epochs) -> None:
    from sklearn.datasets import load_digits
    from sklearn.metrics import log_loss
    from sklearn.neural_network import MLPClassifier

    digits = load_digits()
    x = digits.data / 16
    model = MLPClassifier((config["width"],), learning_rate_init=config["lr"], random_state=config["seed"])
    for _ in range(config["epochs"]):
        epochs.begin()
        model.partial_fit(x[:TRAINED_ON], digits.target[:TRAINED_ON], classes=range(10))
        epochs.end(float(log_loss(digits.target[TRAINED_ON:], model.predict_proba(x[TRAINED_ON:]))))
