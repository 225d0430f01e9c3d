"""The one Redis of a run, and the accounts that it has."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

import redis
from faulty_proxy import FaultyProxy
from kept_port import KeptPort

from mqtune.backends import find_binary
from mqtune.journal import account, password_hash, rules_of

#: The account of those who may only look at experiments and make requests.
OPERATOR: Final = "mqtune-operator"
#: The account by which the campaign itself changes accounts, with the password that all have at first.
KEEPER: Final = "campaign"
#: How long a server may take to be up on a machine that does much else.
UP_S: Final = 60.0
_POLL_S: Final = 0.02
#: Where a server keeps its data, and an earlier state of it.
_DATA: Final = "appendonlydir"
_COPY: Final = "copy"
_ACCOUNTS: Final = "users.acl"


def write_accounts(folder: Path, password: str, operator_password: str) -> Path:
    """Write the accounts of a server, two that may do everything and the operator's, and return the file."""
    accounts = [
        *(f"user {name} on #{password_hash(password)} ~* &* +@all" for name in ("default", KEEPER)),
        account(OPERATOR, password_hash(operator_password), rules_of("operator"), aclfile=True),
    ]
    file = folder / _ACCOUNTS
    file.write_text("\n".join(accounts) + "\n")
    return file


class Server:
    """A Redis with its append-only file on, on a port of its own, which it keeps when it is started again.

    It has an operator's account besides the one that may do everything; accounts stay whatever becomes of the data.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        # Else one of the ways to it, which are there before it is up, may get its port, and lead to itself.
        self._port = KeptPort()
        self.port = self._port.number
        self.password = secrets.token_hex(8)
        self.url = f"redis://:{self.password}@127.0.0.1:{self.port}/0"
        self.operator_password = secrets.token_hex(8)
        self._accounts = write_accounts(folder, self.password, self.operator_password)
        self.process: subprocess.Popen[bytes] | None = None
        self._client: redis.Redis | None = None
        self._copies = 0

    def way(self) -> FaultyProxy:
        """Return another way to it."""
        return FaultyProxy(self.url)

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def client(self) -> redis.Redis:
        """A connection around all proxies."""
        if self._client is None:
            self._client = redis.Redis(
                port=self.port, password=self.password, socket_timeout=UP_S, protocol=2, client_name="chaos"
            )
        return self._client

    def start(self) -> None:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "aclfile": str(self._accounts),
            "dir": str(self.folder),
            "appendonly": "yes",
            # What was answered is in the file. With "everysec", a kill may cost what a slow disk has not taken yet.
            "appendfsync": "always",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        arguments = [word for key, value in options.items() for word in (f"--{key}", value)]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(find_binary().path), *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait_up()

    def wait_up(self) -> None:
        deadline = time.monotonic() + UP_S
        while time.monotonic() < deadline:
            with contextlib.suppress(redis.RedisError, OSError):
                self.client.ping()
                return
            time.sleep(_POLL_S)
        raise RuntimeError(f"the server did not come up: {(self.folder / 'server.log').read_text()[-2000:]}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def keep_copy(self) -> Path:
        """Copy what is in its file now, to be set back to later; return the copy."""
        self._copies += 1
        return shutil.copytree(self.folder / _DATA, self.folder / f"{_COPY}-{self._copies}")

    def start_copy(self) -> Server:
        """Start another server with what is in its file now; it has a port and a password of its own."""
        copied = self.keep_copy()
        other = Server(copied.with_name(f"{copied.name}-server"))
        copied.rename(other.folder / _DATA)
        other.start()
        return other

    def forget(self) -> None:
        """Lose all data; it must not run."""
        shutil.rmtree(self.folder / _DATA)

    def set_back(self, copy: Path) -> None:
        """Have the data of a copy again, which is gone then; it must not run."""
        self.forget()
        copy.rename(self.folder / _DATA)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
        self.kill()
        self._port.close()
