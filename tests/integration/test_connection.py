from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import redis
from servers import EACH_SERVER, started_on

from mqtune.backends import EmbeddedServer
from mqtune.core.errors import BrokerRefused, BrokerTooOld, BrokerUnavailable, ConfigurationError, MqtuneError
from mqtune.core.timing import Timing
from mqtune.journal import celery_url, connect, open_client, redact

SECRET = "s3cr3t/with@odd#chars"
QUOTED = "s3cr3t%2Fwith%40odd%23chars"


@pytest.fixture(scope="module", params=EACH_SERVER)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start(tmp_path_factory.mktemp("experiment"), binary=started_on(request)) as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with contextlib.closing(connect(server.url)) as opened:
        opened.flushall()
        yield opened


def password_of(server: EmbeddedServer) -> str:
    return server.url.split("@")[0].removeprefix("unix://:")


@contextlib.contextmanager
def fake_redis(info: str, **answers: bytes) -> Iterator[str]:
    """A server that answers each RESP command with what *answers* has for its name, else with OK."""
    bulk = b"$%d\r\n%s\r\n" % (len(info), info.encode())
    known = {"PING": b"+PONG\r\n", "INFO": bulk, **answers}

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while header := self.rfile.readline():
                words = []
                for _ in range(int(header[1:])):
                    length = int(self.rfile.readline()[1:])
                    words.append(self.rfile.read(length + 2)[:-2])
                self.wfile.write(known.get(words[0].decode().upper(), b"+OK\r\n"))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"redis://:{QUOTED}@127.0.0.1:{server.server_address[1]}/0"
        server.shutdown()


def refusal(url: str, *, timeout_s: float = 5.0) -> MqtuneError:
    """Connect, and return the error, having checked that neither it nor what it is chained to shows the password."""
    with pytest.raises(MqtuneError) as caught:
        connect(url, timing=Timing(connect_timeout_s=timeout_s))
    error: BaseException | None = caught.value
    shown = ""
    while error is not None:
        shown += f"{error}{error!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert "s3cr3t" not in shown
    assert "with@odd" not in shown
    return caught.value


def test_a_command_that_times_out_is_not_repeated(server: EmbeddedServer, client: redis.Redis) -> None:
    hasty = open_client(server.url, timing=Timing(command_timeout_s=0.5))
    hasty.ping()
    # Busy for longer than the time limit, and back in time for a second try if there were one.
    back = threading.Timer(0.75, os.kill, (server.pid, signal.SIGCONT))
    os.kill(server.pid, signal.SIGSTOP)
    back.start()
    try:
        with contextlib.closing(hasty), pytest.raises(redis.exceptions.TimeoutError):
            hasty.xadd("stream", {"field": "value"})
    finally:
        back.join()

    assert client.xlen("stream") == 1


def test_a_missing_password_is_refused_with_a_way_out(server: EmbeddedServer) -> None:
    error = refusal(server.url.replace(f":{password_of(server)}@", ""))

    assert type(error) is BrokerRefused
    assert "put the right password into the URL" in str(error)


NEW = "redis_version:7.2.4\r\n"
NO_PASSWORD = b"-ERR AUTH <password> called without any password configured for the default user.\r\n"
LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"
NO_HELLO = b"-ERR unknown command 'HELLO'\r\n"


@pytest.mark.parametrize(
    ("info", "answers", "kind", "text"),
    [
        (NEW, {"AUTH": NO_PASSWORD}, BrokerRefused, "leave the password out"),
        (NEW, {"PING": LOADING}, BrokerUnavailable, "still loading"),
        ("redis_version:5.0.7\r\n", {"HELLO": NO_HELLO}, BrokerTooOld, "5.0.7"),
        ("redis_version:2.8\r\n", {"HELLO": NO_HELLO}, BrokerTooOld, "6.2"),
        (f"{NEW}redis_mode:cluster\r\n", {}, BrokerUnavailable, "is in cluster mode"),
        (f"{NEW}server_mode:cluster\r\n", {}, BrokerUnavailable, "is in cluster mode"),
        (f"{NEW}redis_mode:sentinel\r\n", {}, BrokerUnavailable, "is a Sentinel, which stores no data"),
    ],
)
def test_a_server_that_can_not_be_used_says_why(
    info: str, answers: dict[str, bytes], kind: type[MqtuneError], text: str
) -> None:
    with fake_redis(info, **answers) as url:
        error = refusal(url)
    assert type(error) is kind
    assert text in str(error)
    assert getattr(error, "may_pass", False) or answers != {"PING": LOADING}, "a driver that begins waits for it"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://user:{QUOTED}@127.0.0.1:1/0", "redis://user:***@127.0.0.1:1"),
        (f"unix://:{QUOTED}@/nowhere/none.sock?db=0", "none.sock"),
        (f"redis://:{QUOTED}@no-such-host.invalid:6379/0", "no-such-host.invalid"),
    ],
)
def test_a_place_where_nothing_listens_is_unavailable(url: str, shown: str) -> None:
    error = refusal(url)
    assert type(error) is BrokerUnavailable
    assert shown in str(error)


def test_a_peer_that_never_answers_is_unavailable_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        started = time.monotonic()
        error = refusal(f"redis://:{QUOTED}@127.0.0.1:{mute.getsockname()[1]}/0", timeout_s=0.2)

    assert type(error) is BrokerUnavailable
    assert "within 0.2 s" in str(error)
    assert error.may_pass, "it may be a server that is frozen, for which a driver that begins waits"
    assert time.monotonic() - started < Timing().command_timeout_s / 2


