"""Arrays in an archive that is opened at the top of the file and read when they are needed, in four slots."""

import os
import random
import time

import numpy as np

import mqtune

DATA = np.load("data/arrays.npz")


def train(config):
    wrong = 0
    time.sleep(0.3)
    for _ in range(150):
        number = random.randrange(8)
        wrong += int((DATA[f"array{number}"] != number).sum())
    mqtune.report({"loss": float(DATA[f"array{config['number']}"].sum()), "wrong": wrong})


if __name__ == "__main__":
    backend = os.environ.get("MQTUNE_BROKER") or mqtune.Local(slots=4)
    space = {"number": mqtune.grid_search([1, 2, 3, 4])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="npz-top", backend=backend).run()
