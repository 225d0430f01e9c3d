"""The address by which the machines of a gang reach this one."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from functools import cache
from typing import Final

from mqtune.core.errors import ConfigurationError

logger = logging.getLogger(__name__)

#: The environment variable with the address under which other machines reach this one.
ADVERTISE: Final = "MQTUNE_ADVERTISE"
#: Addresses for documentation (RFC 5737, RFC 3849). Nothing is sent there: a connected datagram socket shows this
#: machine's own address.
_ELSEWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_DISCARD_PORT: Final = 9


class Address:
    """A free port of this machine, reserved until the trial's process may use it."""

    def __init__(self) -> None:
        self._socket = _reserved()
        #: The address of the port: "host:port".
        self.text = f"{advertised()}:{self._socket.getsockname()[1]}"

    def give_up(self) -> None:
        """Release the port for another process."""
        self._socket.close()


def advertised() -> str:
    """Return the address of this machine for other machines.

    It is the configured address, or else the default route's.

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
    """Return a host as it is written before a port. IPv6 addresses get brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


@cache
def _warn_unreachable() -> None:
    logger.warning(
        "this machine has no route to others, so a trial over several machines can't meet here: set %s to the address "
        "or name by which they reach it, such as 10.1.2.3",
        ADVERTISE,
    )


def _reserved() -> socket.socket:
    """Return a socket that is bound to a free port, for IPv6 too if this machine has that."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return _bound(socket.AF_INET6)
    return _bound(socket.AF_INET)


def _bound(family: socket.AddressFamily) -> socket.socket:
    bound = socket.socket(family)
    try:
        # Otherwise the trial's process would have to wait after the port's release.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(("", 0))
    except OSError:
        bound.close()
        raise
    return bound
