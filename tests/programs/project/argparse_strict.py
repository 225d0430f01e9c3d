"""A training whose arguments are parsed at the top of the file, as most research repositories do it."""

import argparse
import time

import mqtune

parser = argparse.ArgumentParser(description="Fit a line by gradient descent.")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--shift", type=float, default=0.0)
args = parser.parse_args()

POINTS = [(x / 10, 3 * x / 10 + args.shift) for x in range(10)]


def train(config):
    slope = 0.0
    for _ in range(args.epochs):
        time.sleep(0.1)
        for x, y in POINTS:
            slope += config["lr"] * (y - slope * x) * x
        loss = sum((y - slope * x) ** 2 for x, y in POINTS)
        mqtune.report({"loss": loss, "slope": slope})


if __name__ == "__main__":
    space = {"lr": mqtune.grid_search([0.01, 0.05, 0.1, 0.2])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="argparse-strict").run()
