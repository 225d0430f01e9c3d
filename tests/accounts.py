"""A server with an account for each role, made of what ``mqtune fleet acl`` prints."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import redis

from mqtune.core.errors import AccessDenied
from mqtune.journal import connect, retrying
from mqtune.services.ownership.acl import Role, account, password_hash, rules_of

PASSWORDS: Final = {"driver": "drives-7", "worker": "works-8", "operator": "steers-6", "monitor": "looks-9"}


class Accounts:
    """The accounts on one server, and what they were refused."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.admin = connect(url, role="admin")
        # The server outlives its accounts: an earlier test's refusals are none of these.
        self.admin.execute_command("ACL", "LOG", "RESET")

    def make(
        self, role: Role, user: str | None = None, password: str = "", *, without: str = "\0", **options: Any
    ) -> str:
        """Make an account, with no access to the key *without*, and return the broker's URL for it."""
        user, password = user or f"mqtune-{role}", password or PASSWORDS[role]
        line = account(user, password_hash(password), rules_of(role, **options)).replace(without, "mqtune:other")
        self.admin.execute_command(*line.split())
        return self.url_of(user, password)

    def url_of(self, user: str, password: str) -> str:
        """The broker's URL for an account."""
        parts = urlsplit(self.url)
        _, _, place = parts.netloc.rpartition("@")
        return urlunsplit((*parts[:1], f"{user}:{quote(password, safe='')}@{place}", *parts[2:]))

    def refused(self) -> list[str]:
        """What accounts were refused since they were made or since the last call: who, what, and why."""
        log: Any = self.admin.execute_command("ACL", "LOG")
        self.admin.execute_command("ACL", "LOG", "RESET")
        entries = [dict(zip(map(_text, entry[::2]), map(_text, entry[1::2]), strict=True)) for entry in map(list, log)]
        return [f"{each['username']}: {each['reason']} {each['object']} ({each['client-info']})" for each in entries]

    def may(self, url: str, *command: object) -> bool:
        """Whether an account may send a command."""
        client: Any = connect(url, role="tries")
        try:
            # As drivers and workers learn of it.
            retrying(lambda: client.execute_command(*command), patience_s=0)
        except AccessDenied:
            return False
        except redis.exceptions.ResponseError:
            return True
        finally:
            client.close()
        return True

    def close(self) -> None:
        self.admin.close()


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
