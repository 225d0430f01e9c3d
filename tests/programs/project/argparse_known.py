"""The same with ``parse_known_args``, which leaves arguments that belong to other parts of the program."""

import argparse
import sys
import time

import mqtune

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
args, others = parser.parse_known_args()
IS_DOUBLED = "--double" in others


def train(config):
    loss = 1.0
    for epoch in range(args.epochs):
        time.sleep(0.1)
        loss *= 1 - config["lr"]
        # Launchers of libraries read the arguments while the program runs.
        mqtune.report(
            {"loss": loss * (2 if IS_DOUBLED else 1), "epoch": epoch + 1, "arguments": " ".join(sys.argv[1:])}
        )


if __name__ == "__main__":
    space = {"lr": mqtune.grid_search([0.1, 0.3, 0.5, 0.7])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="argparse-known").run()
