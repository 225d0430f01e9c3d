"""Generators that are made when the program begins; each trial draws from them."""

import random
import time
import uuid

import numpy as np

import mqtune

RNG = np.random.default_rng()
OLD = np.random.RandomState()
OWN = random.Random()


def train(config):
    time.sleep(0.2)
    drawn = {"rng": RNG.random(), "old": OLD.rand(), "own": OWN.random(), "uuid": str(uuid.uuid4())}
    mqtune.report({"loss": config["x"], **drawn, "numpy": np.random.rand(), "python": random.random()})  # noqa: NPY002


if __name__ == "__main__":
    space = {"x": mqtune.grid_search([1, 2, 3, 4, 5, 6])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="generator-top").run()
