from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trainables
from simulation import tuner_on
from started import started, wait_for_worker

import mqtune
from mqtune.backends import EmbeddedServer, find_binary
from mqtune.core.errors import BrokerUnavailable
from mqtune.core.keys import WORKERS, name_key, worker_key
from mqtune.journal import Fleet, connect

__all__ = ["HERE", "QUICK", "broker", "fleet", "own_broker", "running_worker", "tune", "tuner_on"]

HERE = Path(__file__).parent
#: A worker whose leases are short.
QUICK = (str(HERE / "quick_worker.py"),)

_names = itertools.count(1)


@contextlib.contextmanager
def running_worker(
    broker: str,
    log: Path,
    *options: str,
    name: str = "w1",
    code_root: Path = HERE,
    environment: dict[str, str] | None = None,
    program: Sequence[str] = ("-m", "mqtune"),
) -> Iterator[subprocess.Popen[bytes]]:
    """A real ``mqtune worker`` that has joined the fleet; it is gone afterwards, also from the fleet if it was killed."""
    command = [sys.executable, *program, "worker", "--name", name, "--code-root", str(code_root), *options]
    settings = {"MQTUNE_BROKER": broker, "MQTUNE_LOG_ROOT": str(log.parent), **(environment or {})}
    # The package that is imported is the one on the path, not the one in the folder that tests run in.
    process = None
    try:
        with started(command, settings, log, cwd=log.parent, within_s=10) as process:
            wait_for_worker(broker, process, log)
            yield process
    finally:
        if process is not None and process.returncode == -signal.SIGKILL:
            _forget(broker, process.pid)


def _forget(broker: str, pid: int) -> None:
    """Have no driver of a later test publish to a killed worker's queue: its slots may suit that test's trials too."""
    # The server may be gone as well.
    with contextlib.suppress(BrokerUnavailable), contextlib.closing(connect(broker)) as client:
        for worker in Fleet(client, patience_s=0).workers():
            if worker.pid == pid:
                client.delete(worker_key(worker.name), name_key(worker.name))
                client.zrem(WORKERS, worker.name)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own for the experiments of the acceptance tests."""
    with EmbeddedServer.start(tmp_path_factory.mktemp("fleet-server"), binary=find_binary()) as server:
        yield server.url


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[str]:
    with EmbeddedServer.start(tmp_path / "server", binary=find_binary()) as server:
        yield server.url


@pytest.fixture(scope="session")
def fleet(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_worker(broker, tmp_path_factory.mktemp("fleet") / "worker.log", "--gpus", "0", "--slots", "2"):
        yield broker


@pytest.fixture
def tune(fleet: str) -> Callable[..., mqtune.Tuner]:
    """Build a tuner on the fleet, or on another backend, for a trainable or its name in trainables.py."""

    def build(trainable: Any, space: dict[str, Any] | None = None, **options: Any) -> mqtune.Tuner:
        tuned = getattr(trainables, trainable) if isinstance(trainable, str) else trainable
        settings = {"backend": fleet, "name": f"test-{os.getpid()}-{next(_names)}", **options}
        return tuner_on(trainable=tuned, space=space or {"x": mqtune.uniform(0, 1)}, **settings)

    return build
