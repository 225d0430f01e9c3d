"""Tunes a small NumPy network on scikit-learn's 1,797 handwritten digits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import mqtune

EPOCHS = 81
SPACE = {
    "width": mqtune.lograndint(16, 512),
    "batch": mqtune.choice([8, 16, 32, 64, 128]),
    "lr": mqtune.loguniform(1e-3, 1.0),
    "momentum": mqtune.uniform(0.0, 0.99),
    "decay": mqtune.loguniform(1e-6, 1e-2),
}
# The learning rate, momentum and batch size are Keras's defaults.
DEFAULT = {"width": 64, "batch": 32, "lr": 0.01, "momentum": 0.0, "decay": 1e-6}


def fit(config: dict[str, Any]) -> Iterator[tuple[float, float]]:
    """Train a network. Yield its accuracy on the selection and held-out digits after each epoch."""
    images, labels = load_digits(return_X_y=True)
    x, y = images / 16, np.eye(10)[labels]
    rng = np.random.default_rng(0)
    train, choose, held_out = np.split(rng.permutation(len(x)), [897, 1347])
    shapes = [(64, config["width"]), (config["width"],), (config["width"], 10), (10,)]
    weights = [rng.normal(0, np.sqrt(2 / shape[0]), shape) if len(shape) > 1 else np.zeros(shape) for shape in shapes]
    steps = [np.zeros(shape) for shape in shapes]
    for _ in range(EPOCHS):
        for batch in np.array_split(rng.permutation(train), len(train) // config["batch"]):
            hidden, chances = predict(weights, x[batch])
            error = (chances - y[batch]) / len(batch)
            back = (error @ weights[2].T) * (hidden > 0)
            slopes = [x[batch].T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
            for weight, step, slope in zip(weights, steps, slopes, strict=True):
                step[:] = config["momentum"] * step - config["lr"] * (slope + config["decay"] * weight)
                weight[:] += step
        hits = predict(weights, x)[1].argmax(1) == labels
        yield float(hits[choose].mean()), float(hits[held_out].mean())


def predict(weights: list[Any], x: Any) -> tuple[Any, Any]:
    """Return the activations of the hidden layer, and each digit's probability."""
    hidden = np.maximum(0, x @ weights[0] + weights[1])
    outputs = hidden @ weights[2] + weights[3]
    odds = np.exp(outputs - outputs.max(1, keepdims=True))
    return hidden, odds / odds.sum(1, keepdims=True)


def train(config: dict[str, Any]) -> None:
    """Train one network in a trial, with a report after each epoch."""
    for epoch, (accuracy, held_out) in enumerate(fit(config), 1):
        mqtune.report({"accuracy": accuracy, "held_out": held_out, "epoch": epoch})


def main(name: str = "digits") -> None:
    """Tune the network, and print the results."""
    asha = mqtune.ASHA(max_t=EPOCHS, grace_period=3, reduction_factor=3)
    tuner = mqtune.Tuner(
        train, SPACE, metric="accuracy", mode="max", scheduler=asha, max_trials=150,
        searcher=mqtune.InitialPoints([DEFAULT]), seed=1, name=name,
    )  # fmt: skip
    results = tuner.run()
    best, budget = results.best, results.budget
    # The default config is trained for all epochs. Its best epoch counts, as with the tuned configs.
    _, default = max(fit(DEFAULT))
    print("\nbest config:", ", ".join(f"{key}={value:.3g}" for key, value in best.config.items()))
    print(f"accuracy on the 450 held-out digits: {best.metrics['held_out']:.1%}; of the default config: {default:.1%}")
    print(f"epochs: {budget.used:,} run, {budget.saved:,} saved by ASHA")
    print(f"look at it again: mqtune show {results.name}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
