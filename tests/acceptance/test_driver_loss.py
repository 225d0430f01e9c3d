"""Drivers that die, are replaced, or never come back, over real workers: what runs is not disturbed, and somebody goes on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trainables_saving as saving
from click.testing import CliRunner
from faces import running
from pair import OPTIONS, Tune, counting, finished, tuners
from running import HERE, running_worker
from waiting import all_gone, eventually, family_of

import mqtune
from mqtune.cli import group
from mqtune.core.errors import ConfigurationError, CopyIncomplete, DriverFenced
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


def copied(results: Results) -> list[str]:
    """Return the ids of the entries in a driver's copy of the journal."""
    with contextlib.closing(JournalFile(results.folder / JOURNAL_FILE)) as copy:
        return [entry.id for entry in copy.read()]


def attach(broker: str, name: str, **given: Any) -> mqtune.Tuner:
    return mqtune.Tuner.attach(name, backend=broker, run=mqtune.RunOptions(progress=False), **given)


def running_trials(tuner: mqtune.Tuner, number: int = 2, reports: int = 3) -> list[mqtune.core.trial.Trial]:
    drive(tuner, lambda: sum(trial.attempt.reports >= reports for trial in tuner.get_trials()) == number)
    return tuner.running_trials


class Watcher:
    """Reads an experiment's journal, as somebody who neither drives it nor works for it."""

    def __init__(self, broker: str, name: str) -> None:
        self.client = connect(broker, role="test")
        self.journal = RedisJournal(self.client, name)

    def entries(self) -> list[Entry]:
        return self.journal.read("0-0", count=1_000_000)

    def events(self, kind: type) -> list[Any]:
        return [event for event in (decode_event(e.data) for e in self.entries()) if isinstance(event, kind)]


@pytest.fixture
def watch(workers: str) -> Iterator[Callable[[str], Watcher]]:
    watchers: list[Watcher] = []

    def build(name: str) -> Watcher:
        watchers.append(Watcher(workers, name))
        return watchers[-1]

    yield build
    for watcher in watchers:
        watcher.client.close()


def check_that_nothing_was_restarted(tuner: mqtune.Tuner) -> None:
    """Each trial had one attempt, and of its reports none is missing and none is there twice."""
    sequences: dict[str, list[int]] = {}
    for report in tuner.results().reports():
        sequences.setdefault(report.trial, []).append(report.sequence)
    for trial in tuner.get_trials():
        assert len(trial.attempts) == 1, trial
        assert sequences[trial.id] == list(range(1, len(sequences[trial.id]) + 1))


# Going on.


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


def test_a_driver_that_is_killed_is_replaced_at_once_and_no_running_trial_is_disturbed(
    workers: str, tmp_path: Path, watch: Callable[[str], Watcher], mqtune_home: Path
):
    name = f"killed-{os.getpid()}"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    log, watcher = tmp_path / "driver.log", watch(name)
    environment = {"MQTUNE_BROKER": workers}
    with running([sys.executable, str(script), name], environment, log, cwd=tmp_path) as driver:

        def two_run() -> bool:
            assert driver.poll() is None, log.read_text()
            return len(watcher.events(AttemptStarted)) == 2

        eventually(two_run, HEARD_S)
        size = len(watcher.entries())
        eventually(lambda: len(watcher.entries()) > size + 10, HEARD_S)
        driver.kill()
        driver.wait()
    size = len(watcher.entries())
    eventually(lambda: len(watcher.entries()) > size + 10, HEARD_S, "trials run on without a driver")

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
    assert [entry.id for entry in watcher.entries()] == copied(results)
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


# Two drivers.


@contextlib.contextmanager
def taken_over(workers: str, first: mqtune.Tuner) -> Iterator[mqtune.Tuner]:
    """A second tuner, which drives because the lock of the first has run out, as that of a driver that was frozen."""
    with contextlib.closing(connect(workers, role="test")) as client:
        client.hset(ExperimentKeys(first.name).meta, "driver_until", 1)
    with contextlib.closing(attach(workers, first.name)) as second:
        second.step(0)
        yield second


def test_a_driver_that_was_replaced_ends_with_an_error_and_disturbs_nothing(tune: Tune, workers: str):
    first = tune(saving.without, counting(), counting())
    running_trials(first)

    with taken_over(workers, first) as second:
        with pytest.raises(DriverFenced, match="another driver has taken over"):
            first.run()
        with pytest.raises(ConfigurationError, match="closed"):
            first.step()

        trials = second.get_trials()
        before = {trial.id: trial.reports for trial in trials}
        drive(second, lambda: all(trial.reports > before[trial.id] + 5 for trial in trials))
        assert [trial.attempt.end for trial in trials] == [None, None]
        second.stop_all()
        finished(second)
        check_that_nothing_was_restarted(second)
        with contextlib.closing(connect(workers, role="test")) as client:
            entries = RedisJournal(client, first.name).read("0-0", count=10**6)
        eventually(lambda: len(copied(second.results())) <= len(entries))
    assert Results.load(first.name).outcome == "finished", "as the second one says when it is closed"


