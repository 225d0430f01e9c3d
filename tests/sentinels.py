"""A master, its replica and three Sentinels, of a test's own."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from restartable import UP_S, KeptServer
from servers import the_server
from waiting import eventually

NAME: Final = "tuning"
PASSWORD: Final = "hunter/2"
SENTINELS_PASSWORD: Final = "zebra 7"
#: When a master counts as gone.
_DOWN_MS: Final = 500


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


class Watched:
    """Two servers, of which one is the master, and three Sentinels that know both and one another."""

    def __init__(self, folder: Path) -> None:
        both = (
            "save ''",
            "appendonly yes",
            "appendfsync always",
            "repl-diskless-sync-delay 0",
            f'masterauth "{PASSWORD}"',
        )
        self.nodes = [Node(folder / "one", *both, password=PASSWORD)]
        self.nodes.append(Node(folder / "two", *both, f"replicaof 127.0.0.1 {self.nodes[0].port}", password=PASSWORD))
        eventually(lambda: self.nodes[1].client.info("replication")["master_link_status"] == "up", UP_S)
        watch = (
            f"sentinel monitor {NAME} 127.0.0.1 {self.nodes[0].port} 2",
            f'sentinel auth-pass {NAME} "{PASSWORD}"',
            f"sentinel down-after-milliseconds {NAME} {_DOWN_MS}",
            f"sentinel failover-timeout {NAME} 5000",
        )
        self.sentinels = [
            Node(folder / f"sentinel-{number}", *watch, password=SENTINELS_PASSWORD, is_sentinel=True)
            for number in range(3)
        ]
        eventually(lambda: all(map(self._knows_all, self.sentinels)), UP_S)
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        self.url = f"sentinel://:hunter%2F2@{hosts}/{NAME}/0?sentinel_password=zebra+7"

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

    def close(self) -> None:
        for each in (*self.sentinels, *self.nodes):
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
