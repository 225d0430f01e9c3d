"""Waiting in tests: for a condition, with a deadline, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

#: The deadline of what should happen at once: some hundred times what that takes on a busy machine.
DEADLINE_S: Final = 10.0
_POLL_S: Final = 0.002


def eventually(condition: Callable[[], T], deadline_s: float = DEADLINE_S, why: str = "") -> T:
    """Return the first true value that *condition* returns; fail, with *why*, after *deadline_s* seconds."""
    deadline = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {why or condition}"
        time.sleep(_POLL_S)
    return found
