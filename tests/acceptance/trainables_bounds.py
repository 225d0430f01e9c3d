"""Trainables of test_bounds.py, which ask for more than there is; workers import them from here."""

from __future__ import annotations

import time

import mqtune

MB = 10**6
#: What a trial prints that prints without end: several times what a file keeps.
PRINTED_BYTES = 300 * MB


def reports_thousands(config):
    mqtune.report({f"metric_{number:04d}": 1.0 for number in range(5_000)})


def reports_in_a_burst(config):
    for number in range(config["reports"]):
        mqtune.report({"loss": -float(number), "number": number})


def reports_steadily(config):
    for number in range(150):
        time.sleep(0.005)
        mqtune.report({"loss": 1.0 / (number + 1), "number": number})
