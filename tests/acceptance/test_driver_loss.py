"""Drivers that die, are replaced, or never come back, over real workers: what runs is not disturbed, and somebody goes on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trainables_saving as saving
from faces import running
from pair import OPTIONS, Tune, counting, finished, tuners
from running import HERE, running_worker
from waiting import all_gone, eventually, family_of

import mqtune
from mqtune.core.errors import ConfigurationError, DriverFenced
from mqtune.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, decode_event
from mqtune.core.keys import ExperimentKeys
from mqtune.core.trial import UNDRIVEN, AttemptEnd, TrialStatus
from mqtune.journal import JOURNAL_FILE, Entry, JournalFile, RedisJournal, connect
from mqtune.results.results import Results
from mqtune.testing.backends.world import drive

#: The longest that what a worker hears with its heartbeat takes, on a machine that runs other tests.
HEARD_S = 30.0
#: Nobody drives for longer than that; not so short that a driver under load is taken for lost.
GRACE_S = 1.0


@pytest.fixture(scope="module")
def workers(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The broker, with one worker of two slots that no other test's trials fit."""
    options = [*OPTIONS[:-4], "--slots", "2", "--cpus", "10"]
    with running_worker(broker, tmp_path_factory.mktemp("loss") / "worker.log", *options, name="loss"):
        yield broker


@pytest.fixture
def tune(workers: str, tmp_path: Path) -> Iterator[Tune]:
    with tuners(workers, tmp_path / "store") as build:
        yield build


def attach(broker: str, name: str) -> mqtune.Tuner:
    return mqtune.Tuner.attach(name, backend=broker, run=mqtune.RunOptions(progress=False))


def running_trials(tuner: mqtune.Tuner) -> None:
    drive(tuner, lambda: sum(trial.attempt.reports >= 3 for trial in tuner.get_trials()) == 2)


def entries(broker: str, name: str) -> list[Entry]:
    """What stands in an experiment's journal."""
    with contextlib.closing(connect(broker, role="test")) as client:
        return RedisJournal(client, name).read("0-0", count=1_000_000)


def events(broker: str, name: str, kind: type) -> list[Any]:
    return [event for event in (decode_event(entry.data) for entry in entries(broker, name)) if isinstance(event, kind)]


SCRIPT = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import mqtune, trainables_saving

