"""The transport of a worker's tasks: kombu's for Redis, with few connections."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any, Final
from weakref import WeakSet

from kombu.transport import redis as redis_transport

from mqtune.core.priorities import MESSAGE_ORDER
from mqtune.journal.server.connection import OneClient

logger = logging.getLogger(__name__)


class _Consuming(OneClient):
    """A base of kombu's channels: without acknowledgements, and with one Redis client."""

    closed: bool

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.priority_steps = [*MESSAGE_ORDER]
        _channels.add(self)

    def priority(self, n: int) -> int:
        """Return the priority of the list that gets a message: *n* if mqtune uses it, else 0."""
        return n if n in MESSAGE_ORDER else 0

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Do nothing: the worker's queue is consumed without acknowledgements."""

    def _brpop_read(self, **options: Any) -> Any:
        # kombu's class follows this one among the bases.
        return _drop_malformed(partial(super()._brpop_read, **options))  # type: ignore[misc]

    def _receive_one(self, client: Any) -> Any:
        return _drop_malformed(partial(super()._receive_one, client))  # type: ignore[misc]


#: The worker's channels: one to consume, one for remote commands, one for events.
_channels: Final[WeakSet[_Consuming]] = WeakSet()


def close_unused_channels(for_s: float) -> None:
    """Close the connections of all channels that were not used for some seconds."""
    for channel in tuple(_channels):
        if not channel.closed:
            channel.close_unused(for_s)


class TrialChannel(_Consuming, redis_transport.Channel):
    """A worker's channel to a single server."""


class FollowingChannel(_Consuming, redis_transport.SentinelChannel):
    """A worker's channel to the master that Sentinels name."""


class _FewConnections:
    """A base of kombu's transports, which keeps few connections."""

    def register_with_event_loop(self, connection: object, loop: object) -> None:
        """Begin to consume, and close the eight connections that kombu has used to prepare."""
        super().register_with_event_loop(connection, loop)  # type: ignore[misc]
        close_unused_channels(0)


class TrialTransport(_FewConnections, redis_transport.Transport):
    """kombu's Redis transport with ``TrialChannel``."""

    Channel = TrialChannel


class FollowingTransport(_FewConnections, redis_transport.SentinelTransport):
    """kombu's Sentinel transport with ``FollowingChannel``."""

    Channel = FollowingChannel


def _drop_malformed(read: Callable[[], Any]) -> Any:
    """Read and handle a message. A malformed one would end the worker; drop it and raise Empty."""
    try:
        return read()
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError):
        logger.warning("a malformed message was dropped", exc_info=True)
        raise Empty from None
