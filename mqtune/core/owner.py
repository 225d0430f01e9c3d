"""Whose an experiment, a request or a worker is: an account of the server, a user of a machine, and that machine."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Final, NamedTuple

#: The word that stands for whoever asks, where an owner is asked for.
ME: Final = "me"


class Owner(NamedTuple):
    """A person, or a program, as it was known where it did something.

    All parts are empty where an earlier version wrote nothing. It is what the owner's own process has said. It keeps
    people from accidents, and no secret: permissions are the accounts' matter.

    Attributes:
        account: the account of the Redis server; empty for the default one.
        user: the name of the operating system's user.
        host: the name of the machine.
    """

    account: str = ""
    user: str = ""
    host: str = ""

    def __str__(self) -> str:
        where = f"{self.user}@{self.host}" if self.host else self.user
        return f"{where} ({self.account})" if self.account else where

    def is_same(self, other: Owner) -> bool:
        """Whether both are one person: the user's name is the same, on any machine.

        One person has accounts of several roles.
        """
        return self.user == other.user

    def matches(self, text: str) -> bool:
        """Whether *text* means this owner: its account, its user's name, or ``user@host``."""
        return bool(text) and text in (self.account, self.user, f"{self.user}@{self.host}")


#: The owner where nothing is known.
NOBODY: Final = Owner()


def this_owner(account: str = "") -> Owner:
    """Return who runs this process, which uses this account of a server."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a number that has no name.
        user = str(os.getuid())
    return Owner(account, user, socket.gethostname())
