"""Checked connections to Redis, and broker URLs in the forms for redis-py, Celery and messages."""

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
from mqtune.journal import sentinel
from mqtune.journal.sentinel import Options, Sentinels, check_is_master, shown_host

T = TypeVar("T")


class _Packer(HiredisRespSerializer):
    """Packs commands as redis-py does, but makes numbers text before.

    Python runs signal handlers while it does that, and hiredis (3.5, ``pack_command``) does not expect one that raises,
    as ours does at the second Ctrl-C: the process would crash.
    """

    def pack(self, *args: object) -> list[bytes]:
        """Return a command's bytes.

        It has texts, bytes and numbers alone, as all of ours do, so redis-py's checks of each are left out.
        """
        texts = tuple([each if type(each) in _PACKED_AS_IT_IS else _as_text(each) for each in args])
        # A name of two words is two parts.
        if " " in str(texts[0]):
            return self._pack_slowly(texts)
        try:
            return [hiredis.pack_command(texts)]  # type: ignore[arg-type]
        except TypeError:
            # It says what can't be sent, unless that is what only it can send.
            return self._pack_slowly(texts)

    def _pack_slowly(self, args: Sequence[object]) -> list[bytes]:
        # redis-py has no types for it.
        return super().pack(*args)  # type: ignore[no-any-return,arg-type]


#: What is sent as it is.
_PACKED_AS_IT_IS: Final = (str, bytes)


def _as_text(value: object) -> object:
    """Return a number as text, and what is not one as it is."""
    return repr(value) if type(value) is int or isinstance(value, float) else value


class Connects:
    """Counts the connections of a client between which the server may have lost data, or is another one.

    These are one that is opened again after it broke, and one to a server that is not the one before. A connection that
    is opened beside others, or again after it was closed for want of use, is not counted.

    Args:
        follows: whether the server is looked up each time, and has to be a master.
    """

    __slots__ = ("_follows", "_open", "_server", "count")

    def __init__(self, *, follows: bool = False) -> None:
        self.count = 0
        self._follows = follows
        #: The connections that were opened, but for those that were closed for want of use.
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
        """Note that a connection is closed for want of use, unless it has broken."""
        with contextlib.suppress(redis.RedisError, OSError):
            # A socket that has something to read, unasked, has come to its end.
            if connection.is_connected and not connection.can_read():
                self._open.discard(connection)


def _identity(connection: Any) -> bytes:
    """Return what no other process of a server has, nor the same one after it was a replica.

    It is empty where that can't be asked.
    """
    connection.send_packed_command(connection.pack_commands([("INFO", "server"), ("INFO", "replication")]))
    said = [_answer_or_error(connection) for _ in range(2)]
    found = re.findall(
        rb"^(?:run_id|master_replid):\w+", b"\n".join(each for each in said if isinstance(each, bytes)), re.MULTILINE
    )
    return b" ".join(found)


