"""Waiting in tests: for a condition, with a deadline, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

#: Ten times the duration of an immediate action with a program start or two, on a busy machine.
DEADLINE_S: Final = 30.0
#: The pause between two checks, at first and at most, and in between as a share of the time waited so far.
_POLL_S: Final = 0.002
_LONGEST_POLL_S: Final = 0.02
_SHARE: Final = 0.05


def eventually(condition: Callable[[], T], deadline_s: float = DEADLINE_S, why: str = "") -> T:
    """Return the first true value of *condition*. Fail, with *why*, after *deadline_s* seconds."""
    began = time.monotonic()
    while not (outcome := condition()):
        waited_s = time.monotonic() - began
        assert waited_s < deadline_s, f"not within {deadline_s:g} s: {why or condition}"
        time.sleep(min(max(_POLL_S, _SHARE * waited_s), _LONGEST_POLL_S))
    return outcome
