"""A class whose process goes from trial to trial, and that writes down what happens to it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import mqtune


class Reuses(mqtune.Trainable):
    """Counts up by lr; as slowly as its config says."""

    def setup(self, config):
        self._note("setup", config)
        self.total = 0.0

    def step(self):
        time.sleep(self.config["step_s"])
        self.total += self.config["lr"]
        if self.config.get("do") == "thread" and not self.training_iteration:
            # Longer than the trial.
            threading.Thread(target=time.sleep, args=(2,), name="counter").start()
        done = self.training_iteration + 1 >= self.config["steps"]
        return {"loss": -self.total, "step": self.training_iteration + 1, "pid": os.getpid(), "done": done}

    def save_checkpoint(self, folder):
        (folder / "total").write_text(str(self.total))

    def load_checkpoint(self, checkpoint):
        self.total = float((checkpoint.path / "total").read_text())

    def reset_config(self, config):
        self._note("reset", config)
        self.total = 0.0
        return True

    def cleanup(self):
        self._note("cleanup", self.config)

    def _note(self, what, config):
        with Path(config["log"]).open("a") as file:
            file.write(f"{what} {os.getpid()}\n")
