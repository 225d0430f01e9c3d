"""The trials that save, as mqtune's trainables; apart from the others, since what a trial imports is part of what it costs."""

from __future__ import annotations

from typing import Any

import mqtune
from benchmarks import saving

__all__ = ["dicts", "directories", "large", "pausing", "stream_dicts"]

Config = dict[str, Any]


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


def large(config: Config) -> None:
    """Save a large directory in two ways, and the bytes of both without mqtune, in turns."""
    sizes = {"files": config["large_files"], "megabytes": config["large_megabytes"], "rounds": config["rounds"]}
    saving.large(mqtune.report, mqtune.checkpoint_dir, config["folder"], **sizes)
