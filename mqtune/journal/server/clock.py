"""The Redis server's clock, which all machines share."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any, Final

import redis

from mqtune.core.clock import Clock

#: Interval of queries to the server, in seconds. If the machine has slept, or another server answers, the clock is
#: wrong for at most this long.
ASK_AGAIN_S: Final = 10.0


class ServerClock:
    """The Redis server's time, independent of this machine's time of day. Thread-safe.

    The server is asked every ``ASK_AGAIN_S`` seconds. In between, and while no server answers, this machine's monotonic
    clock continues from the last answer.
    """

    def __init__(self, client: redis.Redis, own: Clock = time) -> None:
        self._own = own
        # redis-py's types include the results of other settings.
        self._client: Any = client
        #: The server's time when the monotonic clock was 0. Until the first answer, this machine's time.
        self._epoch_s = self._own.time() - self._own.monotonic()
        self._ask_at = -math.inf

    def time(self) -> float:
        """Return the server's time in seconds since the epoch (UTC).

        It may jump if the server's clock is set.
        """
        asked_at = self._own.monotonic()
        if asked_at >= self._ask_at:
            self._ask_at = asked_at + ASK_AGAIN_S
            with contextlib.suppress(redis.RedisError, OSError):
                seconds, microseconds = self._client.time()
                server_time = seconds + microseconds / 1e6
                earliest, latest = server_time - self._own.monotonic(), server_time - asked_at
                # The server read its clock at an unknown moment of the call. If the previous epoch is still possible,
                # it stays, so that a slow answer makes no jump.
                if not earliest <= self._epoch_s <= latest:
                    self._epoch_s = (earliest + latest) / 2
        return self._epoch_s + self._own.monotonic()

    def monotonic(self) -> float:
        """Return seconds since a fixed moment, the same for all processes of this machine."""
        return self._own.monotonic()
