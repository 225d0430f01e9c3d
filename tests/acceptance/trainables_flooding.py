"""A trainable that reports without end."""

from __future__ import annotations

import itertools
from pathlib import Path

import mqtune


def floods(config):
    """Report 1, 2, 3 … until it is stopped, and leave a file that says how far it came."""
    step = 0
    try:
        for step in itertools.count(1):
            mqtune.report({"loss": 1 / step, "step": step})
            if step == config["steps"]:
                return
    finally:
        Path(config["told"]).write_text(str(step))
