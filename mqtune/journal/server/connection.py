"""Connections to Redis with clear errors, and broker URLs for redis-py, Celery and messages."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from time import monotonic
from typing import Any, Final, TypeVar, cast
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.connection import HiredisRespSerializer, parse_url
from redis.retry import Retry

from mqtune.core.errors import BrokerRefused, BrokerTooOld, BrokerUnavailable, ConfigurationError
from mqtune.core.keys import UNACKED
from mqtune.core.timing import Timing
from mqtune.journal.server import sentinel
from mqtune.journal.server.sentinel import Options, Sentinels, check_is_master, shown_host

T = TypeVar("T")


class _Packer(HiredisRespSerializer):
    """Packs commands as redis-py does, but turns numbers into text first.

    While hiredis (3.5, ``pack_command``) converts a number, Python may run a signal handler. If the handler raises, as
    mqtune's does at the second Ctrl-C, hiredis crashes the process.
    """

    def pack(self, *args: object) -> list[bytes]:
        """Return the bytes of a command. Its arguments are texts, bytes and numbers."""
        texts = tuple([argument if type(argument) in _PACKED_AS_IT_IS else _as_text(argument) for argument in args])
        # redis-py must split the name of a command with two words.
        if " " not in str(texts[0]):
            with contextlib.suppress(TypeError):
                return [hiredis.pack_command(texts)]  # type: ignore[arg-type] # it refuses wrong values
        # redis-py raises the error for other values.
        return super().pack(*texts)  # type: ignore[no-any-return,arg-type] # redis-py has no types for it


#: Types that need no conversion to text.
_PACKED_AS_IT_IS: Final = (str, bytes)


def _as_text(value: object) -> object:
    """Return a number as text, and any other value unchanged."""
    return repr(value) if type(value) is int or isinstance(value, float) else value


class Connects:
    """Counts the new connections of a client that may mean that the server has lost data.

    It counts a connection that was opened again after it broke, and a connection to another server than before. It does
    not count one that was opened beside others, or again after it had been closed as unused.

    Args:
        follows: whether Sentinels name the server for each connection. The server must then be a master.
    """

    __slots__ = ("_follows", "_open", "_server", "count")

    def __init__(self, *, follows: bool = False) -> None:
        self.count = 0
        self._follows = follows
        #: The connections that were opened, except those that were closed as unused.
        self._open: set[object] = set()
        self._server = b""

    def __call__(self, connection: Any) -> None:
        """Initialize a new connection, as redis-py does by default."""
        connection.on_connect()
        if self._follows:
            check_is_master(connection)
        server = _identity(connection)
        if connection in self._open or not server or server != self._server:
            self.count += 1
        self._server = server
        self._open.add(connection)

    def closes(self, connection: redis.Connection) -> None:
        """Note that the client closes an unused connection. Ignore a broken one."""
        with contextlib.suppress(redis.RedisError, OSError):
            # A socket that is readable without a command has reached its end.
            if connection.is_connected and not connection.can_read():
                self._open.discard(connection)


def _identity(connection: Any) -> bytes:
    """Return an id of the server's process and its data's history.

    Empty if the account may not ask. It changes if the server has been a replica in between.
    """
    connection.send_packed_command(connection.pack_commands([("INFO", "server"), ("INFO", "replication")]))
    answers = [_answer_or_error(connection) for _ in range(2)]
    info = b"\n".join(answer for answer in answers if isinstance(answer, bytes))
    return b" ".join(re.findall(rb"^(?:run_id|master_replid):\w+", info, re.MULTILINE))


class RedisClient(redis.Redis):
    """redis-py's client, but it reuses recent connections without checking them.

    redis-py's pool checks a connection before each command, which takes as long as a short command itself. Any thread
    may use the client, but a forked process may not. A command is never repeated.

    After ``limit_to``, threads wait for their turn instead of opening more connections.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.connects = Connects()
        #: The timeouts and intervals for all code that uses this client.
        self.timing = Timing()
        #: Has one element for each command that may be sent now. None without a limit. It is cheaper than a semaphore.
        self._turns: queue.SimpleQueue[None] | None = None
        #: Idle connections with the times of their last use, oldest first. The pool counts them as in use.
        self._idle: deque[tuple[Any, float]] = deque()

    def limit_to(self, commands: int) -> None:
        """Limit the number of commands at the same time.

        From then on, no command may block for long.
        """
        self._turns = queue.SimpleQueue()
        for _ in range(commands):
            self._turns.put(None)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command and return its answer, as redis-py does."""

        def ask(connection: Any) -> object:
            connection.send_command(*args)
            return self.parse_response(connection, args[0], **options)  # type: ignore[no-untyped-call] # no types

        return self._with_connection(ask)

    def execute_both(self, first: Sequence[object], second: Sequence[object]) -> tuple[Any, Any]:
        """Send two commands together. Return an answer for each, or the server's error as an object.

        redis-py's pipeline takes three times as long.
        """

        def ask(connection: Any) -> tuple[object, object]:
            connection.send_packed_command(connection.pack_commands([first, second]))
            return _answer_or_error(connection), _answer_or_error(connection)

        return self._with_connection(ask)

    def close_unused(self, for_s: float) -> None:
        """Close connections that were not used for *for_s* seconds, and all spare ones of the pool."""
        with contextlib.suppress(IndexError):
            while monotonic() - self._idle[0][1] >= for_s:
                connection, _ = self._idle.popleft()
                self.connects.closes(connection)
                self.connection_pool.release(connection)
        self.connection_pool.disconnect(inuse_connections=False)

    def _with_connection(self, ask: Callable[[Any], T]) -> T:
        """Call *ask* with a connection and return its result. Wait for this command's turn before."""
        if self._turns is not None:
            self._turns.get()
        connection = None
        try:
            connection = self._take_connection()
            answer = ask(connection)
        except BaseException as error:
            if connection is not None:
                self._release_connection(connection, error)
            raise
        else:
            self._idle.append((connection, monotonic()))
            return answer
        finally:
            if self._turns is not None:
                self._turns.put(None)

    def _take_connection(self) -> Any:
        try:
            connection, used_at = self._idle.pop()
        except IndexError:
            return self.connection_pool.get_connection()
        if monotonic() - used_at < self.timing.fresh_s:
            return connection
        self.connection_pool.release(connection)
        return self.connection_pool.get_connection()

    def _release_connection(self, connection: Any, error: BaseException) -> None:
        """Release a connection after an error.

        If it broke, return all idle ones to the pool, which checks them.
        """
        # A master that was demoted may keep its connections, so all must be closed. The server's name may then lead to
        # the new master.
        is_demoted = isinstance(error, redis.exceptions.ReadOnlyError)
        if isinstance(error, redis.ResponseError) and not is_demoted:
            # An error from the server is an answer: the connection is fine.
            self._idle.append((connection, monotonic()))
            return
        # The answer may still arrive, and must not be read as the next command's answer.
        connection.disconnect()
        self.connection_pool.release(connection)
        with contextlib.suppress(IndexError):
            while True:
                idle = self._idle.pop()[0]
                if is_demoted:
                    idle.disconnect()
                self.connection_pool.release(idle)


