"""The Redis client, with a shorter way for single commands."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from functools import cached_property
from time import monotonic
from typing import Any, Final

import redis

__all__ = ["Client", "Connects", "OneClient"]

#: A connection that was used this long ago is still taken to be good, in seconds; after that the pool has a look at it.
_FRESH_S: Final = 1.0


class Connects:
    """Counts the connections that a client has made; another one may be to a server that is not what it was."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, connection: Any) -> None:
        """Greet the server over a new connection, as redis-py does by itself."""
        connection.on_connect()
        self.count += 1


class Client(redis.Redis):
    """redis-py's client, but that the connections used just now are used again as they are.

    redis-py gives a connection back to its pool behind each command, and asks it at the next one whether it is still good.
    With what else it counts and looks up, that takes longer than a short command itself, of which a report in lockstep
    needs three. Any thread may use it, but not across a fork. A command is never repeated.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.connects = Connects()
        #: Connections that nobody uses, and since when; the one used last comes first. The pool counts them as in use.
        self._kept: deque[tuple[Any, float]] = deque()

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command and return its answer, as redis-py does."""
        connection = self._take()
        try:
            connection.send_command(*args)
            # redis-py has no types for it.
            answer = self.parse_response(connection, args[0], **options)  # type: ignore[no-untyped-call]
        except redis.ResponseError:
            # It is an answer too.
            self._kept.append((connection, monotonic()))
            raise
        except BaseException:
            # The answer may still come; the next command must not take it for its own. The server may be gone.
            connection.disconnect()
            self.connection_pool.release(connection)
            self._give_back()
            raise
        self._kept.append((connection, monotonic()))
        return answer

    def _take(self) -> Any:
        try:
            connection, used_at = self._kept.pop()
        except IndexError:
            return self.connection_pool.get_connection()
        if monotonic() - used_at < _FRESH_S:
            return connection
        self.connection_pool.release(connection)
        return self.connection_pool.get_connection()

    def _give_back(self) -> None:
        """Have the pool look at all connections before they are used again."""
        with contextlib.suppress(IndexError):
            while True:
                self.connection_pool.release(self._kept.pop()[0])


class OneClient:
    """Has a Redis channel of kombu's use one client: kombu makes one for each command, which takes longer than the command.

    Its connections don't tell the server their library's name, which accounts may not do (see ``mqtune.journal.access``).

    To be named before kombu's class among the bases.
    """

    pool: Any

    @contextlib.contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """Lend a client to a command of the channel's."""
        yield client or self._one_client

    def _connparams(self, *args: Any, **options: Any) -> dict[str, Any]:
        # kombu's class stands behind this one.
        return {**super()._connparams(*args, **options), "driver_info": None}  # type: ignore[misc]

    @cached_property
    def _one_client(self) -> Client:
        return Client(connection_pool=self.pool)
