"""The one Redis of a run, and the accounts that it has."""

from __future__ import annotations

import itertools
import secrets
import shutil
from pathlib import Path
from typing import Any, Final

import redis
from faulty_proxy import FaultyProxy
from restartable import KeptServer, durable

from mqtune.services.ownership.acl import account, password_hash, rules_of

#: The account of those who may only look at experiments and make requests.
OPERATOR: Final = "mqtune-operator"
#: The account by which the campaign itself changes accounts, with the password that all have at first.
KEEPER: Final = "campaign"
#: How long whoever speaks to the Redis itself waits for it, in seconds.
PATIENCE_S: Final = 1.0
#: Where a server keeps its data.
_DATA: Final = "appendonlydir"


def write_accounts(folder: Path, password: str, operator_password: str) -> Path:
    """Write the accounts of a server, two that may do everything and the operator's, and return the file."""
    accounts = [
        *(f"user {name} on #{password_hash(password)} ~* &* +@all" for name in ("default", KEEPER)),
        account(OPERATOR, password_hash(operator_password), rules_of("operator"), aclfile=True),
    ]
    file = folder / "users.acl"
    file.write_text("\n".join(accounts) + "\n")
    return file


def connected(server: Any, user: str = "default", **options: Any) -> Any:
    """Return a connection of a run's own, around all proxies; a Redis that is away, or frozen, is an error soon."""
    password = server.operator_password if user == OPERATOR else server.password
    options = {"socket_timeout": PATIENCE_S, "protocol": 2, **options}
    return redis.Redis(port=server.port, username=user, password=password, **options)


class Server(KeptServer):
    """A Redis with its append-only file on, on a port of its own, which it keeps when it is started again.

    It has an operator's account besides the one that may do everything; accounts stay whatever becomes of the data.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.password, self.operator_password = secrets.token_hex(8), secrets.token_hex(8)
        super().__init__(folder, self.password, protocol=2, client_name="chaos")
        self.url = f"redis://:{self.password}@127.0.0.1:{self.port}/0"
        accounts = write_accounts(folder, self.password, self.operator_password)
        self.command = durable(self.port, folder, aclfile=str(accounts))
        self._copies = itertools.count(1)

    def way(self) -> FaultyProxy:
        """Return another way to it."""
        return FaultyProxy(self.url)

    def keep_copy(self) -> Path:
        """Copy what is in its file now, to be set back to later; return the copy."""
        return shutil.copytree(self.folder / _DATA, self.folder / f"copy-{next(self._copies)}")

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
