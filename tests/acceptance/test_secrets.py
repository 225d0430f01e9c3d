"""The broker's password: nobody who reads logs, process lists, Flower, or what a run leaves behind, learns it."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
import threading
import urllib.error
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import psutil
import pytest
import trainables
from accounts import Accounts
from faces import celery, running, settings, wait_until_joined
from faulty_proxy import FaultyProxy
from running import tuner_on
from started import free_port
from tap import Tap
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
    """Have all that this process logs written there, of whatever level."""
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


def test_the_password_stands_nowhere(told: dict[str, str]):
    assert [where for where, text in told.items() if is_told(text)] == []


def test_nothing_that_flower_and_the_others_did_was_refused_to_their_accounts(told: dict[str, str]):
    assert told["refused"] == ""


def test_there_was_something_to_read_in_each_place(told: dict[str, str]):
    log = "DEBUG/MainProcess"

    assert log in told["worker.log"]
    assert "Redis is away" in told["what the driver logs"]
    assert any("workers.gpu" in text for where, text in told.items() if where.startswith("command line"))
    assert "mqtune.run_trial" in told[f"page {PAGES[0]}"]
    assert "quiet/0001/1" in told["page /api/tasks"]
    assert json.loads(told["page /api/queues/length"])["active_queues"]
    assert "the trial's environment" in "".join(text for where, text in told.items() if where.endswith(".stdout"))
    assert "RuntimeError" in told["Redis"]
