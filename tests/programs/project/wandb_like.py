"""A tracker that finishes its run when the process ends, with a cache that deletes itself then, as Weights & Biases has it."""

import atexit
import json
import tempfile
import threading
import time
from pathlib import Path

import mqtune

HERE = Path(__file__).resolve().parent


class Run:
    def __init__(self, name):
        self.cache = tempfile.TemporaryDirectory(prefix="tracker-")
        self.record = HERE / "tracked" / f"{name}.json"
        self.record.parent.mkdir(exist_ok=True)
        self.uploads = []
        atexit.register(self.finish)

    def log(self, value):
        # Ends after the training: a program waits for such a thread.
        thread = threading.Thread(target=self._upload, args=(value,))
        thread.start()

    def _upload(self, value):
        time.sleep(0.2)
        self.uploads.append(value)

    def finish(self):
        self.record.write_text(json.dumps({"uploads": sorted(self.uploads), "cache": self.cache.name}))


def train(config):
    run = Run(f"run-{config['x']}")
    for epoch in range(3):
        time.sleep(0.1)
        run.log(config["x"] + epoch)
        mqtune.report({"loss": config["x"] / (epoch + 1)})


if __name__ == "__main__":
    space = {"x": mqtune.grid_search([1, 2, 3, 4])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="wandb-like").run()
