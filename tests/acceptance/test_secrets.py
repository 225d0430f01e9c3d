"""The broker's password: nobody who reads logs, process lists, Flower, or what a run leaves behind, learns it."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
import threading
import urllib.error
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote

import psutil
import pytest
import redis
import trainables
from accounts import Accounts
from faces import celery, running, settings, wait_until_joined
from faulty_proxy import FaultyProxy
from running import tuner_on
from started import free_port
from test_flower import Flower
from waiting import eventually

import mqtune
from mqtune.backends import EmbeddedServer, find_binary
from mqtune.core.errors import BrokerUnavailable
from mqtune.core.trial import TrialStatus
from mqtune.journal import connect

#: With what has a meaning in a URL.
PASSWORD: Final = "h4sh/me@n0t:ever?"
FORMS: Final = (PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD), PASSWORD.replace("/", "\\/"))
USER: Final = "team-a"


def is_told(text: str | bytes) -> bool:
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    return any(form in text for form in FORMS)


class Tap:
    """Hears every channel of a server, and takes down its values when it is told to."""

    def __init__(self, url: str) -> None:
        self.values: list[bytes] = []
        self._client: Any = connect(url, role="tap")
        self._pubsub = self._client.pubsub()
        self._pubsub.psubscribe(**{"*": lambda heard: self.values.append(heard["data"])})
        self._thread = self._pubsub.run_in_thread(sleep_time=0.2, daemon=True)

    def look(self) -> None:
        client = self._client
        reads: dict[bytes, Callable[[bytes], Iterable[bytes | None]]] = {
            b"string": lambda key: [client.get(key)],
            b"list": lambda key: client.lrange(key, 0, -1),
            b"hash": lambda key: client.hgetall(key).values(),
            b"zset": lambda key: client.zrange(key, 0, -1),
            b"set": client.smembers,
            b"stream": lambda key: [value for _, fields in client.xrange(key) for value in fields.values()],
        }
        for key in client.keys("*"):
            # It may have expired, or have become one of another type.
            with contextlib.suppress(redis.ResponseError, KeyError):
                self.values += [value or b"" for value in reads[client.type(key)](key)]

    def close(self) -> None:
        self._thread.stop()
        self._thread.join()
        self._pubsub.close()
        self._client.close()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What can be read of a run at the debug level, in which trials fail and connections break, by where it stands."""
    folder = tmp_path_factory.mktemp("secrets")
    home = folder / "home"
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("MQTUNE_HOME", str(home))
        words = io.StringIO()
        stack.enter_context(log_to(words))
        server = stack.enter_context(EmbeddedServer.start(folder / "server", binary=find_binary()))
        accounts = stack.enter_context(contextlib.closing(Accounts(server.url)))
        proxy = FaultyProxy(server.url)
        stack.callback(proxy.close)
        place = proxy.url.rpartition("@")[2]
        roles = {"driver": {}, "worker": {}, "monitor": {"remote_control": True}}
        urls = {}
        for role, options in roles.items():
            user = accounts.make(role, f"{USER}-{role}", PASSWORD, **options).partition("@")[0]  # type: ignore[arg-type]
            urls[role] = f"redis://{user.partition('://')[2]}@{place}"
        tap = stack.enter_context(contextlib.closing(Tap(server.url)))

        environment = settings(urls["worker"], folder / "logs", CELERY_LOG_LEVEL="DEBUG")
        stack.enter_context(
            running(celery("worker", "-n", "quiet@%h", "-l", "DEBUG"), environment, folder / "worker.log")
        )
        flower = Flower(free_port())
        login = {"MQTUNE_BROKER": urls["monitor"], "FLOWER_BASIC_AUTH": "person:secret"}
        command = celery("flower", "--address=127.0.0.1", f"--port={flower.url.rpartition(':')[2]}", "--logging=debug")
        stack.enter_context(running(command, login, folder / "flower.log"))
        wait_until_joined(urls["worker"], "quiet")
        eventually(flower.is_up, 30)

        tuner = tuner_on(
            urls["driver"],
            trainables.tells_all,
            {"x": mqtune.uniform(0, 1), "go": str(folder / "go")},
            failures=mqtune.Failures(max_failures=0),
            name="quiet",
            max_trials=2,
        )
        with contextlib.closing(tuner):
            # Flower asks for events every few seconds.
            eventually(lambda: tuner.step(0.1) or len(flower.rows()) == 2, 40)
            found = {f"command line {number}": line for number, line in enumerate(command_lines())}
            eventually(lambda: "mqtune.run_trial" in page(flower, PAGES[0]), 30)
            found |= {f"page {path}": page(flower, path) for path in PAGES}
            proxy.refuse()
            proxy.cut()
            with pytest.raises(BrokerUnavailable):
                connect(urls["worker"])
            (folder / "go").touch()
            # The driver says that Redis is away, and then that it is back.
            back = threading.Timer(1.0, proxy.accept)
            back.start()
            stack.callback(back.join)
            eventually(lambda: tuner.step(0.1) or tuner.is_finished, 60)
            assert [trial.status for trial in tuner.get_trials()] == [TrialStatus.FAILED] * 2
            found["what the tuner says"] = repr(tuner) + tuner.debug_string() + repr(vars(tuner))
        tap.look()
        found |= {f"later page {path}": page(flower, path) for path in PAGES}
        found["Redis"] = "\n".join(value.decode(errors="replace") for value in tap.values)
        # Celery's clients tell newer servers their library's name, which no account may; docs/security.md says so.
        found["refused"] = "\n".join(line for line in accounts.refused() if "client|setinfo" not in line)
    # The programs have ended, with whatever they say at their end.
    found["what the driver logs"] = words.getvalue()
    for path in [*folder.glob("*.log"), *home.rglob("*"), *(folder / "logs").rglob("*")]:
        if path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes().decode(errors="replace")
    return found


@contextlib.contextmanager
def log_to(words: io.StringIO) -> Iterator[None]:
    handler, root = logging.StreamHandler(words), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.setLevel(before)
        root.removeHandler(handler)


def command_lines() -> list[str]:
    lines = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return lines


PAGES: Final = [
    f"/worker/quiet@{socket.gethostname()}",
    "/workers",
    "/broker",
    "/tasks",
    f"/task/{quote('quiet/0001/1', safe='')}",
    "/api/workers?refresh=1",
    "/api/tasks",
    "/api/task/types",
    "/api/queues/length",
    "/metrics",
]


def page(flower: Flower, path: str) -> str:
    try:
        return flower.call(path)
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace")


def test_the_password_stands_nowhere_and_no_account_was_refused_anything(told: dict[str, str]):
    assert [where for where, text in told.items() if is_told(text)] == []
    assert told["refused"] == ""

    # There was something to read in each place.
    assert "DEBUG/MainProcess" in told["worker.log"]
    assert "Redis is away" in told["what the driver logs"]
    assert any("workers.gpu" in text for where, text in told.items() if where.startswith("command line"))
    assert "mqtune.run_trial" in told[f"page {PAGES[0]}"]
    assert "quiet/0001/1" in told["page /api/tasks"]
    assert json.loads(told["page /api/queues/length"])["active_queues"]
    assert "the trial's environment" in "".join(text for where, text in told.items() if where.endswith(".stdout"))
    assert "RuntimeError" in told["Redis"]