def _answer_or_error(connection: Any) -> object:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


class OneClient:
    """Makes a Redis channel of kombu use one client.

    In a class's bases, it precedes kombu's class. kombu makes a client for each command, which takes longer than the
    command. The connections don't send the name of their library, because accounts may lack the permission.
    """

    pool: redis.ConnectionPool
    _async_pool: redis.ConnectionPool | None

    def close_unused(self, for_s: float) -> None:
        """Close connections unused for *for_s* seconds, and all idle ones that kombu has opened."""
        self._one_client.close_unused(for_s)
        if self._async_pool is not None:
            self._async_pool.disconnect(inuse_connections=False)

    @contextlib.contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """Yield *client*, or else the channel's one client."""
        yield client or self._one_client

    def _connparams(self, *args: Any, **options: Any) -> dict[str, Any]:
        connparams = super()._connparams  # type: ignore[misc] # kombu's class follows this one in the bases
        return {**connparams(*args, **options), "driver_info": None}

    @cached_property
    def _one_client(self) -> RedisClient:
        return RedisClient(connection_pool=self.pool)


#: How long users wait for a server that does not answer, in seconds.
CONNECT_TIMEOUT_S: Final = Timing().connect_timeout_s
#: A connection that was idle for more seconds is pinged before its use. Firewalls cut idle ones after 60 s or more.
HEALTH_CHECK_INTERVAL_S: Final = 30
#: The first Redis with the commands of kombu 5.7 and of the journal's scripts (ZADD GT, ZRANGE REV, XADD MINID).
OLDEST_VERSION: Final = (6, 2)
DEFAULT_PORT: Final = 6379

