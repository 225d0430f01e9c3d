"""The server's clock: the one time that all machines share."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any, Final

import redis

from mqtune.core.clock import Clock

#: How often the server is asked: a machine that slept, or a server that moved, is noticed this soon, for next to
#: nothing.
ASK_AGAIN_S: Final = 10.0


class ServerClock:
    """The time of the Redis server, whatever this machine's own clock says.

    The server is asked now and then; between, this machine's monotonic clock goes on from its answer, so that a clock
    that is set, or hours off, changes nothing. While no server answers, its last answer counts. Any thread may use it.

    Args:
        client: a connection.
        own: this machine's clock.
    """

    def __init__(self, client: redis.Redis, own: Clock = time) -> None:
        self._own = own
        # redis-py's types allow for what other settings would return.
        self._client: Any = client
        #: The time when the monotonic clock was 0: this machine's, until the server has answered.
        self._epoch_s = self._own.time() - self._own.monotonic()
        self._ask_at = -math.inf

    def time(self) -> float:
        """Return the server's time in seconds since the epoch (UTC); it may step, as the server's may."""
        asked_at = self._own.monotonic()
        if asked_at >= self._ask_at:
            self._ask_at = asked_at + ASK_AGAIN_S
            with contextlib.suppress(redis.RedisError, OSError):
                seconds, microseconds = self._client.time()
                told = seconds + microseconds / 1e6
                earliest, latest = told - self._own.monotonic(), told - asked_at
                # The answer was given at some moment of the call. What may be right stays: times must not jump by as
                # much as a slow answer leaves open.
                if not earliest <= self._epoch_s <= latest:
                    self._epoch_s = (earliest + latest) / 2
        return self._epoch_s + self._own.monotonic()

    def monotonic(self) -> float:
        """Return seconds since some moment, the same for all processes of this machine; it never goes back."""
        return self._own.monotonic()
