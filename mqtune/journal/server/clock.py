"""The Redis server's clock, which all machines share."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any, Final

import redis

from mqtune.core.clock import Clock

#: Interval of queries to the server. A slept machine or a moved server is noticed this soon, at little cost.
ASK_AGAIN_S: Final = 10.0


class ServerClock:
    """The Redis server's time, independent of this machine's clock.

    The server is queried regularly. In between, this machine's monotonic clock extrapolates its answer, so a wrong or
    adjusted local clock changes nothing. While no server answers, the last answer counts. Thread-safe.
    """

    def __init__(self, client: redis.Redis, own: Clock = time) -> None:
        self._own = own
        # redis-py's types include the results of other settings.
        self._client: Any = client
        #: The time at 0 of the monotonic clock: this machine's until the server has answered.
        self._epoch_s = self._own.time() - self._own.monotonic()
        self._ask_at = -math.inf

    def time(self) -> float:
        """Return the server's time in seconds since the epoch (UTC). It may step."""
        asked_at = self._own.monotonic()
        if asked_at >= self._ask_at:
            self._ask_at = asked_at + ASK_AGAIN_S
            with contextlib.suppress(redis.RedisError, OSError):
                seconds, microseconds = self._client.time()
                told = seconds + microseconds / 1e6
                earliest, latest = told - self._own.monotonic(), told - asked_at
                # The answer was given at some moment of the call. A possible epoch is kept, so that times don't jump by
                # the uncertainty of a slow answer.
                if not earliest <= self._epoch_s <= latest:
                    self._epoch_s = (earliest + latest) / 2
        return self._epoch_s + self._own.monotonic()

    def monotonic(self) -> float:
        """Return seconds since a moment shared by this machine's processes. It never decreases."""
        return self._own.monotonic()
