"""What asks for more than there is, output, reports, configs, disks, is bounded, and what is refused says why."""

from __future__ import annotations

import csv
import io
import json
import math
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import trainables_bounds
from running import running_worker
from test_cli_show import run
from waiting import eventually

import mqtune
from mqtune.backends.local.server import EmbeddedServer, ServerBinary
from mqtune.checkpoints import experiment_url, open_store
from mqtune.core.trial import Report, Trial, TrialStatus
from mqtune.worker.logs import MAX_BYTES

Tune = Callable[..., mqtune.Tuner]


@pytest.fixture
def bound(tune: Tune) -> Tune:
    """Build a tuner for one trial of a trainable of trainables_bounds.py."""
    return lambda trainable, space=None, **options: tune(
        getattr(trainables_bounds, trainable), space, **{"max_trials": 1, **options}
    )


def test_a_trial_that_prints_without_end_keeps_its_first_and_last_lines_and_fills_no_disk(bound: Tune):
    results = bound("prints_without_end", name="chatty").run()

    (failed,) = results.errors
    stdout, stderr = map(Path, failed.log_paths)
    assert failed.reason == "ValueError: no luck"
    assert (stdout.stat().st_size < MAX_BYTES, stderr.stat().st_size < MAX_BYTES) == (True, True)
    with stdout.open() as file:
        assert file.readline() == "the first line\n"
    assert failed.attempts[-1].stdout_tail.endswith(".\nthe last line\n")
    assert failed.attempts[-1].stderr_tail.endswith("ValueError: no luck\n\n")
    assert "the last line" in run("show", "chatty", "1")


def test_large_reports_arrive_or_are_refused_with_their_size_and_everything_shows_them(bound: Tune):
    results = bound("reports_large_things", name="large").run()

    text, numbers, keys, name, deep, odd, last = [report.metrics for report in results.reports()]
    assert (text["text"], numbers["list"]) == ("x" * 10**6, list(range(200_000)))
    assert (len(keys), keys["metric_4999"], name["n" * 10_000]) == (5_004, 4999.0, 1.0)
    assert deep["deep"] == trainables_bounds.nested(500)
    assert [math.isnan(odd["not numbers"][0]), *odd["not numbers"][1:]] == [True, math.inf, -math.inf]
    large, too_deep, bad_key = last["refused"]
    assert large.startswith("report: these 5 metrics have 2,000,")
    assert "the most is 1,048,576; the largest is 'culprit' with 2,000,0" in large
    assert "'culprit' can't be sent" in too_deep
    assert "'culprit' can't be sent" in bad_key
    assert results.best.trial.reports == 7

    shown = run("show", "large")
    assert "best loss=1 in trial 0001" in shown
    assert len(shown) < 2_000
    assert "metric_4999 = 4999.0" in run("show", "large", "1")
    (row,) = csv.DictReader(io.StringIO(run("export", "large")))
    assert row["metrics.metric_4999"] == "4999.0"
    lines = [json.loads(line) for line in run("export", "large", "--format", "jsonl", "--rows", "reports").splitlines()]
    assert len(lines) == 7
    assert json.loads((results.folder / "results.json").read_text())["best"]["metrics"]["n" * 10_000] == 3.0


def test_a_burst_of_100_000_reports_arrives_in_order(bound: Tune):
    results = bound("reports_in_a_burst", {"reports": 100_000}).run()

    assert [report.metrics["number"] for report in results.reports()] == list(range(100_000))


def test_a_config_of_a_megabyte_arrives_and_a_larger_one_is_refused_with_its_size(bound: Tune):
    results = bound("has_a_large_config", {"text": "x" * 10**6}).run()

    assert results.best.value == 10**6
    with pytest.raises(mqtune.core.errors.ConfigurationError, match=r"has 2,000,\d+ bytes .* is 'text' with 2,000,"):
        bound("has_a_large_config", {"text": "x" * 2 * 10**6}).run()


def test_a_store_that_is_full_is_an_error_in_the_trial_and_what_was_half_written_is_never_seen(
    bound: Tune, tmp_path: Path
):
    store = tmp_path / "store"

    results = bound("meets_a_full_store", checkpoints=mqtune.Checkpoints(str(store))).run()

    assert results.best.status is TrialStatus.COMPLETED
    refused = results.best.metrics["refused"]
    assert f"can't save a checkpoint in {store / results.name}: File too large" in refused
    assert open_store(experiment_url(store, results.name)).ids() == [results.best.checkpoint]
    assert (results.get_checkpoint().path / "model").stat().st_size == 10**6
    assert list((store / results.name / ".staging").iterdir()) == []


def test_a_worker_whose_log_folder_can_not_be_written_runs_trials_all_the_same(
    bound: Tune, broker: str, tmp_path: Path
):
    log_root = tmp_path / "logs"
    environment = {"MQTUNE_LOG_ROOT": str(log_root)}
    worker_options = ("--gpus", "0", "--slots", "1", "--tags", "unkept")
    log_root.mkdir()
    # Where the folders of zygotes and of the experiment should be.
    (log_root / ".zygotes").write_text("in the way")
    (log_root / "unkept").write_text("in the way")
    with running_worker(broker, tmp_path / "worker.log", *worker_options, name="unkept", environment=environment):
        results = bound("prints", name="unkept", max_trials=2, resources=mqtune.Resources(tags=["unkept"])).run()

    assert [result.status for result in results] == [TrialStatus.COMPLETED] * 2
    assert "the output was not kept" in results.best.attempts[-1].stdout_tail
    assert "the output of a trial to" in (tmp_path / "worker.log").read_text()


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


def test_an_error_that_names_thousands_of_metrics_names_some(bound: Tune):
    with pytest.raises(mqtune.core.errors.MetricMissing) as caught:
        bound("reports_large_things", metric="accuracy", failures=mqtune.Failures(metric_from="later")).run()

    assert "and 4,987 more" in str(caught.value)
    assert len(str(caught.value)) < 4_000
