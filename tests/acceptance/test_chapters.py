"""An experiment whose journal's oldest entries leave Redis while it runs: over real workers, accounts, and a driver that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accounts import Accounts
from click.testing import CliRunner
from faces import running
from running import HERE, running_worker
from waiting import eventually

import mqtune
from mqtune.backends import EmbeddedServer, find_binary
from mqtune.cli import group
from mqtune.client import Client
from mqtune.core.errors import ChapterUnavailable
from mqtune.core.events import Reports
from mqtune.core.keys import ExperimentKeys
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialStatus
from mqtune.results.results import Results

#: How long it may take until so much has happened, on a machine that runs other tests.
SOON_S = 60.0
#: Far less than what the trial reports, and some times what one read of its pipe takes.
JOURNAL_MB = 3
STEPS = 150_000
SCRIPT = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import mqtune, trainables
from mqtune.core.timing import Timing

space = {{"told": sys.argv[2], "steps": {STEPS}, "x": mqtune.uniform(0, 1)}}
mqtune.Tuner(
    trainables.floods, space, metric="loss", mode="min", name=sys.argv[1], max_trials=1,
    checkpoints=mqtune.Checkpoints(store=sys.argv[3]),
    run=mqtune.RunOptions(progress=False, journal_mb={JOURNAL_MB}, timing=Timing(keep_lock_s=0.2)),
).run()
"""


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Accounts]:
    with (
        EmbeddedServer.start(tmp_path / "server", binary=find_binary()) as server,
        contextlib.closing(Accounts(server.url)) as accounts,
        running_worker(accounts.make("worker"), tmp_path / "worker.log", "--gpus", "0", "--slots", "1"),
    ):
        yield accounts


def says(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(group, [*arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_a_flood_leaves_redis_its_driver_dies_and_one_on_another_machine_and_all_who_look_miss_nothing(
    accounts: Accounts, tmp_path: Path, mqtune_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, script, log = "flood", tmp_path / "script.py", tmp_path / "driver.log"
    script.write_text(SCRIPT)
    driver_url, monitor_url = accounts.make("driver"), accounts.make("monitor")
    meta = ExperimentKeys(name).meta
    admin: Any = accounts.admin
    sizes: list[int] = []

    def chapters() -> int:
        sizes.append(int(admin.hget(meta, "bytes") or 0))
        return len((admin.hget(ExperimentKeys(name).chapters, "lines") or b"").splitlines())

    # The first driver is on another machine as far as its folder goes.
    environment = {"MQTUNE_BROKER": driver_url, "MQTUNE_HOME": str(tmp_path / "first-home")}
    arguments = [name, str(tmp_path / "told"), str(tmp_path / "store")]
    seen: list[int] = []
    with running([sys.executable, str(script), *arguments], environment, log, cwd=tmp_path) as driver:

        def has_left(count: int) -> bool:
            assert driver.poll() is None, log.read_text()
            return chapters() >= count

        eventually(lambda: has_left(3), SOON_S)

        def follow() -> None:
            with Client(monitor_url) as there:
                for event in there.experiment(name).follow():
                    if isinstance(event, Reports):
                        seen.extend(report.sequence for report in event)

        following = threading.Thread(target=follow, daemon=True)
        following.start()
        eventually(lambda: has_left(6), SOON_S)
        driver.kill()
        driver.wait()
    before = chapters()

    options = mqtune.RunOptions(progress=False, journal_mb=JOURNAL_MB, timing=Timing(keep_lock_s=0.2))
    tuner = mqtune.Tuner.attach(name, backend=driver_url, run=options)
    results = tuner.run()

    [trial] = results.trials
    assert (trial.status, len(trial.attempts)) == (TrialStatus.COMPLETED, 1)
    assert [report.metrics["step"] for report in results.reports("0001")] == list(range(1, STEPS + 1))
    following.join(SOON_S)
    assert seen == list(range(1, STEPS + 1))
    assert chapters() > before
    # What comes over the budget while a trial is told to wait: one read of its pipe, and what that holds.
    assert max(sizes) < JOURNAL_MB * 10**6 + 3 * 2**20
    assert accounts.refused() == []
    for url in (accounts.make("worker"), accounts.make("operator"), monitor_url):
        # Who writes there could end drivers.
        assert not accounts.may(url, "HSET", ExperimentKeys(name).chapters, "trimmed", "9-0")
        accounts.refused()
    check_who_has_no_folder(accounts, tmp_path, monkeypatch, name, results)


def check_who_has_no_folder(
    accounts: Accounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, results: Results
) -> None:
    """Another machine reads all of it where it reaches the store, and may archive and delete it."""
    driver_url, monitor_url = accounts.make("driver"), accounts.make("monitor")
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "third-home"))
    found = json.loads(says("show", name, "--broker", monitor_url, "--json"))
    best = results.experiment.best
    assert best is not None
    assert found["best"]["value"] == best.best_value
    assert name in says("list", "--broker", monitor_url)
    # Nor the store.
    (tmp_path / "store").rename(tmp_path / "unmounted")
    refused = CliRunner().invoke(group, ["show", name, "--broker", monitor_url])
    assert isinstance(refused.exception, ChapterUnavailable)
    with Client(monitor_url) as there:
        state = there.experiment(name).state()
        assert state is not None
        assert state.outcome == "finished"
    (tmp_path / "unmounted").rename(tmp_path / "store")

    says("delete", name, "--broker", driver_url, "--archive")
    assert sum(1 for _ in Results.load(name).reports("0001")) == STEPS
    says("delete", name, "--yes")
    assert os.listdir(tmp_path / "store") == []