_TLS_OPTIONS: Final = frozenset(
    {"ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"}
)
#: The settings in a URL for the server's address and the login.
_ADDRESS: Final = frozenset({"connection_class", "host", "port", "path", "db", "username", "password"})
_SCHEMES: Final = ("redis", "rediss", "unix", "redis+socket")
_FORMS: Final = (
    f"redis://[:password@]host:port/db, rediss://… for TLS, unix://[:password@]/path/to/socket?db=0, or {sentinel.FORM}"
)
_PERCENT: Final = "special characters in a password must be percent-encoded (urllib.parse.quote(password, safe=''))"

#: The operating system's errors for a server that is down or restarts.
_TEMPORARY: Final = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPIPE, errno.ETIMEDOUT}
)

_CLOSED: Final = "closed by server"

#: Roles that execute the orders of anybody who can write to the broker.
_TRUSTING: Final = frozenset({"driver", "worker"})

_logger = logging.getLogger(__name__)


def connect(url: str, *, timing: Timing = Timing(), role: str = "client") -> RedisClient:
    """Open a connection to the Redis at *url* and check that it is usable.

    The client returns bytes. It never repeats a command on its own, because a repeated write could count twice. Threads
    may share it, but a forked process may not. Only the journal should call its methods. It uses the protocol RESP2,
    whose answers are equal on all servers from 6.2 on.

    Args:
        timing: timeouts and intervals for users of the client. The check ends within ``connect_timeout_s``.
        role: shown by CLIENT LIST as mqtune-<role>.

    Raises:
        ConfigurationError: the URL can't be read, or names a database that the server doesn't have.
        BrokerUnavailable: no Redis answers in time.
        BrokerRefused: the password is missing or wrong, or the account lacks all permissions.
        BrokerTooOld: the server is older than OLDEST_VERSION.
    """
    client = open_client(url, timing=timing, role=role)
    outcome: list[Mapping[str, object] | BaseException] = []
    # In a thread, because a socket's timeout does not cover name resolution, or a server that sends single bytes.
    prober = threading.Thread(target=_probe, args=(client, url, outcome), name="mqtune-connect", daemon=True)
    prober.start()
    prober.join(timing.connect_timeout_s)
    if not outcome:
        silent = BrokerUnavailable(
            f"nothing answered at {redact(url)} within {timing.connect_timeout_s:g} s; "
            "check the address, the network and firewalls"
        )
        # The server or its machine may be frozen: it accepts a connection and never answers.
        silent.may_pass = True
        raise silent
    answer = outcome[0]
    if isinstance(answer, BaseException):
        explained = _explain(answer, url)
        if isinstance(explained, BrokerUnavailable):
            explained.may_pass = _may_pass(answer)
        raise explained from None
    _warn_of_eviction(answer, url)
    if role in _TRUSTING:
        _warn_of_open_doors(url)
    return client


def open_client(url: str, *, timing: Timing = Timing(), role: str = "client") -> RedisClient:
    """Return a client with mqtune's settings, without connecting or checking anything.

    Raises:
        ConfigurationError: the URL can't be read.
    """
    address = _parse(url)
    settings: dict[str, Any] = {
        **address,
        "socket_connect_timeout": timing.connect_timeout_s,
        "socket_timeout": timing.command_timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": HEALTH_CHECK_INTERVAL_S,
        "decode_responses": False,
        "protocol": 2,
        "legacy_responses": True,
        "command_packer": _Packer(),
        # Redis 7.0 has no CLIENT SETINFO, so no account there can have the permission to send it.
        "driver_info": None,
        "client_name": "mqtune-" + re.sub(r"[^\w.:-]", "-", role, flags=re.ASCII),
    }
    if "path" not in address:
        settings["socket_keepalive"] = True
    sentinels: Sentinels | None = settings.pop("sentinels", None)
    settings["redis_connect_func"] = connects = Connects(follows=sentinels is not None)
    pool = redis.ConnectionPool(**settings) if sentinels is None else sentinels.pool(settings, celery_tls(url))
    client = cast("RedisClient", RedisClient.from_pool(pool))
    client.connects, client.timing = connects, timing
    return client


def timing_of(client: redis.Redis) -> Timing:
    """Return the timeouts and intervals that a client was opened with, or the defaults."""
    timing = getattr(client, "timing", None)
    return timing if isinstance(timing, Timing) else Timing()


def account_of(client: redis.Redis) -> str:
    """Return the name of the account that a client uses; empty for the server's default one."""
    return str(client.get_connection_kwargs().get("username") or "")


