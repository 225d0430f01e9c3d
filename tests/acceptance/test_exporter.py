"""``mqtune exporter`` and ``mqtune usage`` as people run them, beside a real driver and worker."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accounts import Accounts
from click.testing import CliRunner
from started import started
from trainables import reports_once
from waiting import eventually

import mqtune
from mqtune.cli import group
from mqtune.core.errors import BrokerRefused
from mqtune.testing.backends.world import drive

parser = pytest.importorskip("prometheus_client.parser")


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
    return number


def scraped(port: int) -> dict[tuple[str, str], float]:
    """Each value by its metric and its experiment, worker, or nothing; empty while nobody serves."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            families = [*parser.text_string_to_metric_families(answer.read().decode())]
    except OSError:
        return {}
    samples = [sample for family in families for sample in family.samples]
    return {(each.name, each.labels.get("experiment", each.labels.get("end", ""))): each.value for each in samples}


def used_by(experiment: str, **environment: str) -> list[dict[str, Any]]:
    done = CliRunner(env=environment).invoke(group, ["usage", "--by", "experiment", "--json"])
    assert done.exit_code == 0, done.output
    return [row for row in json.loads(done.stdout)["rows"] if row["experiment"] == experiment]


def test_it_serves_the_figures_of_running_drivers_to_a_monitor_and_ends_when_it_is_told(
    tune: Callable[..., mqtune.Tuner], fleet: str, tmp_path: Path, port: int
) -> None:
    with contextlib.closing(Accounts(fleet)) as accounts:
        command = [sys.executable, "-m", "mqtune", "exporter", "--port", str(port)]
        settings = {"MQTUNE_BROKER": accounts.make("monitor")}
        with started(command, settings, tmp_path / "exporter.log", cwd=tmp_path) as exporter:
            eventually(lambda: scraped(port).get(("mqtune_redis_up", "")) == 1, 30)
            tuner = tune(reports_once, {"x": mqtune.uniform(0, 1)}, max_trials=2)
            drive(tuner, lambda: sum(trial.reports for trial in tuner.get_trials()) == 2)
            name = tuner.name
            seen = scraped(port)
            assert [seen[f"mqtune_experiment_{each}", name] for each in ("driver_up", "running", "waiting")] == [
                1,
                2,
                0,
            ]
            tuner.stop_all("the test is over")
            drive(tuner, lambda: tuner.is_finished)
            tuner.close()
            eventually(lambda: scraped(port).get(("mqtune_fleet_attempts_ended_total", "stopped")) == 2)
            assert ("mqtune_experiment_driver_up", name) not in scraped(port)
            exporter.send_signal(signal.SIGTERM)
            assert exporter.wait(timeout=30) == 0
        assert f"for Prometheus at http://127.0.0.1:{port}/metrics" in (tmp_path / "exporter.log").read_text()
        there, here = used_by(name, MQTUNE_BROKER=settings["MQTUNE_BROKER"]), used_by(name, MQTUNE_BROKER="")

        assert len(there) == 1, "its journal is on the broker, and a copy on this machine"
        assert there == here
        assert (there[0]["trials"], there[0]["attempts"]) == (2, 2)
        assert there[0]["slot_hours"] * 3600 == pytest.approx(sum(trial.run_s for trial in tuner.get_trials()))
        assert accounts.refused() == []


def test_it_begins_without_a_server_and_not_with_a_wrong_password(fleet: str, tmp_path: Path, port: int) -> None:
    command = [sys.executable, "-m", "mqtune", "exporter", "--port", str(port), "--broker", "redis://127.0.0.1:1/0"]
    with started(command, {}, tmp_path / "exporter.log", cwd=tmp_path):
        eventually(lambda: scraped(port) == {("mqtune_redis_up", ""): 0}, 30)
    with contextlib.closing(Accounts(fleet)) as accounts:
        url = accounts.url_of("mqtune-monitor", "wrong")
        refused = CliRunner().invoke(group, ["exporter", "--broker", url, "--port", "0"])

    assert isinstance(refused.exception, BrokerRefused)
