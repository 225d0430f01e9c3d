"""Redis is cut off, slow, frozen, full, killed, emptied or set back, under real workers and a real driver."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trainables
from faces import said
from faulty_proxy import FaultyProxy
from restartable import RestartableRedis
from running import QUICK, running_worker, tuner_on
from waiting import eventually

import mqtune
from mqtune.core.codec import encode_value
from mqtune.core.errors import JournalBlocked
from mqtune.core.events import VERSION
from mqtune.core.keys import ExperimentKeys
from mqtune.core.machine import mqtune_home
from mqtune.core.timing import Timing
from mqtune.core.trial import FORGOTTEN, TrialStatus
from mqtune.journal import JOURNAL_FILE
from mqtune.testing.backends.world import drive

#: How long anything here may take to come back, on a machine that runs other tests.
BACK_S = 45.0
#: A quick worker's, and a little: what a lease could not outlive if it were not spared.
LONGER_THAN_A_LEASE_S = 6.0
STEPS = 40

_names = itertools.count(1)


class Place:
    def __init__(self, folder: Path) -> None:
        self.log = folder / "worker.log"
        self.server = RestartableRedis(folder)
        self.to_worker = FaultyProxy(self.server.url)
        self.to_driver = FaultyProxy(self.server.url)
        self.lines = (self.to_worker, self.to_driver)

    def close(self) -> None:
        for line in self.lines:
            line.close()
        self.server.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("redis-faults")
    with contextlib.closing(Place(folder)) as place:
        options = ("--gpus", "0", "--slots", "2")
        with running_worker(place.to_worker.url, place.log, *options):
            yield place


@dataclass
class Run:
    """An experiment of trials that count, and what is done to Redis while they do."""

    place: Place
    trials: int = 3
    steps: int = STEPS
    timing: Timing = field(default_factory=Timing)
    name: str = field(default_factory=lambda: f"faults-{os.getpid()}-{next(_names)}")

    def tuner(self, **options: Any) -> mqtune.Tuner:
        space = {"steps": self.steps, "step_s": 0.02, "saves": False, "x": mqtune.uniform(0, 1)}
        given = {"name": self.name, "max_trials": self.trials, "run": mqtune.RunOptions(timing=self.timing), **options}
        return tuner_on(self.place.to_driver.url, trainables.counts, space, **given)

    @property
    def entries(self) -> int:
        return int(self.place.server.client.xlen(ExperimentKeys(self.name).journal))

    def run(self, fault: Callable[[], object], *, after: int = 20, **options: Any) -> mqtune.Results:
        """Run to the end, with something done to Redis when the journal has so many entries."""

        def do() -> None:
            eventually(lambda: self.entries >= after, BACK_S)
            fault()

        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(do)
            results = self.tuner(**options).run()
            done.result(BACK_S)
        return results

    def check(self, results: mqtune.Results, *, attempts: int | None = 1) -> None:
        """Each trial is complete, with every report once and in order; none has taken more attempts."""
        assert [trial.status for trial in results.trials] == [TrialStatus.COMPLETED] * self.trials
        for trial in results.trials:
            if attempts is not None:
                assert len(trial.attempts) == attempts
            seen: dict[int, list[int]] = {}
            for report in results.reports(trial.id):
                seen.setdefault(report.attempt, []).append(report.metrics["step"])
            for steps in seen.values():
                assert steps == list(range(steps[0], steps[0] + len(steps)))
            assert seen[trial.attempts[-1].number][-1] == self.steps


def cut(place: Place, wait: Callable[[float], object]) -> None:
    for _ in range(5):
        for line in place.lines:
            line.cut()
        wait(0.1)


def hold(place: Place, wait: Callable[[float], object]) -> None:
    for line in place.lines:
        line.hold()
    wait(1.5)
    for line in place.lines:
        line.release()


def delay(place: Place, wait: Callable[[float], object]) -> None:
    for line in place.lines:
        line.delay_s = 0.1
    wait(1.0)
    for line in place.lines:
        line.delay_s = 0.0


def pause(place: Place, wait: Callable[[float], object]) -> None:
    place.server.client.client_pause(1500, all=True)


def restart(place: Place, wait: Callable[[float], object]) -> None:
    place.server.kill()
    wait(0.5)
    place.server.start()


def refuse(place: Place, wait: Callable[[float], object]) -> None:
    """Have it take no writes, as with a full disk, until a worker says so."""
    place.server.client.config_set("min-replicas-to-write", 1)
    try:
        eventually(lambda: "Redis takes no writes, or is busy (NOREPLICAS" in place.log.read_text(), 20)
    finally:
        place.server.client.config_set("min-replicas-to-write", 0)


def test_trials_run_on_and_everything_arrives_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    faults = (cut, hold, delay, pause, restart, refuse)
    run, wait = Run(place, steps=len(faults) * STEPS), threading.Event().wait

    def strike() -> None:
        for fault in faults:
            fault(place, wait)
            wait(0.2)

    run.check(run.run(strike))
    assert "Redis is away" in caplog.text
    assert "Redis is back" in caplog.text


def test_on_a_full_redis_a_driver_lives_and_says_so_and_what_has_ended_or_is_ended_by_hand_makes_room(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MQTUNE_BROKER", place.server.url)
    old = [Run(place, trials=1, steps=3) for _ in range(2)]
    for each in old:
        each.check(each.tuner().run())
    run = Run(place, trials=50, steps=10_000, timing=Timing(keep_lock_s=0.3, lock_s=3.0))
    told: list[str] = []

    def fill_and_end() -> None:
        place.server.client.config_set("maxmemory", 1)
        eventually(lambda: "Redis is full" in caplog.text, BACK_S)
        # Longer than its lock, had it not been kept.
        threading.Event().wait(3.5)
        told.extend([said("why", run.name), said("why", run.name, "0001")])
        said("delete", old[0].name, "--yes")
        said("archive", old[1].name, "--yes")
        said("end", run.name, "--now")

    try:
        results = run.run(fill_and_end)
        steps = {trial.id: [each.metrics["step"] for each in results.reports(trial.id)] for trial in results.trials}
        said("delete", run.name, "--yes")
    finally:
        place.server.client.config_set("maxmemory", 0)

    for text in told:
        assert "Redis is full" in text
        assert "mqtune delete" in text
        assert "has no driver" not in text
    assert not [each for each in (*old, run) if place.server.client.zscore("mqtune:experiments", each.name)]
    assert {trial.status for trial in results.trials} == {TrialStatus.EARLY_STOPPED}
    ran = [trial for trial in results.trials if trial.attempts[-1].started_at]
    assert [len(trial.attempts) for trial in ran] == [1, 1]
    for trial in ran:
        assert re.search(r"its last (report was|\d+ reports were) dropped", trial.attempts[-1].error)
        assert steps[trial.id] == list(range(1, len(steps[trial.id]) + 1)) != []


def test_a_driver_whose_journal_somebody_has_blocked_ends_with_the_way_out_which_works(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQTUNE_BROKER", place.server.url)
    client, run = place.server.client, Run(place)
    journal = ExperimentKeys(run.name).journal
    last = 2**64 - 1
    of_a_later_version = encode_value([VERSION, "of a later version", {}])
    # The worker is that of other tests, too.
    logged = len(place.log.read_text())

    def block() -> None:
        client.xadd(journal, {"e": of_a_later_version}, id=f"{last}-{last}")

    with pytest.raises(JournalBlocked, match=rf"{run.name}.*XDEL.*mqtune archive {run.name}"):
        run.run(block)
    with pytest.raises(JournalBlocked):
        run.tuner().run()
    eventually(lambda: "ends without an end in the journal: " in place.log.read_text()[logged:], BACK_S)
    assert "Traceback" not in place.log.read_text()[logged:]
    listed = [line for line in said("list").splitlines() if line.startswith(run.name)]
    assert ["can't be read" in line for line in listed] == [True]

    client.xdel(journal, f"{last}-{last}")
    (mqtune_home() / run.name / JOURNAL_FILE).unlink()
    said("archive", run.name, "--yes")
    results = run.tuner().run()

    run.check(results, attempts=None)
    assert int(client.xrevrange(journal, count=1)[0][0].partition(b"-")[0]) < last


def test_a_freeze_that_outlasts_leases_costs_no_attempt_and_stops_no_worker_from_taking_trials(
    place: Place, tmp_path: Path
) -> None:
    # As much shorter as the worker's leases: its driver, too, leaves workers time to renew them.
    run, tags = Run(place, steps=120, timing=Timing(stall_s=2.0)), "quick"
    options = ("--gpus", "0", "--slots", "2", "--tags", tags)

    def freeze() -> None:
        place.server.freeze()
        threading.Event().wait(LONGER_THAN_A_LEASE_S)
        place.server.thaw()

    with running_worker(place.to_worker.url, tmp_path / "worker.log", *options, name=tags, program=QUICK):
        run.check(run.run(freeze, resources=mqtune.Resources(tags=[tags])))


def forgotten(results: mqtune.Results) -> list[str]:
    return [trial.id for trial in results.trials if any(a.error_type == FORGOTTEN for a in trial.attempts)]


@pytest.mark.parametrize("gone", ["all", "the beginning of its journal"])
def test_a_script_that_is_run_again_finds_its_experiment_although_redis_was_emptied_or_lost_its_journals_beginning(
    place: Place, caplog: pytest.LogCaptureFixture, gone: str
) -> None:
    run = Run(place, trials=3)
    with contextlib.closing(run.tuner()) as first:
        drive(first, lambda: sum(trial.reports > 5 for trial in first.get_trials()) == 2)
        seen = {trial.id: trial.reports for trial in first.get_trials() if trial.attempts}
    if gone == "all":
        place.server.lose_data()
    else:
        place.server.client.xtrim(ExperimentKeys(run.name).journal, maxlen=1, approximate=False)

    results = run.tuner().run()

    assert "came back without" in caplog.text
    run.check(results, attempts=None)
    if gone == "all":
        assert sorted(forgotten(results))[:2] == ["0001", "0002"]
    assert all(len(list(results.reports(id_))) > before for id_, before in seen.items())
