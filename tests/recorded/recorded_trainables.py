"""Trainables of the recorded experiments: what each reports follows from its config and step alone."""

from __future__ import annotations

import json
import time

import mqtune


def loss(x: float, step: int) -> float:
    return (x - 0.3) ** 2 + 1 / (step + 1)


def steady(config):
    """Goes on from a dict, which it saves with every second report."""
    checkpoint = mqtune.get_checkpoint()
    begin = 1 if checkpoint is None else checkpoint.data["step"] + 1
    for step in range(begin, config["steps"] + 1):
        time.sleep(config["step_s"])
        mqtune.report(
            {"loss": loss(config["x"], step), "step": step}, checkpoint={"step": step} if step % 2 == 0 else None
        )


def breaks(config):
    """Breaks in its third step, once, or in each attempt."""
    checkpoint = mqtune.get_checkpoint()
    begin = 1 if checkpoint is None else checkpoint.data["step"] + 1
    for step in range(begin, config["steps"] + 1):
        time.sleep(config["step_s"])
        if step == 3 and (config["x"] > 0.8 or (config["x"] > 0.5 and begin == 1)):
            raise RuntimeError(f"x={config['x']:.3f} is more than this can do")
        mqtune.report({"loss": loss(config["x"], step), "step": step}, checkpoint={"step": step})


class Counts(mqtune.Trainable):
    """Saves a folder in every second step, and when it is paused."""

    def setup(self, config):
        self.at = 0
        self.checkpoint_every = 2

    def step(self):
        time.sleep(self.config["step_s"])
        self.at += 1
        return {"loss": loss(self.config["x"], self.at), "step": self.at, "done": self.at >= self.config["steps"]}

    def save_checkpoint(self, folder):
        (folder / "at.json").write_text(json.dumps(self.at))

    def load_checkpoint(self, checkpoint):
        self.at = json.loads((checkpoint.path / "at.json").read_text())