space = {{"lr": mqtune.uniform(1, 2), "steps": 120, "step_s": 0.02}}
mqtune.Tuner(
    trainables_saving.without, space, metric="loss", mode="min", resources=mqtune.Resources(cpus=5), name=sys.argv[1],
    max_trials=4, scheduler=mqtune.ASHA(90, grace_period=30, reduction_factor=2), seed=3,
    run=mqtune.RunOptions(progress=False),
).run()
print("done")
"""


def test_a_driver_that_is_killed_is_replaced_at_once_and_no_running_trial_is_disturbed(workers: str, tmp_path: Path):
    name = f"killed-{os.getpid()}"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    log = tmp_path / "driver.log"
    environment = {"MQTUNE_BROKER": workers}
    with running([sys.executable, str(script), name], environment, log, cwd=tmp_path) as driver:

        def two_run() -> bool:
            assert driver.poll() is None, log.read_text()
            return len(events(workers, name, AttemptStarted)) == 2

        eventually(two_run, HEARD_S)
        size = len(entries(workers, name))
        eventually(lambda: len(entries(workers, name)) > size + 10, HEARD_S)
        driver.kill()
        driver.wait()
    size = len(entries(workers, name))
    eventually(lambda: len(entries(workers, name)) > size + 10, HEARD_S, "trials run on without a driver")

    def drive_it() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mqtune", "drive", name]
        return subprocess.run(
            command, env={**os.environ, **environment}, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    done = drive_it()

    assert done.returncode == 0, done.stderr
    results = Results.load(name)
    assert results.outcome == "finished"
    assert len(results) == 4
    assert {trial.status for trial in results} <= {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}
    assert {len(trial.attempts) for trial in results} == {1}
    for trial in results:
        sequences = [report.sequence for report in results.reports(trial.id)]
        assert sequences == list(range(1, len(sequences) + 1))
    with contextlib.closing(JournalFile(results.folder / JOURNAL_FILE)) as copy:
        assert [entry.id for entry in copy.read()] == [entry.id for entry in entries(workers, name)]
    assert f"{name} · finished" in done.stdout
    again = drive_it()
    assert again.returncode == 0, again.stderr
    assert f"experiment {name} is finished" in again.stdout


def test_a_local_experiment_whose_driver_was_killed_is_resumed_from_its_folder(tmp_path: Path, mqtune_home: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import time, mqtune\n"
        "def train(config):\n"
        "    for step in range(30):\n"
        "        time.sleep(0.02)\n"
        "        mqtune.report({'loss': config['x'] / (step + 1)})\n"
        "if __name__ == '__main__':\n"
        "    mqtune.Tuner(train, {'x': mqtune.uniform(0, 1)}, metric='loss', mode='min', name='alone', max_trials=4,\n"
        "                 backend=mqtune.Local(slots=2), run=mqtune.RunOptions(progress=False)).run()\n"
    )
    log, copy = tmp_path / "driver.log", mqtune_home / "alone" / "journal.msgpack"
    environment = {key: value for key, value in os.environ.items() if key != "MQTUNE_BROKER"}
    with running([sys.executable, str(script)], {}, log, cwd=tmp_path) as driver:

        def under_way() -> bool:
            assert driver.poll() is None, log.read_text()
            return copy.exists() and copy.stat().st_size > 4_000

        eventually(under_way, HEARD_S)
        family = family_of(driver.pid)
        driver.kill()
        driver.wait()
        eventually(lambda: all_gone(family), HEARD_S, "a driver that was killed left a process")
    script.unlink()
    (tmp_path / "script.py").write_text(
        "import mqtune\ndef train(config):\n    mqtune.report({'loss': 0.5})\n    raise SystemExit(0)\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "mqtune", "drive", "alone"],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert "alone · finished" in done.stdout
    trials = list(Results.load("alone"))
    assert [trial.status for trial in trials] == [TrialStatus.COMPLETED] * 4
    ends = [attempt.error_type for trial in trials for attempt in trial.attempts[:-1]]
    assert set(ends) == {UNDRIVEN}, "what a killed driver costs is nobody's fault"


def test_a_driver_that_was_replaced_ends_with_an_error_and_disturbs_nothing(tune: Tune, workers: str):
    first = tune(saving.without, counting(), counting())
    running_trials(first)
    # As if it had been frozen for longer than its lock.
    with contextlib.closing(connect(workers, role="test")) as client:
        client.hset(ExperimentKeys(first.name).meta, "driver_until", 1)

    with contextlib.closing(attach(workers, first.name)) as second:
        second.step(0)
        with pytest.raises(DriverFenced, match="another driver has taken over"):
            first.run()
        with pytest.raises(ConfigurationError, match="closed"):
            first.step()
        trials = second.get_trials()
        before = {trial.id: trial.reports for trial in trials}
        drive(second, lambda: all(trial.reports > before[trial.id] + 5 for trial in trials))
        second.stop_all()
        finished(second)
        for trial in trials:
            assert len(trial.attempts) == 1
            sequences = [report.sequence for report in second.results().reports(trial.id)]
            assert sequences == list(range(1, len(sequences) + 1))
    assert Results.load(first.name).outcome == "finished", "as the second one says when it is closed"


def test_with_stop_what_runs_is_handed_back_with_its_state_and_goes_on_when_a_driver_comes(tune: Tune, workers: str):
    failures = mqtune.Failures(on_driver_loss="stop", driver_loss_grace_s=GRACE_S)
    first = tune(saving.Counts, counting(), counting(), failures=failures)
    running_trials(first)
    # It goes without a word to its trials, as one that is killed does some seconds later.
    first.close()

    eventually(lambda: len(events(workers, first.name, AttemptEnded)) == 2, HEARD_S)
    for ended in events(workers, first.name, AttemptEnded):
        assert (ended.end, ended.error_type) == (AttemptEnd.HANDED_BACK, UNDRIVEN)
        assert ended.error == "nobody drives the experiment any more"
    assert len(events(workers, first.name, CheckpointSaved)) == 2

    with contextlib.closing(attach(workers, first.name)) as second:
        drive(second, lambda: all(len(t.attempts) == 2 and t.attempt.reports >= 2 for t in second.get_trials()))
        for trial in second.get_trials():
            assert trial.failures == 0
            steps = [r.metrics["step"] for r in second.results().reports(trial.id) if "step" in r.metrics]
            assert steps == list(range(1, len(steps) + 1))
        second.stop_all()
        finished(second)
