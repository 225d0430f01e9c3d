"""Trainables that count, and save how far they are in each of the ways that there are."""

from __future__ import annotations

import json
import os
import time

import mqtune


class Counts(mqtune.Trainable):
    """Counts up by lr; saves a file when it is told to pause, and with every so many steps if its config says so.

    It counts on past its last step until the file `gate` is there, if its config names one.
    """

    def setup(self, config):
        self.total = 0.0
        self.checkpoint_every = config.get("every", 0)

    def step(self):
        time.sleep(self.config["step_s"])
        self.total += self.config["lr"]
        gate = self.config.get("gate")
        done = self.training_iteration + 1 >= self.config["steps"] and (gate is None or os.path.exists(gate))
        return {"loss": -self.total, "step": self.training_iteration + 1, "pid": os.getpid(), "done": done}

    def save_checkpoint(self, folder):
        (folder / "total.json").write_text(json.dumps(self.total))

    def load_checkpoint(self, checkpoint):
        self.total = json.loads((checkpoint.path / "total.json").read_text())


class CountsInDict(Counts):
    def save_checkpoint(self, folder):
        return {"total": self.total}

    def load_checkpoint(self, checkpoint):
        self.total = checkpoint.data["total"]


class CountsOften(Counts):
    def setup(self, config):
        super().setup(config)
        self.checkpoint_every = 1


def _counted(config, state):
    for step in range(state["step"] + 1, config["steps"] + 1):
        time.sleep(config["step_s"])
        state = {"step": step, "total": state["total"] + config["lr"]}
        yield state


def _row(state, **more):
    return {"loss": -state["total"], "step": state["step"], "pid": os.getpid(), **more}


START = {"step": 0, "total": 0.0}


def in_dicts(config):
    checkpoint = mqtune.get_checkpoint()
    begin = START if checkpoint is None else checkpoint.data
    before_s = 0.0 if checkpoint is None else checkpoint.counters["time_total_s"]
    for state in _counted(config, begin):
        mqtune.report(_row(state, before_s=before_s), checkpoint=state)


def in_files(config):
    checkpoint = mqtune.get_checkpoint()
    folder = mqtune.get_context().folder
    begin, copy, before_s = START, "", 0.0
    if checkpoint is not None:
        begin, copy = json.loads((checkpoint.path / "deep" / "state.json").read_text()), str(checkpoint.path)
        before_s = checkpoint.counters["time_total_s"]
        # It is the trial's own.
        (checkpoint.path / "scratched").write_text("over")
    (folder / "mine" / "deep").mkdir(parents=True)
    for state in _counted(config, begin):
        (folder / "mine" / "deep" / "state.json").write_text(json.dumps(state))
        (folder / "mine" / "weights.bin").write_bytes(bytes([state["step"] % 256]) * 1000)
        mqtune.report(_row(state, before_s=before_s, copy=copy, folder=str(folder)), checkpoint=folder / "mine")