class RedisClient(redis.Redis):
    """redis-py's client, except that it reuses recent connections without checking them.

    redis-py releases a connection to its pool after each command, and checks it before the next one. With its other
    bookkeeping that takes longer than a short command, of which a report in lockstep needs three. Any thread may use
    it, but not across a fork. A command is never repeated.

    Where ``limit_to`` was called, threads wait for their turn instead of opening more connections.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.connects = Connects()
        #: The times by which users of this connection go.
        self.timing = Timing()
        #: As many objects as commands may be under way at once; None without a limit. Its waiting costs less than a
        #: semaphore's.
        self._turns: queue.SimpleQueue[None] | None = None
        #: Connections that nobody uses, and since when; the one used last comes first. The pool counts them as in use.
        self._kept: deque[tuple[Any, float]] = deque()

    def limit_to(self, commands: int) -> None:
        """Let so many commands be under way at once, and others wait; none of them may block for long."""
        self._turns = queue.SimpleQueue()
        for _ in range(commands):
            self._turns.put(None)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command and return its answer, as redis-py does."""

        def ask(connection: Any) -> object:
            connection.send_command(*args)
            # redis-py has no types for it.
            return self.parse_response(connection, args[0], **options)  # type: ignore[no-untyped-call]

        return self._in_turn(ask)

    def execute_both(self, first: Sequence[object], second: Sequence[object]) -> tuple[Any, Any]:
        """Send two commands at once and return their answers, or errors of the server's.

        Redis-py's pipeline takes three times as long.
        """

        def ask(connection: Any) -> tuple[object, object]:
            connection.send_packed_command(connection.pack_commands([first, second]))
            return _answer_or_error(connection), _answer_or_error(connection)

        return self._in_turn(ask)

    def _in_turn(self, ask: Callable[..., T]) -> T:
        if self._turns is None:
            return self._execute(ask)
        self._turns.get()
        try:
            return self._execute(ask)
        finally:
            self._turns.put(None)

    def close_unused(self, for_s: float) -> None:
        """Close the connections that no command has used for so long, and those that the pool has over."""
        with contextlib.suppress(IndexError):
            while monotonic() - self._kept[0][1] >= for_s:
                connection, _ = self._kept.popleft()
                self.connects.closes(connection)
                self.connection_pool.release(connection)
        self.connection_pool.disconnect(inuse_connections=False)

    def _execute(self, ask: Callable[..., T]) -> T:
        connection = self._take()
        try:
            answer = ask(connection)
        except redis.exceptions.ReadOnlyError:
            # The server was demoted, and keeps its clients where another one decides that (a managed Redis): the name
            # leads to the new master.
            connection.disconnect()
            self.connection_pool.release(connection)
            self._give_back(closed=True)
            raise
        except redis.ResponseError:
            # It is an answer too.
            self._kept.append((connection, monotonic()))
            raise
        except BaseException:
            # The answer may still come; the next command must not take it for its own. The server may be gone.
            connection.disconnect()
            self.connection_pool.release(connection)
            self._give_back()
            raise
        self._kept.append((connection, monotonic()))
        return answer

    def _take(self) -> Any:
        try:
            connection, used_at = self._kept.pop()
        except IndexError:
            return self.connection_pool.get_connection()
        if monotonic() - used_at < self.timing.fresh_s:
            return connection
        self.connection_pool.release(connection)
        return self.connection_pool.get_connection()

    def _give_back(self, *, closed: bool = False) -> None:
        """Return all connections to the pool, which checks them before they are used again.

        *closed* ones connect anew.
        """
        with contextlib.suppress(IndexError):
            while True:
                connection = self._kept.pop()[0]
                if closed:
                    connection.disconnect()
                self.connection_pool.release(connection)


def _answer_or_error(connection: Any) -> object:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


class OneClient:
    """Makes a Redis channel of kombu use one client.

    Kombu makes one for each command, which takes longer than the command. Its connections don't tell the server their
    library's name, which accounts may not do.

    To be named before kombu's class among the bases.
    """

    pool: redis.ConnectionPool
    _async_pool: redis.ConnectionPool | None

    def close_unused(self, for_s: float) -> None:
        """Close idle connections, and those that the channel opened to begin with."""
        self._one_client.close_unused(for_s)
        if self._async_pool is not None:
            self._async_pool.disconnect(inuse_connections=False)

    @contextlib.contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """Yield a client for a command of the channel."""
        yield client or self._one_client

    def _connparams(self, *args: Any, **options: Any) -> dict[str, Any]:
        # kombu's class follows this one among the bases.
        return {**super()._connparams(*args, **options), "driver_info": None}  # type: ignore[misc]

    @cached_property
    def _one_client(self) -> RedisClient:
        return RedisClient(connection_pool=self.pool)


#: How long a person waits before the answer is that nothing answers.
CONNECT_TIMEOUT_S: Final = Timing().connect_timeout_s
#: A connection that was idle for longer is pinged before it is used: shorter than what firewalls cut (60 s and up).
HEALTH_CHECK_INTERVAL_S: Final = 30
#: The first Redis with all that kombu 5.7 and the journal's scripts use (ZADD GT, ZRANGE REV, XADD MINID).
OLDEST_VERSION: Final = (6, 2)
DEFAULT_PORT: Final = 6379

