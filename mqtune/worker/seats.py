"""A worker's part in gangs: it holds a seat until the others are taken, and says where they reach it."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Final

from mqtune.core.errors import ConfigurationError
from mqtune.journal.base import Claim, Grant, Journal, Refusal, Seated

logger = logging.getLogger(__name__)

#: For how long a seat is held for others at least, unless the worker's operator says otherwise: workers take their
#: tasks within a second, and a slot should not stay unused much longer because one of them is busy.
SEAT_S: Final = 30.0
#: The longest time that an operator may give.
LONGEST_SEAT_S: Final = 86_400.0
#: By how much of that at most it is held longer. Two gangs of different experiments that each hold half of what the
#: other needs must not both give up at one moment.
_SPREAD: Final = 0.5
#: How often is looked whether the others are taken. While a seat is held, this is all that its worker does for it.
POLL_S: Final = 0.25
#: The environment variable with the address under which other machines reach this one.
ADVERTISE: Final = "MQTUNE_ADVERTISE"
#: Addresses of documentation (RFC 5737, RFC 3849). Nothing is sent there: a connected datagram socket has this
#: machine's own address.
_ELSEWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_DISCARD_PORT: Final = 9
#: Its own, as trials' drivers are seeded.
_spread: Final = random.Random()


class Address:
    """A port of this machine, kept from others until the trial's process may have it."""

    def __init__(self) -> None:
        self._socket = _reserved()
        #: Where others reach it: "host:port".
        self.text = f"{advertised()}:{self._socket.getsockname()[1]}"

    def give_up(self) -> None:
        """Let another process have the port."""
        self._socket.close()


def advertised() -> str:
    """Return the address under which other machines reach this one.

    It is the one that is set, or else that of the usual way to others.

    Raises:
        ConfigurationError: the one that is set is none.
    """
    if given := os.environ.get(ADVERTISE, "").strip():
        if any(letter.isspace() or letter in "/@" for letter in given):
            raise ConfigurationError(
                f"{ADVERTISE}={given!r} is no address; give the name or the IP address of this machine, such as "
                f"10.1.2.3, without a port"
            )
        return _bracketed(given)
    for family, elsewhere in _ELSEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, _DISCARD_PORT))
            return _bracketed(str(probe.getsockname()[0]))
    _warn_unreachable()
    return "127.0.0.1"


def _bracketed(host: str) -> str:
    """Return a host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


@cache
def _warn_unreachable() -> None:
    """Warn, once, that gangs over several machines can't meet here."""
    logger.warning(
        "this machine has no route to others, so a trial over several machines can't meet here: set %s to the address "
        "or name by which they reach it, such as 10.1.2.3",
        ADVERTISE,
    )


def _reserved() -> socket.socket:
    """Return a socket with a free port of its own, for IPv6 too where this machine has that."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return _bound(socket.AF_INET6)
    return _bound(socket.AF_INET)


def _bound(family: socket.AddressFamily) -> socket.socket:
    found = socket.socket(family)
    try:
        # Otherwise the trial's process would have to wait for the port after it was given up.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind(("", 0))
    except OSError:
        found.close()
        raise
    return found


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
    """Claim an attempt, or a seat of a gang, which it holds until the others are taken.

    It gives that back after a while.

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