def database_of(client: redis.Redis) -> int:
    """Return the number of the database that a client uses."""
    return int(client.get_connection_kwargs().get("db", 0))


def celery_url(url: str) -> str:
    """Return *url* in the form that kombu reads.

    Behind Sentinels, the URL has the addresses of the Sentinels, and ``celery_options`` the master's name. With TLS,
    the URL always has ssl_cert_reqs, because kombu verifies nothing without it (kombu/connection.py, _init_params).

    Raises:
        ConfigurationError: the URL can't be read.
    """
    address = _parse(url)
    login = ""
    if "username" in address or "password" in address:
        login = f"{quote(address.get('username', ''), safe='')}:{quote(address.get('password', ''), safe='')}@"
    if "path" in address:
        return f"redis+socket://{login}{quote(address['path'])}?virtual_host={address['db']}"
    if (sentinels := address.get("sentinels")) is not None:
        return ";".join(f"sentinel://{login}{shown_host(*host)}/{address['db']}" for host in sentinels.hosts)
    options = celery_tls(url)
    query = f"?{urlencode(options)}" if options else ""
    place = shown_host(address["host"], address["port"])
    return f"{'redis' if options is None else 'rediss'}://{login}{place}/{address['db']}{query}"


def celery_options(url: str) -> Options:
    """Return kombu's transport options for *url*: names of its keys, and the master's name.

    Only a URL of Sentinels has the name of a master.

    Raises:
        ConfigurationError: the URL can't be read.
    """
    sentinels: Sentinels | None = _parse(url).get("sentinels")
    if sentinels is None:
        return {**UNACKED}
    return {**UNACKED, "master_name": sentinels.name, "sentinel_kwargs": sentinels.arguments(celery_tls(url))}


def sentinels_say(url: str) -> list[str]:
    """Ask each Sentinel in *url* for the master's address.

    Return their answers; empty texts for none.

    Raises:
        ConfigurationError: the URL can't be read.
    """
    sentinels: Sentinels | None = _parse(url).get("sentinels")
    return [] if sentinels is None else sentinels.answers(celery_tls(url))


def celery_tls(url: str) -> Options | None:
    """Return the TLS options in *url* as a dict. None without TLS.

    Flower needs them beside the URL.

    Raises:
        ConfigurationError: the URL can't be read.
    """
    address = _parse(url)
    if address.get("connection_class") is not redis.SSLConnection:
        return None
    return {"ssl_cert_reqs": "required", **{name: address[name] for name in sorted(_TLS_OPTIONS & address.keys())}}


def redact(url: str) -> str:
    """Return *url* without its password, for messages and logs.

    It hides all text before the last @ except the user's name, and a port that is not a number. So a password with an
    unescaped / or @ does not leak from a malformed URL.
    """
    url = re.sub(r"(?i)(password=)[^&]*", r"\1***", url)
    scheme, separator, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    if at:
        user, colon, _ = login.partition(":")
        return f"{scheme}{separator}{user + colon if colon else ''}***@{place}"
    return re.sub(r"(://[^/@:\[]*:)(?!\d{1,5}(?:[/?]|$)).*", r"\1***", url)


def _parse(url: str) -> dict[str, Any]:
    """Parse *url* into connection settings for redis-py.

    Raise ConfigurationError if it is invalid.
    """
    if isinstance(url, str) and url.partition("://")[0] in sentinel.SCHEMES:
        return _parse_sentinels(url)
    parts = _split(url)
    is_socket = parts.scheme in ("unix", "redis+socket")
    if parts.fragment or ";" in parts.netloc or (not is_socket and "@" in parts.path + parts.query):
        raise ConfigurationError(f"the broker URL {redact(url)} is ambiguous; {_PERCENT}; give only one URL")
    database = "" if is_socket else parts.path.strip("/")
    # Celery's form of a socket's URL.
    plain = re.sub(r"([?&])virtual_host=/*", r"\1db=", f"unix{url[len(parts.scheme) :]}") if is_socket else url
    try:
        address: dict[str, Any] = parse_url(plain)  # type: ignore[no-untyped-call] # redis-py has no types for it
    except ValueError as error:
        raise ConfigurationError(f"the broker URL {redact(url)} can't be read: {error} Give {_FORMS}") from None
    if database and not (database.isascii() and database.isdigit()):
        raise ConfigurationError(f"the database in the broker URL {redact(url)} is not a number; give {_FORMS}")
    if is_socket and (parts.hostname or len(address.get("path", "")) < len("/s")):
        raise ConfigurationError(f"the broker URL {redact(url)} names no absolute path of a socket; give {_FORMS}")
    _check_options(url, address, is_tls=parts.scheme == "rediss")
    return {"db": 0, **({} if is_socket else {"host": "localhost", "port": DEFAULT_PORT}), **address}


