"""The worker, as what runs in its slots sees it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mqtune.core.clock import Clock
from mqtune.worker.logs import Logs
from mqtune.worker.processes import MemoryKills
from mqtune.worker.scratch import Scratch
from mqtune.worker.slots import BackOff, Slot
from mqtune.worker.uplink import Uplink
from mqtune.worker.zygotes import CodeManifests

if TYPE_CHECKING:
    from mqtune.worker.attempt import AttemptRun

__all__ = ["Host"]


class Host(Protocol):
    """A worker.

    ``grace_s`` is how long trials have, once it is told to go, to save and to leave. ``clock`` tells the time that all machines
    share.
    """

    name: str
    host: str
    queue: str
    code_root: Path
    logs: Logs
    manifests: CodeManifests
    lease_s: float
    grace_s: float
    closing: threading.Event
    draining: bool
    running: set[AttemptRun]
    clock: Clock
    uplink: Uplink
    scratch: Scratch
    back_off: BackOff
    memory_kills: MemoryKills

    def check_store(self, url: str) -> None:
        """Raise StoreUnavailable unless this worker can reach the checkpoint store and write to it."""

    def offer(self, slot: Slot) -> None:
        """Let the next attempt prepare in a slot whose trial has ended."""

    def fetch_ahead(self) -> None:
        """Have the next task fetched while a trial ends."""
