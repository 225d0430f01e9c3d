"""What threads look at during a run: quotas and leases, which claims are held against afterwards, and how the machine stalls."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Final, NamedTuple, Self

import redis
from lone import connected

#: How long after a look the next one begins, in seconds.
_EVERY_S: Final = 0.03
QUOTAS: Final = "mqtune:quotas"


class Look(NamedTuple):
    """What a Redis had at one moment by its own clock: quotas by pattern, and until when each trial's lease holds, by experiment and trial."""

    at: float
    quotas: dict[str, int]
    leases: dict[tuple[str, str], float]


class _Watching:
    """A thread that watches something for as long as it is entered."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        raise NotImplementedError


class Stalls(_Watching):
    """How late a thread wakes up at worst: where that is seconds, a lease may run out by the machine's fault."""

    worst_s = 0.0

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.05):
            now = time.monotonic()
            self.worst_s = max(self.worst_s, now - last - 0.05)
            last = now


class Looks(_Watching):
    """Looks at a Redis, which may be another one each time, whenever it answers.

    Args:
        server: where it is.
        leases: the key of the leases of each experiment, by its name.
    """

    def __init__(self, server: Any, leases: dict[str, str]) -> None:
        super().__init__()
        self.taken: list[Look] = []
        self._server = server
        self._leases = leases

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            with contextlib.suppress(redis.RedisError, OSError), connected(self._server, socket_timeout=2.0) as client:
                port = self._server.port
                while not self._over.wait(_EVERY_S) and port == self._server.port:
                    self.taken.append(self._look(client))

    def _look(self, client: Any) -> Look:
        # All in one moment.
        with client.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.hgetall(QUOTAS)
            for key in self._leases.values():
                pipe.zrange(key, 0, -1, withscores=True)
            (seconds, microseconds), quotas, *leases = pipe.execute()
        return Look(
            seconds + microseconds / 1e6,
            {pattern.decode(): int(slots) for pattern, slots in quotas.items()},
            {
                (experiment, trial.decode()): until_ms / 1000
                for experiment, held in zip(self._leases, leases, strict=True)
                for trial, until_ms in held
            },
        )
