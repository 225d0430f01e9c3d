"""Promotion-ASHA: trials pause to be compared, and the best ones continue on any free worker.

Each trial is a softmax regression on scikit-learn's digits. Its state is a dict that Redis keeps, so the workers need
no folder in common. At the end the script prints on which workers each trial ran.

Run it on this machine alone, with one worker: python examples/promotion.py. To see trials move, start two workers
(two terminals with: mqtune worker --gpus 0 --slots 1), and give their broker with --broker URL or in $MQTUNE_BROKER.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import mqtune


def train(config: dict[str, Any]) -> None:
    """Train one model, from its checkpoint if it has one. Report the loss on held-out digits."""
    images, labels = load_digits(return_X_y=True)
    x, y = images / 16, np.eye(10)[labels]
    checkpoint = mqtune.get_checkpoint()
    state = checkpoint.data if checkpoint else {"epoch": 0, "weights": np.zeros((64, 10)).tolist()}
    weights = np.array(state["weights"])
    for epoch in range(state["epoch"] + 1, 28):
        for rows in np.array_split(np.random.default_rng(epoch).permutation(1200), 1200 // config["batch"]):
            weights -= config["lr"] * x[rows].T @ (chances(x[rows], weights) - y[rows]) / len(rows)
        loss = -np.log((chances(x[1200:], weights) * y[1200:]).sum(1) + 1e-12).mean()
        mqtune.report({"loss": loss, "training_iteration": epoch}, {"epoch": epoch, "weights": weights.tolist()})


def chances(x: Any, weights: Any) -> Any:
    """Return the chance of each digit for each image."""
    odds = np.exp(x @ weights - (x @ weights).max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Promotion-ASHA with pauses and resumes.")
    parser.add_argument("--broker", help="the Redis that the workers use; by default $MQTUNE_BROKER")
    results = mqtune.Tuner(
        train,
        {"lr": mqtune.loguniform(1e-3, 10.0), "batch": mqtune.choice([16, 64, 256])},
        metric="loss",
        mode="min",
        scheduler=mqtune.PromotionASHA(max_t=27, grace_period=1, reduction_factor=3),
        max_trials=27,
        backend=parser.parse_args().broker,
        seed=1,
        name="promotion",
    ).run()
    moved = 0
    for result in results:
        workers = [attempt.worker for attempt in result.attempts]
        moved += len(set(workers)) > 1
        print(f"trial {result.id} {result.status.value:13} loss {result.value:.3f}  {' → '.join(workers)}")
    resumes = sum(len(result.attempts) - 1 for result in results)
    print(f"{resumes} resumes; {moved} trials ran on more than one worker")
    print(f"epochs: {results.budget.used} run, {results.budget.saved} saved; best config: {results.best.config}")
