"""Redis Sentinel: URLs that name a master, and connections that follow it."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

#: Arguments of redis-py, by their names.
Options = dict[str, Any]
#: The schemes of such URLs, and of the server's own URL.
SCHEMES: Final = {"sentinel": "redis", "rediss+sentinel": "rediss"}
FORM: Final = "sentinel://[:password@]host1:26379,host2:26379,host3:26379/NAME/db, or rediss+sentinel://… for TLS"
_PORT: Final = 26379
#: The time-out of one Sentinel, after which the next is asked.
_ASK_S: Final = 1.0
#: The names of masters that Sentinel allows.
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_OPTIONS: Final = ("sentinel_username", "sentinel_password")


class Sentinels(NamedTuple):
    """The addresses of a master's Sentinels, its name, and the login of the Sentinels."""

    hosts: tuple[tuple[str, int], ...]
    name: str
    login: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parsed(cls, url: str) -> tuple[Sentinels, str]:
        """Return a URL's Sentinels, and a URL of a server with the rest.

        Raises:
            ValueError: the URL can't be read.
        """
        scheme, _, rest = url.partition("://")
        login, at, place = rest.rpartition("@")
        place, question, query = place.partition("?")
        hosts, _, path = place.partition("/")
        name, _, db = path.strip("/").partition("/")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} after the hosts is not the name of a master.")
        options = parse_qsl(query, keep_blank_values=True)
        own = tuple((key.removeprefix("sentinel_"), value) for key, value in options if key in _OPTIONS)
        others = urlencode([(key, value) for key, value in options if key not in _OPTIONS])
        addresses = tuple(map(_host, hosts.split(",")))
        plain = f"{SCHEMES[scheme]}://{login}{at}{shown_host(*addresses[0])}/{db}{question if others else ''}{others}"
        return cls(addresses, name, own), plain

    def arguments(self, tls: Options | None) -> Options:
        """Return redis-py's arguments for connections to Sentinels, with the master's TLS options."""
        return {
            **dict(self.login),
            **({} if tls is None else {"ssl": True, **tls}),
            "socket_timeout": _ASK_S,
            "socket_connect_timeout": _ASK_S,
            # No retries, in a form that Celery can send as JSON.
            "retry": None,
            "protocol": 2,
            "driver_info": None,
            # Without an answer, redis-py takes TLS session tickets for the sign of a broken connection.
            "client_name": "mqtune-sentinels",
        }

    def answers(self, tls: Options | None) -> list[str]:
        """Return the master's address from each Sentinel, or an empty text."""
        return [self._answer(host, self.arguments(tls)) for host in self.hosts]

    def _answer(self, host: tuple[str, int], arguments: Options) -> str:
        arguments = {**arguments, "decode_responses": True}
        with contextlib.suppress(redis.RedisError, OSError), redis.Redis(*host, **arguments) as client:
            address = client.sentinel_get_master_addr_by_name(self.name)
            return shown_host(*address) if address else ""
        return ""

    def pool(self, settings: Options, tls: Options | None) -> SentinelConnectionPool:
        """Return a pool whose connections ask for the master each time they connect."""
        kept = {key: value for key, value in settings.items() if key not in ("host", "port", "connection_class")}
        # redis-py has no types for either.
        manager = Sentinel(list(self.hosts), sentinel_kwargs=self.arguments(tls))  # type: ignore[no-untyped-call]
        kind = SentinelManagedConnection if tls is None else SentinelManagedSSLConnection
        return SentinelConnectionPool(self.name, manager, connection_class=kind, **kept)  # type: ignore[no-untyped-call]


def _host(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.username or parts.path:
        raise ValueError(f"{text!r} is not the address of a Sentinel.")
    return parts.hostname, parts.port or _PORT


def shown_host(host: str, port: int) -> str:
    """Return an address in the form of URLs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_is_master(connection: Any) -> None:
    """Check that a new connection's server is a master: Sentinels may be late to know.

    Raises:
        redis.ConnectionError: it is a replica.
    """
    connection.send_command("ROLE")
    try:
        role = connection.read_response()[0]
    except redis.exceptions.NoPermissionError:
        # An account of an earlier version; a write to a replica is refused in any case.
        return
    if role not in (b"master", "master"):
        raise redis.ConnectionError("the server that was the master is a replica now")
