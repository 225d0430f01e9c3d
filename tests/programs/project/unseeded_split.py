"""Data that is split at random when the program begins, without a seed: all trials must train on one split."""

import random
import time

import numpy as np

import mqtune

rows = list(range(40))
random.shuffle(rows)
ROWS = rows[:8]
COLUMNS = np.random.permutation(40)[:8]  # noqa: NPY002


def train(config):
    time.sleep(0.3)
    mqtune.report({"loss": config["x"], "rows": list(ROWS), "columns": COLUMNS.tolist()})


if __name__ == "__main__":
    space = {"x": mqtune.grid_search([1, 2, 3, 4, 5, 6])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="unseeded-split").run()
