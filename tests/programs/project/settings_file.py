"""Settings in a file that is read at the top; people edit it and run the program again, under another name."""

import json
import sys
import time

import mqtune

with open("settings.json") as file:
    SETTINGS = json.load(file)


def train(config):
    time.sleep(0.4)
    mqtune.report({"loss": SETTINGS["weight"] * config["x"]})


if __name__ == "__main__":
    space = {"x": mqtune.grid_search([1, 2, 3, 4])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name=sys.argv[1]).run()
