"""Trainables of test_bounds.py, which ask for more than there is; workers import them from here."""

from __future__ import annotations

import os
import resource
import sys
import time

import mqtune
from mqtune.worker.logs import MAX_BYTES

MB = 10**6
#: What a trial prints that prints without end: several times what a file keeps.
PRINTED_BYTES = 300 * MB


def prints_without_end(config):
    print("the first line")
    line = b"." * 99_999 + b"\n"
    for _ in range(PRINTED_BYTES // len(line)):
        os.write(1, line)
        os.write(2, line)
    # A line that is printed while a file is truncated may be lost with what is cut out.
    while os.fstat(1).st_size > MAX_BYTES or os.fstat(2).st_size > MAX_BYTES:
        time.sleep(0.01)
    print("the last line")
    mqtune.report({"loss": 1.0})
    raise ValueError("no luck")


def reports_large_things(config):
    """Report what is large, each with the metric; what is refused is told in the last report."""
    large = {
        "text": "x" * MB,
        "list": list(range(200_000)),
        "keys": {f"metric_{number:04d}": float(number) for number in range(5_000)},
        "name": {"n" * 10_000: 1.0},
        "deep": nested(500),
        "not numbers": [float("nan"), float("inf"), -float("inf")],
    }
    for name, value in large.items():
        mqtune.report({"loss": 2.0, **(value if name in ("keys", "name") else {name: value})})
    refused = []
    for value in ("x" * 2 * MB, nested(5_000), {(1, 2): 3}):
        try:
            mqtune.report({"loss": 2.0, "culprit": value})
        except (mqtune.core.errors.ReportTooLarge, TypeError) as error:
            refused.append(str(error))
    # The best, and so what is shown.
    mqtune.report({"loss": 1.0, **large["keys"], "refused": refused, "text": "y" * 100_000, "n" * 10_000: 3.0})


def nested(depth):
    value = 1.0
    for _ in range(depth):
        value = {"d": value}
    return value


def reports_in_a_burst(config):
    for number in range(config["reports"]):
        mqtune.report({"loss": -float(number), "number": number})


def has_a_large_config(config):
    mqtune.report({"loss": float(len(config["text"]))})


def meets_a_full_store(config):
    """Save into a store that is full, and then again when there is room."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    folder = mqtune.get_context().folder / "state"
    folder.mkdir()
    (folder / "model").write_bytes(b"x" * MB)
    # What is written to the store is cut off in its middle, as a full disk does it.
    resource.setrlimit(resource.RLIMIT_FSIZE, (MB // 2, hard))
    try:
        mqtune.report({"loss": 1.0}, checkpoint=folder)
    except mqtune.core.errors.StoreUnavailable as error:
        refused = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    mqtune.report({"loss": 0.5, "refused": refused}, checkpoint=folder)


def prints(config):
    print("to stdout")
    print("to stderr", file=sys.stderr)
    mqtune.report({"loss": 1.0})


def reports_steadily(config):
    for number in range(150):
        time.sleep(0.005)
        mqtune.report({"loss": 1.0 / (number + 1), "number": number})
