"""Fit a perceptron of scikit-learn epoch by epoch, so that ASHA can stop it early.

Run it: python examples/train_sklearn.py. On the workers of a broker ($MQTUNE_BROKER), name a folder that all machines
share: --checkpoints /shared/checkpoints
"""

import argparse

import joblib
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import mqtune
from mqtune.integrations.sklearn import Rounds


def train(config):
    """Fit from scratch or from a checkpoint. Each epoch is reported and saved."""
    images, digits = load_digits(return_X_y=True)
    learn_x, choose_x, learn_y, choose_y = train_test_split(images / 16, digits, random_state=0)
    # joblib unpickles, so people with write access to the checkpoints' folder can run code in trials.
    rounds = Rounds((choose_x, choose_y), scoring="accuracy", checkpoint_every=1, storage=joblib)
    model = MLPClassifier(
        hidden_layer_sizes=(config["width"],), learning_rate_init=config["lr"], alpha=config["alpha"], random_state=0
    )
    rounds.partial_fit(model, learn_x, learn_y, rounds=27, classes=range(10))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", help="where to keep them: a folder, or a URL such as s3://bucket/folder")
    parser.add_argument("--trials", type=int, default=27)
    asked = parser.parse_args()
    results = mqtune.Tuner(
        train,
        {"width": mqtune.lograndint(8, 256), "lr": mqtune.loguniform(1e-4, 0.1), "alpha": mqtune.loguniform(1e-6, 0.1)},
        metric="accuracy",
        mode="max",
        scheduler=mqtune.ASHA(max_t=27),
        max_trials=asked.trials,
        checkpoints=mqtune.Checkpoints(asked.checkpoints),
        seed=1,
        name="sklearn",
    ).run()
    print(f"best trial {results.best.id}: accuracy {results.best.value:.3f} with {results.best.config}")
