"""Trainables that keep a worker's slot busy, or leave it in one way or another."""

from __future__ import annotations

import time

import mqtune


def sometimes_fails(config: dict[str, float]) -> None:
    mqtune.report({"loss": config["x"]})
    if config["x"] > 1:
        raise RuntimeError("bad luck")


def waits_for_its_end(config: dict[str, float]) -> None:
    mqtune.report({"loss": config["x"]})
    while True:
        time.sleep(1)
