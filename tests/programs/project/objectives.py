"""The other ways in which programs hand over a function: ``python objectives.py lambda`` and so on."""

import functools
import sys

import mqtune


def distance(config, shift):
    mqtune.report({"loss": (config["x"] - shift) ** 2})


class Manager:
    shift = 0.5

    def __init__(self, factor):
        self.factor = factor

    def objective(self, config):
        distance(config, self.shift * self.factor)

    def __call__(self, config):
        distance(config, self.shift + self.factor)


def in_a_loop():
    found = []
    for shift in (0.25, 0.75):

        def objective(config, shift=shift):
            distance(config, shift)

        found.append(objective)
    return found


if __name__ == "__main__":
    offset = 0.125
    objective = {
        "lambda": lambda config: distance(config, offset),
        "partial": functools.partial(distance, shift=0.5),
        "method": Manager(3.0).objective,
        "instance": Manager(2.0),
        "loop": in_a_loop()[1],
    }[sys.argv[1]]
    space = {"x": mqtune.grid_search([0.0, 1.0])}
    mqtune.Tuner(objective, space, metric="loss", mode="min", name=f"objectives-{sys.argv[1]}").run()
