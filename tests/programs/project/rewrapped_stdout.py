"""A program that gives its output another encoding in its first lines, as programs from Windows do, and reports arrays."""

import io
import sys
import time

import numpy as np

import mqtune

sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", errors="replace", write_through=True)
print("loading the data …")


def train(config):
    print(f"training with {config['x']} …")
    time.sleep(0.3)
    scores = np.array([config["x"], config["x"] + 1])
    mqtune.report({"loss": np.array(scores.mean()), "scores": scores, "counts": np.arange(3)})


if __name__ == "__main__":
    space = {"x": mqtune.grid_search([1.0, 2.0, 3.0, 4.0])}
    results = mqtune.Tuner(train, space, metric="loss", mode="min", name="rewrapped-stdout").run()
    print("best:", results.best.value)
