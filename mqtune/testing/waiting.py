"""Waiting in tests: for a condition, with a deadline, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

#: The deadline of what should happen at once, with the start of a program or two: ten times what that takes on a busy machine.
DEADLINE_S: Final = 30.0
#: The pause between two looks, at first and at most; between them it is a share of what has been waited for. A look may cost
#: as much as the work that is waited for.
_POLL_S: Final = 0.002
_LONGEST_POLL_S: Final = 0.02
_SHARE: Final = 0.05


def eventually(condition: Callable[[], T], deadline_s: float = DEADLINE_S, why: str = "") -> T:
    """Return the first true value that *condition* returns; fail, with *why*, after *deadline_s* seconds."""
    began = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - began
        assert waited_s < deadline_s, f"not within {deadline_s:g} s: {why or condition}"
        time.sleep(min(max(_POLL_S, _SHARE * waited_s), _LONGEST_POLL_S))
    return found