def _parse_sentinels(url: str) -> Options:
    try:
        sentinels, plain = Sentinels.parsed(url)
    except ValueError as error:
        raise ConfigurationError(f"the broker URL {redact(url)} can't be read: {error} Give {sentinel.FORM}") from None
    return {**_parse(plain), "sentinels": sentinels}


def _split(url: str) -> SplitResult:
    if not isinstance(url, str) or "://" not in url:
        shown = repr(redact(url)) if isinstance(url, str) else type(url).__name__
        raise ConfigurationError(f"{shown} is not the URL of a broker; give {_FORMS}")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigurationError(f"the broker URL {redact(url)} can't be read; give {_FORMS}; {_PERCENT}") from None
    if parts.scheme not in _SCHEMES:
        raise ConfigurationError(f"the broker URL {redact(url)} has an unknown scheme; give {_FORMS}")
    return parts


def _check_options(url: str, address: dict[str, Any], *, is_tls: bool) -> None:
    """Check the options of a URL, and normalize ``ssl_cert_reqs`` in place."""
    unknown = sorted(address.keys() - _ADDRESS - (_TLS_OPTIONS if is_tls else frozenset()))
    if unknown:
        raise ConfigurationError(
            f"the broker URL {redact(url)} has options that it may not have: {', '.join(unknown)}; leave them out. "
            f"mqtune sets timeouts and retries itself. Options of TLS ({', '.join(sorted(_TLS_OPTIONS))}) need "
            f"rediss://"
        )
    if "ssl_cert_reqs" in address:
        address["ssl_cert_reqs"] = address["ssl_cert_reqs"].lower().removeprefix("cert_")
        if address["ssl_cert_reqs"] not in ("none", "optional", "required"):
            raise ConfigurationError(f"the broker URL {redact(url)}: ssl_cert_reqs must be required, optional or none")


def _probe(client: RedisClient, url: str, outcome: list[Mapping[str, object] | BaseException]) -> None:
    try:
        client.ping()
        info: Mapping[str, object] = {}
        with contextlib.suppress(redis.exceptions.NoPermissionError):
            info = client.info()
        _check_version(info, url)
        _check_mode(info, url)
        outcome.append(info)
    except BaseException as error:  # noqa: BLE001  (handed to the thread that waits)
        client.close()
        outcome.append(error)


def _explain(error: BaseException, url: str) -> BaseException:
    place, reason = redact(url), _without_password(str(error), url) or type(error).__name__
    match error:
        case BrokerTooOld() | BrokerUnavailable():
            return error
        case redis.sentinel.MasterNotFoundError():
            return BrokerUnavailable(
                f"no Sentinel at {place} knows a running master of that name ({_sentinel_answers(reason)}); check the "
                "name after the hosts, and ?sentinel_password=… if the Sentinels ask for one"
            )
        case redis.ResponseError() if "unknown command" in reason and "sentinel" in reason.lower():
            return BrokerUnavailable(f"the server at {place} is not a Sentinel; give redis://… for a Redis server")
        case redis.RedisError() if "without any password" in reason or "no password is set" in reason:
            return BrokerRefused(f"the Redis at {place} has no password set; leave the password out of the URL")
        case redis.exceptions.AuthenticationError() | redis.exceptions.AuthorizationError():
            return BrokerRefused(
                f"the Redis at {place} refuses the login ({reason}); "
                f"put the right password into the URL (redis://:password@host); {_PERCENT}"
            )
        case redis.exceptions.NoPermissionError():
            return BrokerRefused(
                f"the Redis at {place} forbids its user to connect ({reason}); "
                "widen the user's ACL (6.2 also wants +client|setname)"
            )
        case redis.exceptions.BusyLoadingError():
            return BrokerUnavailable(f"the Redis at {place} is still loading its data; try again in a moment")
        case redis.exceptions.InvalidResponse():
            return BrokerUnavailable(
                f"the server at {place} is not Redis ({reason}); check the port, and give rediss:// if it expects TLS"
            )
        case redis.RedisError() if "CERTIFICATE_VERIFY_FAILED" in reason:
            return BrokerUnavailable(
                f"the certificate of the Redis at {place} is not trusted ({reason}); give its authority's certificate "
                "(rediss://…?ssl_ca_certs=/path/ca.pem), and the host's name as in the server's certificate"
            )
        case redis.exceptions.ConnectionError() if _CLOSED in reason and celery_tls(url) is None:
            return BrokerUnavailable(
                f"the server at {place} closes the connection ({reason}); give rediss:// if it expects TLS, like many "
                "managed servers"
            )
        case redis.exceptions.ResponseError() if "DB index" in reason:
            return ConfigurationError(f"the Redis at {place} does not have that database ({reason}); use 0")
        case redis.exceptions.RedisError() | OSError() | ValueError():
            return BrokerUnavailable(
                f"no Redis answers at {place} ({reason}); start it, or give the address of a running one"
            )
    return error


