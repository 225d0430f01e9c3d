"""Trainables that tell what their machine's clock says; workers import them from here."""

from __future__ import annotations

import time

import mqtune


def tells_time(config):
    for epoch in range(9):
        mqtune.report({"loss": config["lr"] / (epoch + 1), "clock": time.time()})


def runs_on(config):
    while True:
        time.sleep(0.05)
        mqtune.report({"loss": 1.0, "clock": time.time()})
