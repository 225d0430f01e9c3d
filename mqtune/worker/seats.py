"""A worker's part in gangs: it reserves a seat until all are taken, and has its address."""

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

#: Least time that a seat is reserved while others are free, unless the operator sets another.
SEAT_S: Final = 30.0
#: Maximum that an operator may set.
LONGEST_SEAT_S: Final = 86_400.0
#: Largest random addition, as a fraction of that time, so that two gangs that block each other don't give up together.
_SPREAD: Final = 0.5
#: Interval of checks for the other seats. A reserved seat costs its worker nothing else.
POLL_S: Final = 0.25
#: Environment variable with the address of this machine for other machines.
ADVERTISE: Final = "MQTUNE_ADVERTISE"
#: Addresses for documentation (RFC 5737, RFC 3849). Nothing is sent there: a connected datagram socket shows this
#: machine's own address.
_ELSEWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_DISCARD_PORT: Final = 9
#: Separate generator, because trials' drivers seed the global one.
_spread: Final = random.Random()


class Address:
    """A port of this machine, reserved until the trial's process takes it."""

    def __init__(self) -> None:
        self._socket = _reserved()
        #: Address for other machines: "host:port".
        self.text = f"{advertised()}:{self._socket.getsockname()[1]}"

    def give_up(self) -> None:
        """Release the port for another process."""
        self._socket.close()


def advertised() -> str:
    """Return the address of this machine for other machines.

    It is the configured one, or else the source address of the default route.

    Raises:
        ConfigurationError: the configured address is invalid.
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
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


@cache
def _warn_unreachable() -> None:
    logger.warning(
        "this machine has no route to others, so a trial over several machines can't meet here: set %s to the address "
        "or name by which they reach it, such as 10.1.2.3",
        ADVERTISE,
    )


def _reserved() -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return _bound(socket.AF_INET6)
    return _bound(socket.AF_INET)


def _bound(family: socket.AddressFamily) -> socket.socket:
    found = socket.socket(family)
    try:
        # Otherwise the trial's process would have to wait after the port's release.
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
    """Claim an attempt or a gang's seat. Reserve the seat until the others are taken.

    The seat is returned after *seat_s* seconds or more, or if *gives_up* says so. Setting *look* causes an early check.
    """
    until = time.monotonic() + seat_s * (1 + _spread.random() * _SPREAD)
    while (answer := journal.claim(claim, worker, lease_s, event, address)) == "seated":
        if gives_up() or time.monotonic() >= until:
            return journal.claim(claim, worker, 0, event, address)
        look.wait(POLL_S)
    return answer
