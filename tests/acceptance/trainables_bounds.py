"""Trainables of test_bounds.py, which ask for more than there is; workers import them from here."""

from __future__ import annotations

import sys
import time

import mqtune

MB = 10**6
#: What a trial prints that prints without end: several times what a file keeps.
PRINTED_BYTES = 300 * MB


def reports_in_a_burst(config):
    for number in range(config["reports"]):
        mqtune.report({"loss": -float(number), "number": number})


def prints(config):
    print("to stdout")
    print("to stderr", file=sys.stderr)
    mqtune.report({"loss": 1.0})


def reports_steadily(config):
    for number in range(150):
        time.sleep(0.005)
        mqtune.report({"loss": 1.0 / (number + 1), "number": number})
