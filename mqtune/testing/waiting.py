"""Waits in tests for a condition, with a deadline, instead of for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

#: Time limit of a wait, in seconds. An action that starts one or two programs takes a tenth of it on a busy machine.
DEADLINE_S: Final = 30.0
#: Shortest and longest pause between two checks, in seconds.
_POLL_S: Final = 0.002
_LONGEST_POLL_S: Final = 0.02
#: Between these limits, the pause is this share of the time waited so far.
_SHARE: Final = 0.05


def eventually(condition: Callable[[], T], deadline_s: float = DEADLINE_S, why: str = "") -> T:
    """Call *condition* until it returns a true value, and return that.

    After *deadline_s* seconds the test fails, and the message has *why*.
    """
    began = time.monotonic()
    while not (outcome := condition()):
        waited_s = time.monotonic() - began
        assert waited_s < deadline_s, f"not within {deadline_s:g} s: {why or condition}"
        time.sleep(min(max(_POLL_S, _SHARE * waited_s), _LONGEST_POLL_S))
    return outcome
