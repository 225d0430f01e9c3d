"""A worker's part in gangs: it holds a seat until the others are taken, and says where they reach it."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from mqtune.core.errors import ConfigurationError
from mqtune.journal.base import Claim, Grant, Journal, Refusal, Seated

#: For how long a seat is held for others at least, unless the worker's operator says otherwise: workers take their tasks within a second,
#: and a slot should not stay unused much longer because one of them is busy.
SEAT_S: Final = 30.0
#: The longest time that an operator may give.
LONGEST_SEAT_S: Final = 86_400.0
#: By how much of that at most it is held longer. Two gangs of different experiments that each hold half of what the other needs must not
#: both give up at one moment.
_SPREAD: Final = 0.5
#: How often is looked whether the others are taken. While a seat is held, this is all that its worker does for it.
POLL_S: Final = 0.25
#: The environment variable with the address under which other machines reach this one.
ADVERTISE: Final = "MQTUNE_ADVERTISE"
#: An address of documentation (RFC 5737), to which nothing is sent: a socket that is to send there says by which of this machine's own.
_ELSEWHERE: Final = ("192.0.2.1", 9)
#: Its own, as trials' drivers are seeded.
_spread: Final = random.Random()


class Address:
    """A port of this machine, kept from others until the trial's process may have it."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        # Or whoever listens there after it was given up would have to wait.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        #: Where others reach it: "host:port".
        self.text = f"{advertised()}:{self._socket.getsockname()[1]}"

    def give_up(self) -> None:
        """Let another process have the port."""
        self._socket.close()


def advertised() -> str:
    """Return the address under which other machines reach this one: the one that is set, or else that of its usual way to others.

    Raises:
        ConfigurationError: the one that is set is none.
    """
    if given := os.environ.get(ADVERTISE, "").strip():
        if any(letter.isspace() or letter in "/@" for letter in given):
            raise ConfigurationError(
                f"{ADVERTISE}={given!r} is no address; give the name or the IP address of this machine, such as 10.1.2.3, without a port"
            )
        return f"[{given}]" if ":" in given and not given.startswith("[") else given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(_ELSEWHERE)
        return str(probe.getsockname()[0])
    # It has no way to others.
    return "127.0.0.1"


def claim_seat(
    journal: Journal,
    claim: Claim,
    worker: str,
    event: bytes,
    *,
    lease_s: float,
    seat_s: float,
    address: str,
    gives_up: Callable[[], bool],
    look: threading.Event,
) -> Grant | Refusal | Seated:
    """Claim an attempt, or a seat of a gang, which it holds until the others are taken; it gives that back after a while.

    Args:
        journal: the experiment's.
        claim: the claim.
        worker: the worker's name.
        event: the start.
        lease_s: for how long each claim holds.
        seat_s: for how long it waits for the others at least.
        address: where these reach this seat.
        gives_up: whether it is to wait no longer.
        look: has it look again before its time, once set.
    """
    until = time.monotonic() + seat_s * (1 + _spread.random() * _SPREAD)
    while (answer := journal.claim(claim, worker, lease_s, event, address)) == "seated":
        if gives_up() or time.monotonic() >= until:
            return journal.claim(claim, worker, 0, event, address)
        look.wait(POLL_S)
    return answer
