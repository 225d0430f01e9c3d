"""Train a population of small networks on scikit-learn's digits, with checkpoints in a folder.

Four trials train at the same time. Every four epochs the worst trial pauses. It continues from the weights of the best
trial, with a similar config. At the end the script prints the configs that led to the best network, by epoch.

Run it: python examples/pbt.py. On the workers of a broker ($MQTUNE_BROKER), name a folder that all machines share:
python examples/pbt.py /shared/checkpoints
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import mqtune
from mqtune.journal import JOURNAL_FILE, JournalFile
from mqtune.results.experiments import saved_events

EPOCHS = 42
# Learning rates that are all too low, for PBT to raise.
START = [{"lr": lr} for lr in (0.003, 0.005, 0.01, 0.02)]
CHANGES = {"lr": mqtune.loguniform(1e-3, 1.0), "decay": mqtune.loguniform(1e-6, 1e-2)}


def train(config: dict[str, Any]) -> None:
    """Train one network, from scratch or from a checkpoint, and save it with every report."""
    images, labels = load_digits(return_X_y=True)
    x, y = images / 16, np.eye(10)[labels]
    rng = np.random.default_rng(0)
    learn, choose, held_out = np.split(rng.permutation(len(x)), [897, 1347])
    net = {"w1": rng.normal(0, 0.18, (64, 48)), "w2": rng.normal(0, 0.2, (48, 10))}
    epoch = 0
    if checkpoint := mqtune.get_checkpoint():
        with np.load(checkpoint.path / "net.npz") as saved:
            net = dict(saved)
        epoch = checkpoint.counters["training_iteration"]

    while epoch < EPOCHS:
        epoch += 1
        for batch in np.array_split(np.random.default_rng(epoch).permutation(learn), 28):
            hidden = np.maximum(0, x[batch] @ net["w1"])
            error = (chances(net, x[batch]) - y[batch]) / len(batch)
            back = (error @ net["w2"].T) * (hidden > 0)
            net["w2"] -= config["lr"] * (hidden.T @ error + config["decay"] * net["w2"])
            net["w1"] -= config["lr"] * (x[batch].T @ back + config["decay"] * net["w1"])
        guesses = chances(net, x)
        with mqtune.checkpoint_dir() as folder:
            np.savez(folder / "net.npz", **net)
        loss = -np.log((guesses[choose] * y[choose]).sum(1) + 1e-12).mean()
        hits = guesses[held_out].argmax(1) == labels[held_out]
        mqtune.report({"loss": loss, "held_out": hits.mean(), "training_iteration": epoch})


def chances(net: dict[str, Any], x: Any) -> Any:
    """Return the chance of each digit for each image."""
    outputs = np.maximum(0, x @ net["w1"]) @ net["w2"]
    odds = np.exp(outputs - outputs.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


if __name__ == "__main__":
    results = mqtune.Tuner(
        train, CHANGES, metric="loss", mode="min", max_trials=4, searcher=mqtune.InitialPoints(START), seed=1,
        name="pbt", scheduler=mqtune.PBT(4, CHANGES, seed=1),
        backend=os.environ.get("MQTUNE_BROKER") or mqtune.Local(slots=4),
        checkpoints=mqtune.Checkpoints(sys.argv[1] if len(sys.argv) > 1 else None),
    ).run()  # fmt: skip
    for result in results:
        copied = [f"{attempt.source}" for attempt in result.attempts if attempt.source]
        print(f"trial {result.id}: best loss {result.value:.3f}, copied {', '.join(copied) or 'nobody'}")
    print(f"best network, on 450 digits held out: {results.best.metrics['held_out']:.1%}; it was trained with")
    for time, config, trial in mqtune.schedulers.policy_of(
        saved_events(JournalFile(results.folder / JOURNAL_FILE)), results.best.id
    ):
        print(f"  lr={config['lr']:.3g} decay={config['decay']:.2g} from epoch {time + 1}, in trial {trial}")
