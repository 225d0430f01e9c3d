"""Identities of a Redis server: an id in its data, its process's id, and its address."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket

from redis.sentinel import SentinelConnectionPool

from mqtune.core.errors import AccessDenied
from mqtune.core.keys import IDENTITY
from mqtune.journal.server.connection import RedisClient, is_loopback
from mqtune.journal.server.retry import retrying
from mqtune.journal.server.sentinel import shown_host


def identity_of(client: RedisClient, *, patience_s: float) -> str:
    """Return the id in a server's data. Empty if it is missing, or without permission."""
    try:
        identity = retrying(lambda: client.get(IDENTITY), patience_s=patience_s)
    except AccessDenied:
        return ""
    return identity.decode(errors="replace") if isinstance(identity, bytes) else ""


def identify(client: RedisClient, *, patience_s: float) -> str:
    """Return the id in a server's data, writing one if necessary; empty without permission."""
    # Read first: a full server refuses every write, even of the same value.
    if known := identity_of(client, patience_s=patience_s):
        return known
    try:
        retrying(lambda: client.set(IDENTITY, secrets.token_hex(8), nx=True), patience_s=patience_s)
    except AccessDenied:
        return ""
    return identity_of(client, patience_s=patience_s)


def run_of(client: RedisClient, *, patience_s: float) -> str:
    """Return the id of a server's process. Each restart changes it. Empty without permission."""
    try:
        return str(retrying(lambda: client.info("server"), patience_s=patience_s).get("run_id", ""))
    except AccessDenied:
        return ""


def place_of(client: RedisClient) -> str:
    """Return a server's address, without a login, as text.

    It has the host with the port and the database, and then, after spaces, the host's IP addresses. For a server on
    this machine, the host is the machine's name. For a master behind Sentinels, the text has the Sentinels' addresses
    and the master's name instead, and no IP addresses.
    """
    settings = client.get_connection_kwargs()
    pool, db = client.connection_pool, settings.get("db", 0)
    if isinstance(pool, SentinelConnectionPool):
        addresses = [sentinel.get_connection_kwargs() for sentinel in pool.sentinel_manager.sentinels]
        hosts = sorted(shown_host(address["host"], address["port"]) for address in addresses)
        return f"{','.join(hosts)}/{pool.service_name}/{db}"
    if path := settings.get("path"):
        return f"{socket.gethostname()}:{path}/{db}".replace(" ", "%20")
    host, port = settings["host"], settings["port"]
    name = socket.gethostname() if is_loopback(host) else host
    return " ".join([f"{shown_host(name, port)}/{db}", *_ip_addresses(host, port)])


def _ip_addresses(host: str, port: int) -> list[str]:
    """Return the sorted IP addresses of a host, without loopback addresses."""
    with contextlib.suppress(OSError):
        numbers = {str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        return sorted(number for number in numbers if not ipaddress.ip_address(number.partition("%")[0]).is_loopback)
    return []
