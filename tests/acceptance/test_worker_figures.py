"""A worker's figures for Prometheus, scraped over HTTP while it runs trials."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from running import running_worker
from started import free_port
from waiting import eventually

import mqtune
from mqtune.core.trial import TrialStatus
from mqtune.testing.backends.world import drive

parser = pytest.importorskip("prometheus_client.parser")
#: A shape that no other test's worker has.
CPUS = 14
ENDED = "mqtune_worker_attempts_ended_total"


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = parser.text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    return {
        " ".join([each.name, *(v for k, v in each.labels.items() if k != "worker" and v)]): each.value
        for each in samples
    }


def test_slots_ends_and_heartbeats_are_those_of_the_moment(
    tune: Callable[..., mqtune.Tuner], broker: str, tmp_path: Path
) -> None:
    port = free_port()
    options = ("--gpus", "0", "--slots", "2", "--cpus", str(2 * CPUS), "--metrics-port", str(port))
    with running_worker(broker, tmp_path / "worker.log", *options, name="figures"):
        resources = mqtune.Resources(cpus=CPUS)
        first = tune("fails_above_a_half", {"x": mqtune.grid_search([0.5, 2.0])}, resources=resources)
        eventually(lambda: scraped(port).get(f"{ENDED} failed") == 0)
        first.run()
        # An attempt is counted when nothing of it is left here, a moment after its end is journaled.
        eventually(lambda: scraped(port).items() >= {f"{ENDED} completed": 1, f"{ENDED} failed": 1}.items())
        before = scraped(port)
        second = tune("reports_once", {"x": 0.5}, max_trials=1, resources=resources)
        drive(second, lambda: any(trial.reports for trial in second.get_trials()))
        busy = scraped(port)
        second.stop_all("the test is over")
        drive(second, lambda: second.is_finished)
        second.close()
        eventually(lambda: scraped(port)["mqtune_worker_slots_busy"] == 0)

        assert {trial.status for trial in first.get_trials()} == {TrialStatus.COMPLETED, TrialStatus.FAILED}
        assert [before[f"mqtune_worker_{name}"] for name in ("slots", "slots_usable", "slots_busy")] == [2, 2, 0]
        assert busy["mqtune_worker_slots_busy"] == 1
        assert before["process_resident_memory_bytes"] > 1e7
        assert busy["mqtune_worker_redis_memory_bytes"] > 1e5
        assert busy["mqtune_worker_redis_memory_limit_bytes"] == 0
        beat = "mqtune_worker_heartbeat_timestamp_seconds"
        assert busy[beat] > 0
        eventually(lambda: scraped(port)[beat] > busy[beat])


def test_a_worker_that_is_not_asked_loads_nothing_for_it() -> None:
    probe = "import sys, mqtune.cli.worker, mqtune.worker.app; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False"]
