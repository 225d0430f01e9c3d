"""A Redis that keeps its address when it is killed and started again, whatever becomes of its data."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

import redis
from kept_port import KeptPort
from waiting import eventually

from mqtune.backends import find_binary

#: How long a server may take to be up, and Sentinels to agree, on a machine that runs other tests.
UP_S: Final = 60.0


def durable(port: int, folder: Path, **options: str) -> list[str]:
    """Return the command of a Redis that keeps what it has answered in its append-only file, also on a slow machine."""
    options |= {"port": str(port), "bind": "127.0.0.1", "dir": str(folder), "save": ""}
    options |= {"appendonly": "yes", "appendfsync": "always"}
    return [str(find_binary().path), *(word for name, value in options.items() for word in (f"--{name}", value))]


class KeptServer(contextlib.AbstractContextManager):
    """A server of a test's own, which keeps its address when it is killed and started again."""

    #: What starts it.
    command: list[str]

    def __init__(self, folder: Path, password: str, **options: Any) -> None:
        self._port = KeptPort()
        self.port = self._port.number
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        #: A connection that no fault of a test's lies on.
        self.client: Any = redis.Redis(port=self.port, password=password, socket_timeout=UP_S, **options)

    def start(self) -> None:
        """Start it on what its folder holds; returns when it answers."""
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        eventually(self._answers, UP_S)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError, OSError):
            return bool(self.client.ping())
        return False

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def freeze(self) -> None:
        """Stop it, with all its connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on; nothing happens when it is dead."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it; nothing happens when it is dead."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End it."""
        self.client.close()
        self.kill()
        self._port.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class RestartableRedis(KeptServer):
    """One with its append-only file on; it is up from the start."""

    def __init__(self, folder: Path) -> None:
        password = secrets.token_hex(8)
        super().__init__(folder, password)
        self._data = folder / "data"
        self.url = f"redis://:{password}@127.0.0.1:{self.port}/0"
        self.command = durable(self.port, self._data, requirepass=password)
        self.start()

    def start(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        super().start()

    def restart(self) -> None:
        """Kill it and start it again, with its data."""
        self.kill()
        self.start()

    def lose_data(self) -> None:
        """Kill it and start it again, empty."""
        self.kill()
        shutil.rmtree(self._data)
        self.start()
