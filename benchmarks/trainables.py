"""The bodies as mqtune's trainables: functions that a worker can import by name."""

from __future__ import annotations

from typing import Any

import mqtune
from benchmarks import bodies, saving

__all__ = ["asha", "dicts", "directories", "noop", "park", "pausing", "stoppable", "stream", "stream_dicts"]

Config = dict[str, Any]


def noop(_config: Config) -> None:
    """Report once and end."""
    bodies.noop(mqtune.report)


def stream(config: Config) -> None:
    """Report as fast as possible."""
    bodies.stream(
        mqtune.report, config["folder"], config["index"], reports=config["reports"], parties=config["parties"]
    )


def stoppable(config: Config) -> None:
    """Report every 20 ms until stopped."""
    bodies.stoppable(mqtune.report, config["folder"], config["index"])


def asha(config: Config) -> None:
    """Train on the synthetic curve."""
    bodies.asha(mqtune.report, config["folder"], config["index"])


def park(config: Config) -> None:
    """Report once and wait."""
    bodies.park(mqtune.report, config["folder"], config["index"])


def pausing(_config: Config) -> None:
    """Report every few milliseconds, with a small dict, until paused."""
    saving.pausing(mqtune.report, mqtune.get_checkpoint)


def dicts(config: Config) -> None:
    """Report with a small dict and without, in turns."""
    saving.dicts(mqtune.report, config["folder"], reports=config["reports"])


def stream_dicts(config: Config) -> None:
    """Report as fast as possible, each time with a small dict."""
    saving.stream_dicts(mqtune.report, config["folder"], config["index"], reports=config["stream_reports"])


def directories(config: Config) -> None:
    """Copy a large directory, and report with it, in turns."""
    saving.directories(mqtune.report, config["folder"], megabytes=config["megabytes"], rounds=config["rounds"])
