from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest
import redis
from hypothesis import settings
from waiting import eventually

from mqtune.errors import NoServer
from mqtune.journal.connection import connect
from mqtune.journal.server import EmbeddedServer, find_binary

#: In the environment of every process that a test starts, so that one that lost its parents is found too.
RUN_MARK: Final = "MQTUNE_TEST_RUN"
#: How long processes that were told to end may take: a server flushes its file, its watcher looks every 0.05 s.
GOODBYE_S: Final = 5.0

# A busy machine is no reason to fail.
settings.register_profile("mqtune", deadline=None)
settings.load_profile("mqtune")

_homes = itertools.count(1)


def processes_of_run(mark: str) -> list[str]:
    """The living processes that the tests started: this process's descendants, and whoever carries the run's mark."""
    me = psutil.Process()
    found = set(me.children(recursive=True))
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process != me and process.environ().get(RUN_MARK) == mark:
                found.add(process)
    shown = []
    for process in found:
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                shown.append(f"{process.pid}: {' '.join(process.cmdline())}")
    return shown


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """When all tests and their fixtures are done, no process that they started runs any more."""
    mark = os.environ[RUN_MARK] = secrets.token_hex(8)
    yield
    left: list[str] = []

    def all_gone() -> bool:
        left[:] = processes_of_run(mark)
        return not left

    with contextlib.suppress(AssertionError):
        eventually(all_gone, GOODBYE_S)
    assert not left, "tests left processes behind"


@pytest.fixture(autouse=True)
def mqtune_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for each test; made when something is first kept in it."""
    home = tmp_path_factory.getbasetemp() / f"home-{next(_homes)}"
    monkeypatch.setenv("MQTUNE_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server for all tests of the run; without a program for one they are skipped, but not in CI."""
    try:
        binary = find_binary()
    except NoServer as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with EmbeddedServer.start(tmp_path_factory.mktemp("server"), binary=binary) as server:
        yield server


@pytest.fixture
def redis_client(redis_server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A checked connection to a server that holds nothing."""
    with contextlib.closing(connect(redis_server.url, role="test")) as client:
        client.flushdb()
        yield client
