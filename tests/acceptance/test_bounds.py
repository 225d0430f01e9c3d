"""What asks for more than there is, output, reports, configs, disks, is bounded, and what is refused says why."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import trainables_bounds
from running import running_worker
from waiting import eventually

import mqtune
from mqtune.backends import EmbeddedServer, ServerBinary
from mqtune.core.trial import Report, Trial, TrialStatus

Tune = Callable[..., mqtune.Tuner]


@pytest.fixture
def bound(tune: Tune) -> Tune:
    """Build a tuner for one trial of a trainable of trainables_bounds.py."""
    return lambda trainable, space=None, **options: tune(
        getattr(trainables_bounds, trainable), space, **{"max_trials": 1, **options}
    )


class FillsTheDisk(mqtune.Callback):
    """Has a server find its disk full after some reports, and lets it have room again once the worker has said so."""

    def __init__(self, server: EmbeddedServer, folder: Path, worker_log: Path) -> None:
        self._server = server
        self._folder = folder
        self._worker_log = worker_log

    def on_report(self, trial: Trial, report: Report) -> None:
        if report.sequence != 20:
            return
        size = max(path.stat().st_size for path in self._folder.rglob("*.aof"))
        soft_and_hard = resource.prlimit(self._server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._server.pid, resource.RLIMIT_FSIZE, (size, soft_and_hard[1]))
        try:
            eventually(lambda: "MISCONF" in self._worker_log.read_text(), 60)
        finally:
            resource.prlimit(self._server.pid, resource.RLIMIT_FSIZE, soft_and_hard)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's")
def test_a_redis_whose_disk_is_full_is_waited_for_and_nothing_is_lost(
    bound: Tune, server_binary: ServerBinary, tmp_path: Path
):
    program = tmp_path / "server-that-outlives-a-full-disk"
    program.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {server_binary.path} \"$@\"\n")
    program.chmod(0o700)
    with (
        EmbeddedServer.start(tmp_path, binary=ServerBinary(program, server_binary.version)) as server,
        running_worker(server.url, tmp_path / "worker.log", "--gpus", "0", "--slots", "2"),
    ):
        disk = mqtune.RunOptions(callbacks=[FillsTheDisk(server, tmp_path, tmp_path / "worker.log")])
        results = bound("reports_steadily", max_trials=2, backend=server.url, run=disk).run()

    assert [(result.status, len(result.attempts)) for result in results] == [(TrialStatus.COMPLETED, 1)] * 2
    for result in results:
        assert [report.metrics["number"] for report in results.reports(result.id)] == list(range(150))
    said = (tmp_path / "worker.log").read_text()
    assert said.index("Redis takes no writes, or is busy (MISCONF Errors writing to the AOF file") < said.index(
        "Redis is back after"
    )
