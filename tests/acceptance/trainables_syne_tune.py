"""Trainables for Syne Tune's Tuner: they count epochs, and go on from where they were saved."""

from __future__ import annotations

import os
import time

import mqtune


def epochs(config):
    found = mqtune.get_checkpoint()
    for epoch in range((found.data["epoch"] if found else 0) + 1, config["epochs"] + 1):
        time.sleep(config.get("step_s", 0.01))
        state = {"epoch": epoch} if config.get("saves", True) else None
        mqtune.report({"epoch": epoch, "loss": config["x"] / epoch, "pid": os.getpid()}, state)


def odd(config):
    print("this was printed")
    if config["x"] == "fails":
        raise ValueError("it can't go on")
    if config["x"] != "is silent":
        mqtune.report({"epoch": 1, "loss": 1.0, **config})


def height(x, epochs, label):
    """Report as for Syne Tune's PythonBackend: keywords, and its Reporter."""
    import numpy as np
    from syne_tune import Reporter

    reporter = Reporter()
    for epoch in range(1, epochs + 1):
        reporter(epoch=epoch, loss=np.float32(x / epoch), label=label)
