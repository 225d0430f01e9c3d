"""Trainables of the acceptance tests; workers import them from here."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import mqtune


def steady(config):
    for epoch in range(9):
        mqtune.report({"loss": config["x"] / (epoch + 1), "epoch": epoch + 1})


def steady_once_open(config):
    while not Path(config["gate"]).exists():
        time.sleep(0.02)
    steady(config)


def saves_folder(config):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "state").write_text(str(config["x"]))
        mqtune.report({"loss": config["x"]}, checkpoint=folder)


def slow(config):
    for epoch in range(3_000):
        time.sleep(0.1)
        mqtune.report({"loss": config["x"] / (epoch + 1)})


def silent(config):
    time.sleep(60)


def learns(config):
    """Report every 20 ms for less than a second; a larger x ends higher."""
    for epoch in range(1, 31):
        time.sleep(0.02)
        mqtune.report({"loss": config["x"] + 1 / epoch})


def dawdles(config):
    """Report as ``learns`` does; with a large x so slowly that others have ended before."""
    for epoch in range(1, 31):
        time.sleep(0.02 if config["x"] < 0.6 else 0.4)
        mqtune.report({"loss": config["x"] + 1 / epoch})


def raises(config):
    mqtune.report({"loss": 1.0})
    raise ValueError("the learning rate exploded")


def stubborn(config):
    is_told = False
    for epoch in range(600):
        try:
            time.sleep(0.05)
            if not is_told:
                mqtune.report({"loss": 1.0 + epoch})
        except BaseException:
            is_told = True


def reports_something_else(config):
    for epoch in range(3):
        mqtune.report({"accuracy": 0.5, "epoch": epoch})


def fails_above_a_half(config):
    mqtune.report({"loss": config["x"]})
    if config["x"] > 0.5:
        raise ValueError(f"{config['x']} is too much")


def as_long_as_it_says(config):
    mqtune.report({"loss": 1.0})
    time.sleep(config["seconds"])
    mqtune.report({"loss": 0.0})


def counts(config):
    """Report 1, 2, 3 … up to ``steps``, from the checkpoint on. Save one every 10 steps."""
    start = mqtune.get_checkpoint()
    done = 0 if start is None else start.data["step"]
    for step in range(done + 1, int(config["steps"]) + 1):
        time.sleep(config["step_s"])
        saves = config["saves"] and step % 10 == 0
        mqtune.report({"loss": 1 / step, "step": step}, checkpoint={"step": step} if saves else None)


def lingers(config):
    try:
        slow(config)
    finally:
        time.sleep(0.5)


def tells_all(config):
    """Print everything that a trial sees by itself, and fail once a file is there."""
    print("the trial's environment:", dict(os.environ))
    print("its arguments:", sys.argv, sys.orig_argv)
    print("its context:", mqtune.get_context())
    while not os.path.exists(config["go"]):
        time.sleep(0.05)
        mqtune.report({"loss": config["x"]})
    raise RuntimeError(f"all that is known: {dict(os.environ)}")


def tells_time(config):
    for epoch in range(9):
        mqtune.report({"loss": config["lr"] / (epoch + 1), "clock": time.time()})


def talks_until(config):
    print("on stderr", file=sys.stderr)
    for number in range(60_000):
        print(f"line {number}")
        mqtune.report({"loss": 1.0})
        if os.path.exists(config["until"]):
            break
        time.sleep(0.01)
    print("the end")


def names_its_seat(config):
    seat = mqtune.get_context().seat
    print(f"seat {seat}")
    print(f"on stderr of {seat}", file=sys.stderr)
    mqtune.report({"loss": 1.0})


def reports_nan(config):
    mqtune.report({"loss": float("nan")})
    mqtune.report({"loss": float("inf")})
    if config["x"] > 0.5:
        mqtune.report({"loss": 1.0})