@pytest.mark.parametrize("version", ["6.2.0", "7.4.1", "9.1.2", "10.0.0", ""])
def test_a_server_that_is_new_enough_or_does_not_say_is_accepted(version: str) -> None:
    with fake_redis(f"redis_version:{version}\r\n") as url, contextlib.closing(connect(url)) as client:
        assert client.ping()


def test_a_database_that_the_server_does_not_have_is_a_wrong_setting(server: EmbeddedServer) -> None:
    assert type(refusal(server.url.replace("?db=0", "?db=4000"))) is ConfigurationError


def test_a_server_that_may_evict_the_journal_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    info = "redis_version:7.2.4\r\nmaxmemory:1000000\r\nmaxmemory_policy:allkeys-lru\r\n"

    with caplog.at_level(logging.WARNING, "mqtune"), fake_redis(info) as url, contextlib.closing(connect(url)):
        pass

    assert "allkeys-lru" in caplog.text
    assert "s3cr3t" not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        f"amqp://guest:{QUOTED}@localhost",
        f"redis://:{QUOTED}@localhost:port/0",
        f"redis://:{QUOTED}@localhost:6379/0?socket_timeout=1",
        f"redis://:{QUOTED}@localhost:6379/0?ssl_cert_reqs=none",
        f"redis://:{QUOTED}@one:6379/0;redis://:{QUOTED}@two:6379/0",
        f"rediss://:{QUOTED}@localhost:6379/0?ssl_cert_reqs=maybe",
        f"unix://:{QUOTED}@?db=0",
        f"redis://:{SECRET}@localhost:6379/0",
        "redis://:s3cr3t/6379@localhost",
        "redis://:12?s3cr3t@localhost",
        "redis://:s3cr3t",
        f"sentinel://:{QUOTED}@one,two",
        f"sentinel://:{QUOTED}@one,,two/name",
        f"sentinel://:{QUOTED}@one:port/name",
        f"sentinel://:{QUOTED}@one/na me/0",
        f"sentinel://:{SECRET}@one/name/0",
        f"sentinel://:{QUOTED}@one/name?sentinel_password=s3cr3t&socket_timeout=1",
        f"sentinel://:{QUOTED}@one/name?ssl_cert_reqs=none",
        f"sentinel://:{QUOTED}@one:26379/0;sentinel://:{QUOTED}@two:26379/0",
    ],
)
def test_an_address_that_can_not_be_read_is_a_wrong_setting_and_keeps_the_secret(url: str) -> None:
    assert type(refusal(url)) is ConfigurationError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:pw@h:1/0", "redis://:***@h:1/0"),
        ("redis://user:pw@h:1/0", "redis://user:***@h:1/0"),
        ("redis://pw@h:1/0", "redis://***@h:1/0"),
        ("redis://:p@w/p:w@h:1/0", "redis://:***@h:1/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("sentinel://:pw@a,b:1/m/0?sentinel_password=pw", "sentinel://:***@a,b:1/m/0?sentinel_password=***"),
        ("unix:///run/redis.sock?db=0&password=pw", "unix:///run/redis.sock?db=0&password=***"),
        ("redis+socket://:pw@/run/redis.sock?virtual_host=0", "redis+socket://:***@/run/redis.sock?virtual_host=0"),
    ],
)
def test_redacting_removes_the_password_and_keeps_the_place(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize(
    ("url", "for_celery"),
    [
        ("redis://", "redis://localhost:6379/0"),
        (f"redis://:{QUOTED}@h/2", f"redis://:{QUOTED}@h:6379/2"),
        ("redis://user:pw@[::1]:7000?db=1", "redis://user:pw@[::1]:7000/1"),
        ("rediss://h:6380/0", "rediss://h:6380/0?ssl_cert_reqs=required"),
        ("rediss://h/0?ssl_cert_reqs=CERT_NONE", "rediss://h:6379/0?ssl_cert_reqs=none"),
        ("unix:///run/a b.sock?db=1", "redis+socket:///run/a%20b.sock?virtual_host=1"),
        ("unix:///run/r.sock?password=pw", "redis+socket://:pw@/run/r.sock?virtual_host=0"),
    ],
)
def test_an_address_is_rewritten_for_celery(url: str, for_celery: str) -> None:
    assert celery_url(url) == for_celery
    assert celery_url(for_celery) == for_celery


INTERRUPTED = """
import signal
from mqtune.journal.server.connection import open_client

class Stop(Exception): pass

def stop(*_): raise Stop

signal.signal(signal.SIGALRM, stop)
pack = open_client("redis://localhost:1").connection_pool.make_connection().pack_command
numbers, count = [*range(50), *(each / 7 for each in range(50))], 0
while count < 1000:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
        while True:
            pack("EVALSHA", *numbers)
    except Stop:
        count += 1
assert pack("SET", "a", 5, 0.5, b"x") == [b"*5\\r\\n$3\\r\\nSET\\r\\n$1\\r\\na\\r\\n$1\\r\\n5\\r\\n$3\\r\\n0.5\\r\\n$1\\r\\nx\\r\\n"]
"""


def test_a_signal_whose_handler_raises_while_a_command_is_packed_crashes_no_process() -> None:
    subprocess.run([sys.executable, "-c", INTERRUPTED], timeout=60, check=True)