# A disk that is full.


FULL = f"""
import logging, resource, sys
sys.path.insert(0, {str(HERE)!r})
import mqtune, trainables_saving
from mqtune.core.machine import mqtune_home

logging.basicConfig()
limit = int(sys.argv[2])
space = {{"lr": mqtune.uniform(1, 2), "steps": 400, "step_s": 0.0}}
tuner = mqtune.Tuner(
    trainables_saving.without, space, metric="loss", mode="min", resources=mqtune.Resources(cpus=5), name=sys.argv[1],
    max_trials=2, run=mqtune.RunOptions(progress=False),
)
copy = mqtune_home() / sys.argv[1] / "journal.msgpack"
while not (copy.exists() and copy.stat().st_size):
    tuner.step()
if limit:
    most = copy.stat().st_size + limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
while not tuner.is_finished:
    tuner.step()
print(len(list(tuner.results().reports())), "reports meanwhile")
results = tuner.run()
print(len(results), "trials")
print(len(list(results.reports())), "reports")
"""


def test_a_copy_that_can_not_be_written_ends_no_driver_and_is_completed_by_the_next_one(
    workers: str,
    tmp_path: Path,
    watch: Callable[[str], Watcher],
    mqtune_home: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    name, script = f"full-{os.getpid()}", tmp_path / "script.py"
    script.write_text(FULL)

    def run(limit: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(script), name, str(limit)],
            env={**os.environ, "MQTUNE_BROKER": workers},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    full = run(5_000)

    copy = mqtune_home / name / "journal.msgpack"
    assert full.stdout.splitlines() == ["800 reports meanwhile", "2 trials"]
    assert full.returncode == 1
    (line,) = [line for line in full.stderr.splitlines() if line.startswith("mqtune: ")]
    assert f"CopyIncomplete: {copy} lacks the end of experiment '{name}'" in line
    assert f"`mqtune drive {name}`" in line
    assert full.stderr.count(f"the local copy {copy} can't be written") == 1
    assert f"{copy} lacks the end of experiment '{name}'" in full.stderr

    # Whoever reads the folder is told, and reads Redis where that is known.
    with pytest.raises(CopyIncomplete, match=f"lacks the end of experiment '{name}'"):
        Results.load(name)
    verbs = {
        "show": ["show", name, "--all"],
        "export": ["export", name, "--rows", "reports", "--format", "jsonl"],
        "replay": ["replay", name],
    }
    for verb, arguments in verbs.items():
        done = CliRunner().invoke(group, arguments)
        assert isinstance(done.exception, CopyIncomplete), (verb, done.output)
    there = {verb: CliRunner().invoke(group, [*arguments, "--broker", workers]) for verb, arguments in verbs.items()}
    monkeypatch.setenv("MQTUNE_BROKER", workers)
    known = {verb: CliRunner().invoke(group, arguments) for verb, arguments in verbs.items()}
    for verb, done in known.items():
        assert (done.exit_code, done.stdout) == (0, there[verb].stdout), (verb, done.output)
    assert "800 reports" in known["show"].stdout
    assert len(known["export"].stdout.splitlines()) == 800

    freed = run(0)

    assert freed.returncode == 0, freed.stderr
    results = Results.load(name)
    assert (results.outcome, len(list(results.reports()))) == ("finished", 800)
    assert [entry.id for entry in watch(name).entries()] == copied(results)


# Nobody drives any more.


def lost(tuner: mqtune.Tuner) -> None:
    """Have the driver go without a word to its trials, as one that is killed does some seconds later."""
    tuner.close()


@pytest.mark.parametrize("trainable", [saving.Counts, saving.in_dicts])
def test_with_stop_what_runs_is_handed_back_with_its_state_and_goes_on_when_a_driver_comes(
    tune: Tune, workers: str, watch: Callable[[str], Watcher], trainable
):
    first = tune(
        trainable, counting(), counting(), failures=mqtune.Failures(on_driver_loss="stop", driver_loss_grace_s=GRACE_S)
    )
    running_trials(first)
    lost(first)
    watcher = watch(first.name)

    eventually(lambda: len(watcher.events(AttemptEnded)) == 2, HEARD_S)
    for ended in watcher.events(AttemptEnded):
        assert (ended.end, ended.error_type) == (AttemptEnd.HANDED_BACK, UNDRIVEN)
        assert ended.error == "nobody drives the experiment any more"
    if trainable is saving.Counts:
        assert len(watcher.events(CheckpointSaved)) == 2

    with contextlib.closing(attach(workers, first.name)) as second:
        drive(second, lambda: all(len(t.attempts) == 2 and t.attempt.reports >= 2 for t in second.get_trials()))
        for trial in second.get_trials():
            assert trial.failures == 0
            rows = [r for r in second.results().reports(trial.id) if "step" in r.metrics]
            steps = [report.metrics["step"] for report in rows]
            assert steps == list(range(1, len(steps) + 1))
        second.stop_all()
        finished(second)
