"""Connections to servers. Only commands that connect import redis, which is slow to import."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mqtune.core.timing import Timing

if TYPE_CHECKING:
    from mqtune.client import Client
    from mqtune.journal.server.connection import RedisClient

#: How long a command waits for a server that does not answer, in seconds.
PATIENCE_S: Final = Timing().connect_timeout_s


def client_of(broker: str) -> Client:
    """Return a client of a broker."""
    from mqtune.client import Client  # noqa: PLC0415

    return Client(broker)


@contextlib.contextmanager
def redis_at(url: str, *, role: str = "reader", timing: Timing = Timing()) -> Iterator[RedisClient]:
    """Connect to the Redis at a URL within the block, in this role."""
    from mqtune.journal.server.connection import connect  # noqa: PLC0415

    with contextlib.closing(connect(url, timing=timing, role=role)) as client:
        yield client
