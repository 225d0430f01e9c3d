"""A master, its replica and three Sentinels, of a test's own."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from restartable import UP_S, KeptServer
from servers import the_server
from waiting import eventually

NAME: Final = "tuning"
PASSWORD: Final = "hunter/2"
SENTINELS_PASSWORD: Final = "zebra 7"
#: When a master counts as gone, and after how long without success a failover is tried anew.
_DOWN_MS: Final = 500
_FAILOVER_MS: Final = 5000


class Node(KeptServer):
    """A server, or a Sentinel."""

    def __init__(self, folder: Path, *options: str, password: str, is_sentinel: bool = False) -> None:
        super().__init__(folder, password, retry=Retry(NoBackoff(), 0))
        folder.mkdir(parents=True)
        settings = folder / "server.conf"
        settings.write_text(
            "\n".join([f"port {self.port}", "bind 127.0.0.1", f'dir "{folder}"', f'requirepass "{password}"', *options])
        )
        self.command = [str(the_server().path), str(settings), *(["--sentinel"] if is_sentinel else [])]
        self.start()


class Watched(contextlib.AbstractContextManager):
    """Two servers, of which one is the master, and three Sentinels that know both and one another.

    Args:
        folder: where they keep what they write.
        password: that of the servers.
        options: more lines for the configuration of each server.
        down_ms: when a master counts as gone; see expect.
        failover_ms: after how long without success a failover is tried anew; the next one comes after twice that time at the earliest.
    """

    def __init__(
        self,
        folder: Path,
        *,
        password: str = PASSWORD,
        options: Sequence[str] = (),
        down_ms: int = _DOWN_MS,
        failover_ms: int = _FAILOVER_MS,
    ) -> None:
        self._password = password
        self.nodes: list[Node] = []
        self.sentinels: list[Node] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._start(folder, options, down_ms, failover_ms)
            undo.pop_all()
        self.url = self.url_by([each.port for each in self.sentinels])

    def _start(self, folder: Path, options: Sequence[str], down_ms: int, failover_ms: int) -> None:
        both = (
            "save ''",
            "appendonly yes",
            "appendfsync always",
            "repl-diskless-sync-delay 0",
            f'masterauth "{self._password}"',
            *options,
        )
        self.nodes.append(Node(folder / "one", *both, password=self._password))
        replica = f"replicaof 127.0.0.1 {self.nodes[0].port}"
        self.nodes.append(Node(folder / "two", *both, replica, password=self._password))
        eventually(lambda: self.nodes[1].client.info("replication")["master_link_status"] == "up", UP_S)
        watch = (
            f"sentinel monitor {NAME} 127.0.0.1 {self.nodes[0].port} 2",
            f'sentinel auth-pass {NAME} "{self._password}"',
            f"sentinel down-after-milliseconds {NAME} {down_ms}",
            f"sentinel failover-timeout {NAME} {failover_ms}",
        )
        for number in range(3):
            self.sentinels.append(
                Node(folder / f"sentinel-{number}", *watch, password=SENTINELS_PASSWORD, is_sentinel=True)
            )
        eventually(lambda: all(map(self._knows_all, self.sentinels)), UP_S)

    def url_by(self, ports: Sequence[int]) -> str:
        """Return the URL that leads to the master by way of Sentinels on these ports."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        password, sentinels_password = quote(self._password, safe=""), quote_plus(SENTINELS_PASSWORD)
        return f"sentinel://:{password}@{hosts}/{NAME}/0?sentinel_password={sentinels_password}"

    def expect(self, *, down_ms: int) -> None:
        """Have the Sentinels take a master for gone after so many milliseconds without an answer."""
        for sentinel in self.sentinels:
            sentinel.client.sentinel_set(NAME, "down-after-milliseconds", down_ms)

    def is_whole(self) -> bool:
        """Whether the Sentinels know both servers, and the replica follows the master."""
        replica, master = self.replica, self.master
        link = replica.client.info("replication")
        follows = link["role"] == "slave" and (link["master_port"], link["master_link_status"]) == (master.port, "up")
        return follows and self.is_master(master) and all(map(self._knows_all, self.sentinels))

    def _knows_all(self, sentinel: Node) -> bool:
        state = sentinel.client.sentinel_master(NAME)
        return (state["num-slaves"], state["num-other-sentinels"]) == (1, 2)

    @property
    def master(self) -> Node:
        """The server that a majority of the Sentinels takes for the master."""
        ports = [each.client.sentinel_get_master_addr_by_name(NAME)[1] for each in self.sentinels]
        agreed = max(ports, key=ports.count)
        return next(node for node in self.nodes if node.port == agreed)

    @property
    def replica(self) -> Node:
        return next(node for node in self.nodes if node is not self.master)

    def is_master(self, node: Node) -> bool:
        """Whether all agree that a server is the master, it too."""
        with contextlib.suppress(redis.RedisError, OSError):
            ports = {each.client.sentinel_get_master_addr_by_name(NAME)[1] for each in self.sentinels}
            return ports == {node.port} and node.client.role()[0] == b"master"
        return False

    def cut_off_replica(self) -> Node:
        """Have the replica get nothing more of what the master takes, and return it."""
        replica, master = self.replica, self.master
        replica.client.config_set("masterauth", "wrong")
        master.client.client_kill_filter(_type="replica")
        return replica

    def allow_replica(self, replica: Node) -> None:
        """Have one that was cut off follow whoever is its master again."""
        replica.client.config_set("masterauth", self._password)

    def close(self) -> None:
        for each in (*self.sentinels, *self.nodes):
            each.close()

    def __exit__(self, *_: object) -> None:
        self.close()
