"""What quotas there are and who holds leases, as often as a thread can look: what claims are held against afterwards."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Final, NamedTuple, Protocol, Self

import redis

#: How long after a look the next one begins, in seconds.
_EVERY_S: Final = 0.03
#: How long a look may take.
_PATIENCE_S: Final = 2.0
QUOTAS: Final = "mqtune:quotas"


class Look(NamedTuple):
    """What a Redis had at one moment by its own clock: quotas by pattern, and until when each trial's lease holds, by experiment and trial."""

    at: float
    quotas: dict[str, int]
    leases: dict[tuple[str, str], float]


class Looked(Protocol):
    """A server to look at; it may be another one each time."""

    @property
    def port(self) -> int: ...
    @property
    def password(self) -> str: ...


class Looks:
    """Looks at a Redis time and again, whenever it answers.

    Args:
        server: where it is.
        leases: the key of the leases of each experiment, by its name.
    """

    def __init__(self, server: Looked, leases: dict[str, str]) -> None:
        self.taken: list[Look] = []
        self._server = server
        self._leases = leases
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            with contextlib.suppress(redis.RedisError, OSError), self._connected() as client:
                port = self._server.port
                while not self._over.wait(_EVERY_S) and port == self._server.port:
                    self.taken.append(self._look(client))

    def _connected(self) -> Any:
        return redis.Redis(
            port=self._server.port, password=self._server.password, socket_timeout=_PATIENCE_S, protocol=2
        )

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