_TLS_OPTIONS: Final = frozenset(
    {"ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"}
)
#: The settings in a URL that say where the server is, and who connects.
_PLACE: Final = frozenset({"connection_class", "host", "port", "path", "db", "username", "password"})
_SCHEMES: Final = ("redis", "rediss", "unix", "redis+socket")
_FORMS: Final = (
    f"redis://[:password@]host:port/db, rediss://… for TLS, unix://[:password@]/path/to/socket?db=0, or {sentinel.FORM}"
)
_PERCENT: Final = "special characters in a password must be percent-encoded (urllib.parse.quote(password, safe=''))"

#: What a machine answers for a server that is down, or starts again.
_PASSING: Final = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPIPE, errno.ETIMEDOUT}
)

_CLOSED: Final = "closed by server"

#: Roles that obey whoever can write to the broker.
_TRUSTING: Final = frozenset({"driver", "worker"})

_logger = logging.getLogger(__name__)


def connect(url: str, *, timing: Timing = Timing(), role: str = "client") -> RedisClient:
    """Open a connection to the Redis at *url* and check that it is usable.

    The client answers in bytes, never repeats a command on its own (a repeated write could double it) and may be shared
    by threads, but not across a fork; the layers above hand it on and leave its methods to the journal. It speaks
    RESP2, which gives one shape of answer on every server from 6.2 on.

    Args:
        timing: the client keeps it. Whatever name server or peer do, the check is over within ``connect_timeout_s``.
        role: who connects; shown by CLIENT LIST as mqtune-<role>.

    Raises:
        ConfigurationError: the URL can't be read, or names a database that the server doesn't have.
        BrokerUnavailable: nothing answers there in time, or something that is not Redis.
        BrokerRefused: the password is missing or wrong, or the user may do nothing.
        BrokerTooOld: the server is older than OLDEST_VERSION.
    """
    client = open_client(url, timing=timing, role=role)
    outcome: list[Mapping[str, object] | BaseException] = []
    # A thread, because neither name resolution nor a peer that sends single bytes obeys a socket timeout.
    prober = threading.Thread(target=_probe, args=(client, url, outcome), name="mqtune-connect", daemon=True)
    prober.start()
    prober.join(timing.connect_timeout_s)
    if not outcome:
        silent = BrokerUnavailable(
            f"nothing answered at {redact(url)} within {timing.connect_timeout_s:g} s; "
            "check the address, the network and firewalls"
        )
        # A server that is frozen, or whose machine is, takes a connection and says nothing.
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
        # Redis 7.0 has no CLIENT SETINFO, and so accounts that may send it can't be made there.
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
    """Return the times by which users of a client go."""
    timing = getattr(client, "timing", None)
    return timing if isinstance(timing, Timing) else Timing()


def account_of(client: redis.Redis) -> str:
    """Return the name of the account that a client uses; empty for the server's default one."""
    return str(client.get_connection_kwargs().get("username") or "")


def database_of(client: redis.Redis) -> int:
    """Return the number of the database that a client uses."""
    return int(client.get_connection_kwargs().get("db", 0))


