"""A journal's server that loses what it had."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

import redis

from mqtune.journal import MemoryServer


def snapshot(server: MemoryServer) -> Any:
    """All that a server holds."""
    return copy.deepcopy(server.experiments)


def set_back(server: MemoryServer, before: Any = None) -> None:
    """Have a server hold what it did then, or nothing; journals that are in use notice nothing of it."""
    server.losses += 1
    for name, state in server.experiments.items():
        held = copy.deepcopy((before or {}).get(name, type(state)()))
        for field in fields(state):
            setattr(state, field.name, getattr(held, field.name))


def snapshot_of_redis(client: redis.Redis) -> dict[bytes, bytes]:
    """All that a server holds."""
    held: Any = client
    return {key: held.dump(key) for key in held.keys("*")}


def set_back_redis(client: redis.Redis, before: dict[bytes, bytes]) -> None:
    """Have a server hold what it did then, and nothing else, in one step."""
    with client.pipeline() as pipe:
        pipe.flushdb()
        for key, value in before.items():
            pipe.restore(key.decode(), 0, value)  # type: ignore[arg-type]
        pipe.execute()
