"""Train with ``mqtune.report``. In a trial it reports to the driver, and by hand it only logs."""

import argparse

import mqtune

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=27)
arguments = parser.parse_args()

weight = 0.0
for step in range(1, arguments.steps + 1):
    weight += arguments.lr * (3.0 - weight)
    mqtune.report({"loss": (3.0 - weight) ** 2, "step": step})
