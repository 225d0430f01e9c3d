"""A Redis that keeps its address when it is killed and started again, whatever becomes of its data."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import redis
from kept_port import KeptPort
from waiting import eventually

from mqtune.backends import find_binary

#: How long a server may take to be up, and Sentinels to agree, on a machine that runs other tests.
UP_S = 60.0


class KeptServer:
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


class RestartableRedis(KeptServer):
    """One with its append-only file on; it is up from the start."""

    def __init__(self, folder: Path) -> None:
        password = secrets.token_hex(8)
        super().__init__(folder, password)
        self._data = folder / "data"
        self.url = f"redis://:{password}@127.0.0.1:{self.port}/0"
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "requirepass": password,
            "dir": str(self._data),
            "appendonly": "yes",
            # What was answered is in the file, also when the machine is slow.
            "appendfsync": "always",
            "save": "",
        }
        self.command = [
            str(find_binary().path),
            *(word for name, value in options.items() for word in (f"--{name}", value)),
        ]
        self.start()

    def start(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        super().start()

    def restart(self) -> None:
        """Kill it and start it again, with its data."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop it, with all its connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.send_signal(signal.SIGCONT)

    def lose_data(self) -> None:
        """Kill it and start it again, empty."""
        self.kill()
        shutil.rmtree(self._data)
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
