"""Waiting in tests: for a condition, with a deadline, and never for a time; and what of a process is waited for."""

from __future__ import annotations

import psutil

from mqtune.testing.waiting import DEADLINE_S, eventually

__all__ = ["DEADLINE_S", "eventually", "lives"]


def lives(process: psutil.Process) -> bool:
    """Whether a process still does something; a dead one that nobody has waited for doesn't."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
