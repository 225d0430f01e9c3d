"""A worker with ``--log-format json`` writes nothing but JSON lines, with its name, and with the attempt that a line is about."""

from __future__ import annotations

import json
from pathlib import Path

import trainables_saving as saving
from pair import OPTIONS, counting, finished, tuners
from running import running_worker
from waiting import eventually

#: As root Celery warns, by Python's own means, before it logs anything.
QUIET = {"PYTHONWARNINGS": "ignore"}


def test_every_line_of_a_workers_log_is_json_with_the_worker_and_the_attempt(own_broker: str, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with (
        running_worker(own_broker, log, *OPTIONS, "--log-format", "json", name="w", environment=QUIET) as process,
        tuners(own_broker, tmp_path / "store") as tune,
    ):
        tuner = tune(saving.Counts, counting(3))
        finished(tuner)
        process.terminate()
        eventually(lambda: process.poll() is not None)

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines
    assert {line["worker"].partition("@")[0] for line in lines} == {"w"}
    about = [(line["experiment"], line["trial"], line["attempt"]) for line in lines if "Task" in line["message"]]
    assert set(about) == {(tuner.name, "0001", 1)}
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