def celery_url(url: str) -> str:
    """Return *url* in the form that kombu reads: one scheme for sockets, the database in its place, TLS verified.

    Of a master behind Sentinels it says where these are; ``celery_options`` has its name.

    kombu takes a missing ssl_cert_reqs for "verify nothing" (kombu/connection.py, _init_params), so it is always given.

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
        return ";".join(f"sentinel://{login}{shown_host(*each)}/{address['db']}" for each in sentinels.hosts)
    options = celery_tls(url)
    query = f"?{urlencode(options)}" if options else ""
    place = shown_host(address["host"], address["port"])
    return f"{'redis' if options is None else 'rediss'}://{login}{place}/{address['db']}{query}"


def celery_options(url: str) -> Options:
    """Return kombu's transport options for *url*.

    They have the names of its tables, and the way to a master behind Sentinels.

    Raises:
        ConfigurationError: the URL can't be read.
    """
    sentinels: Sentinels | None = _parse(url).get("sentinels")
    if sentinels is None:
        return {**UNACKED}
    return {**UNACKED, "master_name": sentinels.name, "sentinel_kwargs": sentinels.arguments(celery_tls(url))}


def sentinels_say(url: str) -> list[str]:
    """Return the address that each Sentinel in *url* gives for the master, or an empty text; nothing for other URLs.

    Raises:
        ConfigurationError: the URL can't be read.
    """
    sentinels: Sentinels | None = _parse(url).get("sentinels")
    return [] if sentinels is None else sentinels.answers(celery_tls(url))


def celery_tls(url: str) -> Options | None:
    """Return the TLS options in *url*, as Flower wants them beside it; None without TLS.

    Raises:
        ConfigurationError: the URL can't be read.
    """
    address = _parse(url)
    if address.get("connection_class") is not redis.SSLConnection:
        return None
    return {"ssl_cert_reqs": "required", **{name: address[name] for name in sorted(_TLS_OPTIONS & address.keys())}}


def redact(url: str) -> str:
    """Return *url* without its password, for messages and logs.

    Whatever stands before the last @ counts as secret, save a user name that a password follows, and so does a port
    that is no number: a password with an unescaped / or @ in it must not leak because the URL is malformed.
    """
    url = re.sub(r"(?i)(password=)[^&]*", r"\1***", url)
    scheme, separator, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    if at:
        user, colon, _ = login.partition(":")
        return f"{scheme}{separator}{user + colon if colon else ''}***@{place}"
    return re.sub(r"(://[^/@:\[]*:)(?!\d{1,5}(?:[/?]|$)).*", r"\1***", url)


def _parse(url: str) -> dict[str, Any]:
    """Return the connection settings that redis-py parses from *url*, after checks that it doesn't make."""
    if isinstance(url, str) and url.partition("://")[0] in sentinel.SCHEMES:
        return _parse_sentinels(url)
    parts = _split(url)
    is_socket = parts.scheme in ("unix", "redis+socket")
    if parts.fragment or ";" in parts.netloc or (not is_socket and "@" in parts.path + parts.query):
        raise ConfigurationError(f"the broker URL {redact(url)} is ambiguous; {_PERCENT}, and one URL is all it takes")
    database = "" if is_socket else parts.path.strip("/")
    # As Celery writes a socket.
    plain = re.sub(r"([?&])virtual_host=/*", r"\1db=", f"unix{url[len(parts.scheme) :]}") if is_socket else url
    try:
        # redis-py has no types for it.
        address: dict[str, Any] = parse_url(plain)  # type: ignore[no-untyped-call]
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
        found, plain = Sentinels.parsed(url)
    except ValueError as error:
        raise ConfigurationError(f"the broker URL {redact(url)} can't be read: {error} Give {sentinel.FORM}") from None
    return {**_parse(plain), "sentinels": found}


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
    unknown = sorted(address.keys() - _PLACE - (_TLS_OPTIONS if is_tls else frozenset()))
    if unknown:
        raise ConfigurationError(
            f"the broker URL {redact(url)} sets {', '.join(unknown)}: timeouts, retries and the like are mqtune's, and "
            f"ssl_… options go with rediss:// ({', '.join(sorted(_TLS_OPTIONS))}); leave it out"
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
                f"no Sentinel at {place} names a master of that name that is up ({_briefly(reason)}); check the name "
                f"behind the "
                "hosts, and ?sentinel_password=… if the Sentinels ask for one"
            )
        case redis.ResponseError() if "unknown command" in reason and "sentinel" in reason.lower():
            return BrokerUnavailable(f"what listens at {place} is not a Sentinel; give redis://… for the server itself")
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
                f"what listens at {place} is not Redis ({reason}); check the port, and rediss:// if it expects TLS"
            )
        case redis.RedisError() if "CERTIFICATE_VERIFY_FAILED" in reason:
            return BrokerUnavailable(
                f"the certificate of the Redis at {place} is not one to trust ({reason}); give its authority's "
                f"certificate "
                "(rediss://…?ssl_ca_certs=/path/ca.pem), and the host by the name that its own is for"
            )
        case redis.exceptions.ConnectionError() if _CLOSED in reason and celery_tls(url) is None:
            return BrokerUnavailable(
                f"the server at {place} closes the connection ({reason}); give rediss:// if it expects TLS, as a "
                f"managed Redis may"
            )
        case redis.exceptions.ResponseError() if "DB index" in reason:
            return ConfigurationError(f"the Redis at {place} does not have that database ({reason}); use 0")
        case redis.exceptions.RedisError() | OSError() | ValueError():
            return BrokerUnavailable(
                f"no Redis answers at {place} ({reason}); start it, or give the address of one that runs"
            )
    return error


