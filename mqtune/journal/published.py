"""The entries of a journal as its server publishes them, for readers that do not ask again and again."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import redis

from mqtune.core.keys import ExperimentKeys
from mqtune.journal.base import Entry
from mqtune.journal.server.connection import database_of
from mqtune.journal.server.retry import retrying


class Published(NamedTuple):
    """A message of the channel: an entry, and the id of the entry before it.

    ``entry`` is None when a subscription has begun, perhaps again: only the journal has the entries before it.
    """

    entry: Entry | None
    before: str = ""


class PublishedEntries:
    """The metrics channel of an experiment. One thread uses it.

    A server drops messages without an error: when it cuts a slow reader off, when a connection breaks, when a replica
    takes over. A reader compares ``before`` with its last entry, and reads missing entries from the journal.
    """

    def __init__(self, client: redis.Redis, experiment: str) -> None:
        # redis-py's types allow for the answers of other settings.
        self._client: Any = client
        self._channel = ExperimentKeys(experiment, database_of(client)).metrics
        self._pubsub: Any = None

    def next(self, timeout_s: float, *, patience_s: float) -> Published | None:
        """Return the next message, waiting up to *timeout_s* seconds. Return None without one.

        Without a subscription, make one, and try to reach a server that is away for *patience_s* seconds. A broken
        connection ends the subscription.

        Raises:
            BrokerUnavailable: the server was away for too long.
        """
        if self._pubsub is None:
            retrying(self._subscribe, patience_s=patience_s)
        try:
            message = self._pubsub.get_message(timeout=timeout_s)
        except (redis.ConnectionError, redis.TimeoutError, OSError):
            self.close()
            return None
        if message is None:
            return None
        if message["type"] != "message":
            return Published(None)
        id_, before, data = message["data"].split(b" ", 2)
        return Published(Entry(id_.decode(), data), before.decode())

    def close(self) -> None:
        """End the subscription."""
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with contextlib.suppress(redis.RedisError, OSError):
                pubsub.close()

    def _subscribe(self) -> None:
        self.close()
        self._pubsub = self._client.pubsub()
        self._pubsub.subscribe(self._channel)
