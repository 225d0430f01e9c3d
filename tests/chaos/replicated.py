"""A Redis that fails over: a master, its replica and three Sentinels, in the place of a run's one server."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import redis
from faulty_proxy import FaultyProxy
from lone import write_accounts
from sentinels import Node, Watched

#: When Sentinels take a master for gone that was killed, in milliseconds; and one that nobody has killed: never, however busy the machine.
#: They never promote a replica that lost its master more than ten times as long before, which a busy machine does to one that is cut off.
_DOWN_MS: Final = 1_500
_NEVER_MS: Final = 3_600_000


class Ways:
    """The network from one client to all servers and Sentinels: what befalls it befalls all of it.

    Sentinels that are asked through it name servers by their addresses in it.
    """

    def __init__(self, watched: Watched) -> None:
        to_servers = [FaultyProxy(_address(node)) for node in watched.nodes]
        ports = [(node.port, way.port) for node, way in zip(watched.nodes, to_servers, strict=True)]

        def rename(answer: bytes) -> bytes:
            # Two ports of as many digits can take one another's place.
            for theirs, ours in ports:
                answer = answer.replace(f"\r\n{theirs}\r\n".encode(), f"\r\n{ours}\r\n".encode())
            return answer

        to_sentinels = [FaultyProxy(_address(sentinel), hears=rename) for sentinel in watched.sentinels]
        self._proxies = [*to_servers, *to_sentinels]
        self.url = watched.url_by([way.port for way in to_sentinels])

    @property
    def delay_s(self) -> float:
        return self._proxies[0].delay_s

    @delay_s.setter
    def delay_s(self, delay_s: float) -> None:
        for proxy in self._proxies:
            proxy.delay_s = delay_s

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Cut, hold, drop, release or close all of it."""
        each = [getattr(proxy, name) for proxy in self._proxies]
        return lambda: [act() for act in each] and None


def _address(node: Node) -> str:
    return f"redis://127.0.0.1:{node.port}/0"


class Replicated:
    """A master, its replica and three Sentinels; all are up from the start."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.password, self.operator_password = secrets.token_hex(8), secrets.token_hex(8)
        accounts = write_accounts(folder, self.password, self.operator_password)
        self.watched = Watched(
            folder, password=self.password, options=[f'aclfile "{accounts}"'], down_ms=_NEVER_MS, failover_ms=2000
        )
        self._master = self.watched.master
        #: The one that was killed, until it is back.
        self._killed: Node | None = None
        self._is_failing_over = False

    def start(self) -> None: ...

    def way(self) -> Ways:
        return Ways(self.watched)

    @property
    def is_up(self) -> bool:
        return self._killed is None

    @property
    def port(self) -> int:
        return self._master.port

    @property
    def url(self) -> str:
        """The master, around all Sentinels."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @property
    def client(self) -> Any:
        """A connection to the master, around all proxies."""
        return self._master.client

    def begin_failover(self) -> bool:
        """Take one failover for begun; return whether that may be: the replica has all that the master has, and the Sentinels know both."""
        if not self._is_failing_over:
            with contextlib.suppress(redis.RedisError, OSError):
                self._is_failing_over = self.watched.is_whole()
                return self._is_failing_over
        return False

    def kill_master(self) -> None:
        """Kill the master, and have the Sentinels see it soon."""
        self._killed = self._master
        self._master.kill()
        self.watched.expect(down_ms=_DOWN_MS)

    def has_failed_over(self) -> bool:
        """Whether the replica is the master; from then on it is what is looked at."""
        replica = next(node for node in self.watched.nodes if node is not self._killed)
        if not self.watched.is_master(replica):
            return False
        self.watched.expect(down_ms=_NEVER_MS)
        self.watched.allow_replica(replica)
        self._master = replica
        return True

    def bring_back(self) -> None:
        """Start the server again that was killed; the Sentinels make it a replica."""
        assert self._killed is not None
        self._killed.start()
        self._killed = None
        self._is_failing_over = False

    def close(self) -> None:
        self.watched.close()
