"""How a call to Redis is tried again while the server is away."""

from __future__ import annotations

import threading

import pytest
import redis

from mqtune.core.errors import BrokerUnavailable
from mqtune.journal.redis import RETRY_MAX_S, RETRY_MIN_S, retrying


class Closing(threading.Event):
    """Notes how long it is waited for, takes no time, and is set after some waits."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self._left = waits
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        self._left -= 1
        if not self._left:
            self.set()
        return self.is_set()


def away() -> None:
    raise redis.ConnectionError("Connection refused.")


def test_waits_grow_and_differ_from_client_to_client() -> None:
    """So that a thousand workers don't come back in one instant."""
    crowd = [Closing(waits=8) for _ in range(20)]
    for closing in crowd:
        with pytest.raises(BrokerUnavailable, match="Connection refused"):
            retrying(away, patience_s=60, closing=closing)

    for tries, wait_s in enumerate((RETRY_MIN_S, 2 * RETRY_MIN_S, 4 * RETRY_MIN_S)):
        waited = [closing.waited[tries] for closing in crowd]
        assert wait_s / 2 <= min(waited) < max(waited) <= wait_s
        assert len(set(waited)) > len(crowd) / 2
    assert all(RETRY_MAX_S / 2 <= closing.waited[-1] <= RETRY_MAX_S for closing in crowd)
