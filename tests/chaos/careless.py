"""The counting function in a module that does to signals, when it is imported, what libraries do now and then."""

from __future__ import annotations

import signal
from typing import Any

import counting

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.set_wakeup_fd(-1)


def counts(config: dict[str, Any]) -> None:
    """Count up; see counting."""
    counting.counts(config)
