"""Redis Sentinel: URLs with a master's name, and connections to the current master."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedConnection, SentinelManagedSSLConnection

#: Arguments of redis-py, by their names.
Options = dict[str, Any]
#: The schemes of URLs of Sentinels, and the scheme of the master's own URL for each.
SCHEMES: Final = {"sentinel": "redis", "rediss+sentinel": "rediss"}
FORM: Final = "sentinel://[:password@]host1:26379,host2:26379,host3:26379/NAME/db, or rediss+sentinel://… for TLS"
_PORT: Final = 26379
#: Timeout of one Sentinel, in seconds. Then the next one is asked.
_ASK_S: Final = 1.0
#: The names of masters that Sentinel allows.
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_OPTIONS: Final = ("sentinel_username", "sentinel_password")


class Sentinels(NamedTuple):
    """A master's name, the addresses of its Sentinels, and the login for the Sentinels."""

    hosts: tuple[tuple[str, int], ...]
    name: str
    login: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parsed(cls, url: str) -> tuple[Sentinels, str]:
        """Split a URL of Sentinels into the Sentinels and an ordinary URL with its other parts.

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
            # It makes redis-py read an answer first. Otherwise it takes TLS session tickets for unexpected data.
            "client_name": "mqtune-sentinels",
        }

    def answers(self, tls: Options | None) -> list[str]:
        """Ask each Sentinel for the master's address. An empty text means that it has no answer."""
        return [self._answer(host, self.arguments(tls)) for host in self.hosts]

    def _answer(self, host: tuple[str, int], arguments: Options) -> str:
        arguments = {**arguments, "decode_responses": True}
        with contextlib.suppress(redis.RedisError, OSError), redis.Redis(*host, **arguments) as client:
            address = client.sentinel_get_master_addr_by_name(self.name)
            return shown_host(*address) if address else ""
        return ""

    def pool(self, settings: Options, tls: Options | None) -> SentinelConnectionPool:
        """Return a pool whose connections ask the Sentinels for the master each time they connect."""
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
    """Return ``host:port`` as in a URL: an IPv6 address gets brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_is_master(connection: Any) -> None:
    """Check that a new connection leads to a master.

    Sentinels may not know yet that it was demoted.

    Raises:
        redis.ConnectionError: the server is a replica.
    """
    connection.send_command("ROLE")
    try:
        role = connection.read_response()[0]
    except redis.exceptions.NoPermissionError:
        # An account that an earlier version made. A replica refuses all writes anyway.
        return
    if role not in (b"master", "master"):
        raise redis.ConnectionError("the former master is a replica now")