def _may_pass(error: BaseException) -> bool:
    """Return whether the server may be there in a moment.

    It may not where a name, a port, a login or a certificate is wrong.
    """
    # A timeout is silence too: which of the two clocks runs out first is chance.
    passing = redis.exceptions.BusyLoadingError, redis.exceptions.TimeoutError, redis.sentinel.MasterNotFoundError
    if isinstance(error, passing):
        return True
    # So does what stands before a server that is down.
    if isinstance(error, redis.exceptions.ConnectionError) and _CLOSED in str(error):
        return True
    # redis-py says what it met in words; the error that it met has the number.
    met = error if isinstance(error, OSError) and error.errno else error.__context__
    return isinstance(met, OSError) and met.errno in _PASSING


def _briefly(reason: str) -> str:
    """Return what each Sentinel has said, without redis-py's description of its client."""
    said = dict.fromkeys(re.findall(r"> - (.+?)(?=, <|$)", reason))
    return "; ".join(said) or "they answer"


def _without_password(text: str, url: str) -> str:
    address = _parse(url)
    sentinels: Sentinels | None = address.get("sentinels")
    passwords = [address.get("password", ""), *(value for _, value in (sentinels.login if sentinels else ()))]
    for secret in filter(None, [*passwords, *(quote(password, safe="") for password in passwords)]):
        text = text.replace(secret, "***")
    return text.rstrip(".")


def _check_version(info: Mapping[str, object], url: str) -> None:
    version = str(info.get("redis_version", ""))
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        raise BrokerTooOld(
            f"the Redis at {redact(url)} is version {version}; mqtune needs {oldest} or later, or any Valkey"
        )


def _check_mode(info: Mapping[str, object], url: str) -> None:
    # Valkey may be told to call it otherwise.
    match info.get("redis_mode") or info.get("server_mode"):
        case "sentinel":
            raise BrokerUnavailable(
                f"what listens at {redact(url)} is a Sentinel, which keeps nothing itself: give {sentinel.FORM}"
            )
        case "cluster":
            raise BrokerUnavailable(
                f"the Redis at {redact(url)} is in cluster mode, which spreads keys over servers, while an "
                f"experiment's have to be on "
                "one: give one with cluster mode off; of a managed Redis that is a setting of its own, and several "
                "teams may have one each"
            )


def _warn_of_open_doors(url: str) -> None:
    address = _parse(url)
    if "path" in address or is_loopback(address["host"]):
        return
    if not address.get("password") and "ssl_certfile" not in address:
        _logger.warning(
            "the Redis at %s lets everybody in who reaches it: they can stop trials, and start whatever is below a "
            "worker's code root; set a password, or make accounts with what `mqtune acl` prints",
            redact(url),
            extra={"action": "broker_is_open"},
        )
    if address.get("ssl_cert_reqs", "required") != "required":
        _logger.warning(
            "who answers at %s is not checked (ssl_cert_reqs): give its authority's certificate by ssl_ca_certs "
            "instead",
            redact(url),
            extra={"action": "broker_is_unchecked"},
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def eviction_policy(info: Mapping[str, object]) -> str:
    """Return by which policy a server may delete experiments when its memory is full, from what it says of itself.

    It is "" otherwise.
    """
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
