"""A report with an object that can't be sent: a mistake that all trials would make."""

import time

import mqtune


class Score:
    mean = 0.5


def train(config):
    time.sleep(0.3)
    mqtune.report({"loss": config["x"], "score": Score()})


if __name__ == "__main__":
    space = {"x": mqtune.grid_search(list(range(12)))}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="object-reported").run()
