"""Figures for Prometheus, scraped over HTTP while a driver runs."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from simulation import tuner_on
from waiting import eventually

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.integrations import prometheus
from mqtune.integrations.prometheus import Prometheus, serve_worker
from mqtune.worker import WorkerFigures

parser = pytest.importorskip("prometheus_client.parser")


def objective(config: dict[str, Any]) -> None:
    """Never run: its workers are simulated."""


def curve(config: dict[str, Any]) -> Iterator[tuple[float, dict[str, float] | Exception]]:
    yield 1.0, {"loss": config["x"]}
    if config["x"] > 1:
        yield 1.0, RuntimeError("bad luck")


def tuner(callback: Prometheus) -> mqtune.Tuner:
    return tuner_on(
        mqtune.Simulated(curve, slots=1),
        objective,
        {"x": mqtune.grid_search([0.5, 2.0, 0.25])},
        name="mine",
        run=mqtune.RunOptions(callbacks=[callback]),
    )


def scraped(port: int) -> dict[str, float]:
    """Return each figure by its name and labels, but the experiment's."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = parser.text_string_to_metric_families(answer.read().decode())
    found = {}
    for sample in (each for family in families for each in family.samples):
        assert sample.labels.pop("experiment") == "mine"
        found[" ".join([sample.name, *sample.labels.values()])] = sample.value
    return found


def test_figures_are_those_of_the_moment_and_the_server_ends_with_the_driver() -> None:
    callback = Prometheus(port=0)
    running = tuner(callback)
    while not running.is_finished:
        running.step(1.0)

    wanted = {
        "mqtune_trials completed": 2.0,
        "mqtune_trials failed": 1.0,
        "mqtune_trials running": 0.0,
        "mqtune_reports_total": 3.0,
        "mqtune_attempts_ended_total completed": 2.0,
        "mqtune_attempts_ended_total failed": 1.0,
        # It would be no increase if it began at 1.
        "mqtune_attempts_ended_total lost": 0.0,
        "mqtune_best_value loss": 0.25,
        # Of a simulation nobody is the owner.
        "mqtune_experiment_info   ": 1.0,
    }
    # The callbacks' thread is told a little later.
    eventually(lambda: wanted.items() <= scraped(callback.port).items())
    running.close()

    with pytest.raises(urllib.error.URLError):
        scraped(callback.port)


def test_a_port_that_is_taken_is_said_before_anything_runs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} can't be listened on"):
            tuner(Prometheus(port)).run()


@pytest.mark.parametrize("step", ["Driver", "Driver.begin"])
def test_a_run_that_can_not_begin_lets_go_of_its_port(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = Prometheus(port=0)

    def refuse(*arguments: object, **options: object) -> None:
        raise ConfigurationError("the journal can't be written")

    monkeypatch.setattr(f"mqtune.driver.runner.{step}", refuse)
    with pytest.raises(ConfigurationError, match="can't be written"):
        tuner(callback).run()

    with socket.create_server(("127.0.0.1", callback.port)):
        pass


def test_a_workers_ended_attempts_are_told_apart_by_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = WorkerFigures(
        worker="w@a",
        slots=2,
        usable=1,
        busy=0,
        ended={("0", "failed"): 89, ("1", "completed"): 11},
        heartbeat_at=1.0,
        gpu_memory={},
        gpu_load={},
        gpu_power={},
        redis=None,
    )
    serve = Mock(return_value=(Mock(), Mock()))
    monkeypatch.setattr(prometheus, "start_http_server", serve)

    serve_worker(9809, "127.0.0.1", lambda: figures)

    registry = serve.call_args.args[2]
    labels = {"worker": "w@a", "device": "0", "end": "failed"}
    assert registry.get_sample_value("mqtune_worker_attempts_ended_total", labels) == 89
    labels.update(device="1", end="completed")
    assert registry.get_sample_value("mqtune_worker_attempts_ended_total", labels) == 11
