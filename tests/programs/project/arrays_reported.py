"""Scores of folds that are reported as an array, and their mean as an array without dimensions."""

import time

import numpy as np

import mqtune


def train(config):
    time.sleep(0.3)
    scores = np.array([config["x"], config["x"] + 1, config["x"] + 2])
    mqtune.report({"loss": np.array(scores.mean()), "scores": scores, "counts": np.arange(3)})


if __name__ == "__main__":
    space = {"x": mqtune.grid_search([1.0, 2.0, 3.0, 4.0])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="arrays-reported").run()