def _may_pass(error: BaseException) -> bool:
    """Whether an error may be temporary: no name, port, login or certificate is wrong."""
    # A timeout of the socket means the same as the timeout of the check.
    temporary = redis.exceptions.BusyLoadingError, redis.exceptions.TimeoutError, redis.sentinel.MasterNotFoundError
    if isinstance(error, temporary):
        return True
    # A proxy closes connections while the server behind it is down.
    if isinstance(error, redis.exceptions.ConnectionError) and _CLOSED in str(error):
        return True
    # redis-py's error has only a text. Its context has the number.
    cause = error if isinstance(error, OSError) and error.errno else error.__context__
    return isinstance(cause, OSError) and cause.errno in _TEMPORARY


def _sentinel_answers(reason: str) -> str:
    """Return the Sentinels' answers in an error, without redis-py's description of its client."""
    answers = dict.fromkeys(re.findall(r"> - (.+?)(?=, <|$)", reason))
    return "; ".join(answers) or "they answer"


def _without_password(text: str, url: str) -> str:
    address = _parse(url)
    sentinels: Sentinels | None = address.get("sentinels")
    passwords = [address.get("password", ""), *(value for _, value in (sentinels.login if sentinels else ()))]
    for secret in filter(None, [*passwords, *(quote(password, safe="") for password in passwords)]):
        text = text.replace(secret, "***")
    return text.rstrip(".")


def _check_version(info: Mapping[str, object], url: str) -> None:
    version = str(info.get("redis_version", ""))
    matched = re.match(r"(\d+)\.(\d+)", version)
    if matched and (int(matched[1]), int(matched[2])) < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        raise BrokerTooOld(
            f"the Redis at {redact(url)} is version {version}; mqtune needs {oldest} or later, or any Valkey"
        )


def _check_mode(info: Mapping[str, object], url: str) -> None:
    # Valkey can be configured to use another name.
    match info.get("redis_mode") or info.get("server_mode"):
        case "sentinel":
            raise BrokerUnavailable(
                f"the server at {redact(url)} is a Sentinel, which stores no data: give {sentinel.FORM}"
            )
        case "cluster":
            raise BrokerUnavailable(
                f"the Redis at {redact(url)} is in cluster mode, which spreads keys over several servers, but mqtune "
                "needs all keys on one: give a server without cluster mode. Managed services have a setting for it"
            )


def _warn_of_open_doors(url: str) -> None:
    address = _parse(url)
    if "path" in address or is_loopback(address["host"]):
        return
    if not address.get("password") and "ssl_certfile" not in address:
        _logger.warning(
            "the Redis at %s needs no password: everybody who reaches it can stop trials, and run any code below a "
            "worker's code root; set a password, or make accounts with the commands that `mqtune fleet acl` prints",
            redact(url),
            extra={"action": "broker_is_open"},
        )
    if address.get("ssl_cert_reqs", "required") != "required":
        _logger.warning(
            "the identity of the server at %s is not checked (ssl_cert_reqs); use ssl_ca_certs with its authority's "
            "certificate instead",
            redact(url),
            extra={"action": "broker_is_unchecked"},
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def eviction_policy(info: Mapping[str, object]) -> str:
    """Return the eviction policy of a server that deletes data when full; empty for others."""
    policy = str(info.get("maxmemory_policy", "noeviction"))
    return policy if info.get("maxmemory", 0) and policy != "noeviction" else ""


def _warn_of_eviction(info: Mapping[str, object], url: str) -> None:
    if policy := eviction_policy(info):
        _logger.warning(
            "the Redis at %s may evict experiments when its memory is full (maxmemory-policy %s); "
            "set maxmemory-policy noeviction",
            redact(url),
            policy,
            extra={"action": "broker_may_evict", "policy": policy},
        )
