"""Waiting in tests: for a condition, with a deadline, and never for a time; and what of a process is waited for."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import psutil

from mqtune.testing.waiting import DEADLINE_S, eventually

__all__ = ["DEADLINE_S", "all_gone", "described", "ended_process", "eventually", "family_of", "is_gone", "lives"]


def family_of(pid: int) -> list[psutil.Process]:
    """A process and all below it; none if it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(pid)
        return [found, *found.children(recursive=True)]
    return []


def all_gone(family: list[psutil.Process]) -> bool:
    return not any(map(lives, family))


def lives(process: psutil.Process) -> bool:
    """Whether a process still does something; a dead one that nobody has waited for doesn't."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def described(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"process {process.pid}, child of {process.ppid()}: {' '.join(process.cmdline())}"
    return f"process {process.pid}, gone"


def is_gone(pid: int) -> bool:
    """Whether no process has a number, or only a dead one that nobody has waited for."""
    try:
        return not lives(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def ended_process() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid
