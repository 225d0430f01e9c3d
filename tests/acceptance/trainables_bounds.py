"""Trainables of test_bounds.py, which ask for more than there is; workers import them from here."""

from __future__ import annotations

import time

import mqtune


def reports_steadily(config):
    for number in range(150):
        time.sleep(0.005)
        mqtune.report({"loss": 1.0 / (number + 1), "number": number})
