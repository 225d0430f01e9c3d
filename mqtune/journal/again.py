"""What a heartbeat says again as the last one did: plain commands in one message, in place of scripts.

A server wakes up once for a message, and a script costs it more than what is done in it. Plain commands don't take place in one step,
and have their times from the worker's idea of the server's clock. So they change only times until which something lasts, of what is
there; who sends them looks at the answers, and has the scripts do it where anything is not as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["CLOCK_SLACK_S", "Again", "Command", "all_known"]

Command = tuple[object, ...]
#: By how much the server's clock may differ from what the worker took it for: a frozen server, or a machine that slept, is noticed.
CLOCK_SLACK_S: Final = 1.0


class Again(NamedTuple):
    """The commands by which leases are renewed again, until a time of the server's in milliseconds; and what takes their answers."""

    commands: Callable[[int], list[Command]]
    take: Callable[[list[Any]], None]


def all_known(answers: Sequence[object]) -> bool:
    """Return whether no answer is an error."""
    return not any(isinstance(answer, Exception) for answer in answers)
