"""A program that gives its output another encoding in its first lines, as programs from Windows do."""

import io
import sys
import time

import mqtune

sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", errors="replace", write_through=True)
print("loading the data …")


def train(config):
    print(f"training with {config['x']} …")
    time.sleep(0.3)
    mqtune.report({"loss": config["x"] ** 2})


if __name__ == "__main__":
    space = {"x": mqtune.grid_search([1.0, 2.0, 3.0, 4.0])}
    results = mqtune.Tuner(train, space, metric="loss", mode="min", name="rewrapped-stdout").run()
    print("best:", results.best.value)
