"""A program that registers a name, adds a log handler and patches a function of its libraries when it begins."""

import json
import logging
import statistics
import sys

import mqtune

if "shifted" in vars(statistics):
    raise ValueError("'shifted' is registered already")
statistics.shifted = True
_mean = statistics.mean
statistics.mean = lambda values: _mean(values) + 1
logger = logging.getLogger("training")
logger.addHandler(logging.StreamHandler(sys.stdout))
json.encoder.PROGRAMS = getattr(json.encoder, "PROGRAMS", 0) + 1


def train(config):
    counts = {"handlers": len(logger.handlers), "programs": json.encoder.PROGRAMS}
    mqtune.report({"loss": config["x"], "mean": statistics.mean([1, 3]), **counts})


if __name__ == "__main__":
    space = {"x": mqtune.grid_search([1, 2, 3])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="registers-at-top").run()
