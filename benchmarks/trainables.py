"""The bodies as mqtune's trainables: functions that a worker can import by name."""

from __future__ import annotations

from typing import Any

import mqtune
from benchmarks import bodies

__all__ = ["asha", "noop", "stoppable", "stream"]

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
