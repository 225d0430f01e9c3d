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
    """A channel of kombu's without acknowledgements and with one Redis client.

    A base before kombu's class.
    """

    closed: bool

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.priority_steps = [*MESSAGE_ORDER]
        _channels.add(self)

    def priority(self, n: int) -> int:
        """Return the priority whose list takes a message; kombu's own goes by their numbers."""
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
    """Close the connections of channels that were unused for some seconds."""
    for channel in tuple(_channels):
        if not channel.closed:
            channel.close_unused(for_s)


class TrialChannel(_Consuming, redis_transport.Channel):
    """Such a channel to one server."""


class FollowingChannel(_Consuming, redis_transport.SentinelChannel):
    """Such a channel to the master that Sentinels name."""


class _Sparing:
    """A transport of kombu's with few connections; a base before kombu's class."""

    def register_with_event_loop(self, connection: object, loop: object) -> None:
        """Begin to consume. The eight connections of the preparation are too many for a thousand workers."""
        super().register_with_event_loop(connection, loop)  # type: ignore[misc]
        close_unused_channels(0)


class TrialTransport(_Sparing, redis_transport.Transport):
    """kombu's Redis transport with the channel above."""

    Channel = TrialChannel


class FollowingTransport(_Sparing, redis_transport.SentinelTransport):
    """kombu's transport that follows a master, likewise."""

    Channel = FollowingChannel


def _drop_malformed(read: Callable[[], Any]) -> Any:
    """Read and handle a message. Drop a malformed message, which would end the worker."""
    try:
        return read()
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError):
        logger.warning("a malformed message was dropped", exc_info=True)
        raise Empty from None
