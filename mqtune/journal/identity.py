"""What a server is known by, whichever address it has."""

from __future__ import annotations

import secrets

from mqtune.core.errors import AccessDenied
from mqtune.core.keys import IDENTITY
from mqtune.journal.connection import RedisClient
from mqtune.journal.redis import retrying


def identity_of(client: RedisClient, *, patience_s: float) -> str:
    """Return the id of what a server holds, which is lost when that is; empty if there is none, or the account may not ask."""
    try:
        found = retrying(lambda: client.get(IDENTITY), patience_s=patience_s)
    except AccessDenied:
        return ""
    return found.decode(errors="replace") if isinstance(found, bytes) else ""


def identify(client: RedisClient, *, patience_s: float) -> str:
    """Return the id of what a server holds, which gets one if it has none; empty if the account may not ask."""
    # A full server refuses to be told even what it knows.
    if known := identity_of(client, patience_s=patience_s):
        return known
    try:
        retrying(lambda: client.set(IDENTITY, secrets.token_hex(8), nx=True), patience_s=patience_s)
    except AccessDenied:
        return ""
    return identity_of(client, patience_s=patience_s)
