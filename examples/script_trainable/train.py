"""Train without mqtune: read arguments, and print the metrics as lines of JSON."""

import argparse
import json

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=27)
arguments = parser.parse_args()

weight = 0.0
for step in range(1, arguments.steps + 1):
    weight += arguments.lr * (3.0 - weight)
    print("[tune-metric]: " + json.dumps({"loss": (3.0 - weight) ** 2, "step": step}))
