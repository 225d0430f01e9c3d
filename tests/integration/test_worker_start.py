"""How a worker starts while its connection is bad."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from started import started, wait_for_worker

from mqtune.backends import EmbeddedServer
from mqtune.core.errors import BrokerUnavailable
from mqtune.core.timing import Timing
from mqtune.journal import RedisClient
from mqtune.worker import TrialApp, WorkerSettings, create_app


@pytest.fixture
def timing() -> Timing:
    return Timing()


@pytest.fixture
def app(redis_server: EmbeddedServer, tmp_path: Path, timing: Timing) -> Any:
    settings = WorkerSettings(
        broker=redis_server.url, gpus="0", code_root=tmp_path, log_root=tmp_path / "logs", timing=timing
    )
    app = create_app(settings)
    yield app
    app.client.close()


def cut(monkeypatch: pytest.MonkeyPatch, command: str, times: int) -> list[str]:
    """Have the connection break when a worker sends this command, so often; returns what it sends."""
    execute, sent = RedisClient.execute_command, []

    def execute_or_break(client: RedisClient, *args: Any, **options: Any) -> Any:
        sent.append(args[0])
        if args[0] == command and sent.count(command) <= times:
            raise redis.ConnectionError("Connection reset by peer.")
        return execute(client, *args, **options)

    monkeypatch.setattr(RedisClient, "execute_command", execute_or_break)
    return sent


def test_a_worker_whose_connection_breaks_while_it_starts_tries_again(
    app: TrialApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = cut(monkeypatch, "EXISTS", 2)

    app.prepare("w@here", None)

    assert sent.count("EXISTS") == 3
    assert app.is_watched is False


@pytest.mark.parametrize("timing", [Timing(connect_timeout_s=0.3)])
def test_a_worker_that_can_not_reach_its_broker_while_it_starts_says_so(
    app: TrialApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(monkeypatch, "EXISTS", 10**6)

    with pytest.raises(BrokerUnavailable, match="Connection reset by peer"):
        app.prepare("w@here", None)


def test_a_worker_whose_output_is_on_a_full_disk_joins_the_fleet(redis_server: EmbeddedServer, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mqtune", "worker", "--name", "mute"]
    settings = {"MQTUNE_BROKER": redis_server.url, "MQTUNE_LOG_ROOT": str(tmp_path)}

    with started(command, settings, Path("/dev/full"), cwd=tmp_path) as worker:
        wait_for_worker(redis_server.url, worker, Path(os.devnull))
