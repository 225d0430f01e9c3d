"""A configuration in YAML that is read by a relative path, with overrides such as ``optimizer.momentum=0.9``, as Hydra has it."""

import sys
import time
from pathlib import Path

import yaml

import mqtune

CONFIG = yaml.safe_load(Path("conf/config.yaml").read_text())
for override in sys.argv[1:]:
    key, value = override.split("=")
    *groups, name = key.split(".")
    place = CONFIG
    for group in groups:
        place = place[group]
    place[name] = yaml.safe_load(value)


def train(config):
    weights = CONFIG["model"]["width"] * CONFIG["model"]["depth"]
    speed, place = 0.0, 1.0
    for _ in range(CONFIG["epochs"]):
        time.sleep(0.1)
        speed = CONFIG["optimizer"]["momentum"] * speed - config["lr"] * place
        place += speed
        # Launchers of libraries read the arguments while the program runs.
        mqtune.report({"loss": place**2, "weights": weights, "arguments": " ".join(sys.argv[1:])})


if __name__ == "__main__":
    space = {"lr": mqtune.grid_search([0.01, 0.02, 0.03, 0.04])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="yaml-config").run()
