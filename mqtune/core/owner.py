"""Owner of an experiment, request or worker: server account, user and machine."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Final, NamedTuple

#: Stands for the calling user where an owner is expected.
ME: Final = "me"


class Owner(NamedTuple):
    """A person or program that acted on an experiment or worker.

    All parts are empty if an earlier version recorded nothing. The owner's own process states them, so they prevent
    accidents but are no access control. Only the server's accounts control access.

    Attributes:
        account: account of the Redis server; empty for the default one.
        user: name of the operating system's user.
        host: name of the machine.
    """

    account: str = ""
    user: str = ""
    host: str = ""

    def __str__(self) -> str:
        where = f"{self.user}@{self.host}" if self.host else self.user
        return f"{where} ({self.account})" if self.account else where

    def is_same(self, other: Owner) -> bool:
        """Whether both are one person: the same user name, on any machine and with any account."""
        return self.user == other.user

    def matches(self, text: str) -> bool:
        """Whether *text* is this owner's account, user name, or ``user@host``."""
        return bool(text) and text in (self.account, self.user, f"{self.user}@{self.host}")


#: An unknown owner.
NOBODY: Final = Owner()


def this_owner(account: str = "") -> Owner:
    """Return the owner of this process, with the given account."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a user id without a name.
        user = str(os.getuid())
    return Owner(account, user, socket.gethostname())
