"""Workers of a fleet that are not there, as a register shows them."""

from __future__ import annotations

from typing import Any

from mqtune.core.impairment import Impairment
from mqtune.core.version import __version__
from mqtune.core.worker_info import WorkerInfo


def worker(name: str = "w@h", **details: Any) -> WorkerInfo:
    """A worker of one slot, but for these details."""
    plain = {
        "name": name,
        "host": "h",
        "pid": 1,
        "version": __version__,
        "queue": "q",
        "gpus": 0,
        "cpus": 1,
        "slots": 1,
    }
    return WorkerInfo(**{**plain, "devices": ["0"], "code_root": "/", "joined_at": 1.0, **details})


def impairment(text: str = "it is full", device: str = "0", **details: Any) -> Impairment:
    """What keeps a device from its work, but for these details."""
    return Impairment(**{"kind": "memory", "ends": "it is free", "since": 1.0, **details}, device=device, text=text)
