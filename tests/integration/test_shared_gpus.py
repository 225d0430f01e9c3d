"""Trials of two experiments share a GPU of a real worker by the memory that they ask for."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from altered_worker import altered_worker, let_go, tuner_of
from click.testing import CliRunner
from waiting import eventually

import mqtune
from mqtune.backends import EmbeddedServer
from mqtune.cli import group
from mqtune.core.trial import AttemptEnd, Trial, TrialStatus
from mqtune.journal import Fleet, connect

GB = 10**9
#: How long what another process does may take on a busy machine.
SOON_S = 60.0
#: Answers as the driver would, with what a file says that each process has.
DRIVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, list):
        said = {{"used": dict.fromkeys(asked, 0), "unknown": {{}}}}
    elif "use" in asked:
        said = {{"use": {{each: [50, 9_000_000_000, 300.0] for each in asked["use"]}}}}
    else:
        said = {{"processes": {{each: json.load(open({file!r})) for each in asked["processes"]}}}}
    print(json.dumps(said), flush=True)
"""
#: A worker that asks it, ten times a second.
ALTERATION = """
import functools
from mqtune.worker import devices, runtime
timing = Timing(round_s=0.1)
runtime.GpuProbe = functools.partial(devices.GpuProbe, [{python!r}, {driver!r}])
"""
OPTIONS = ("--gpus", "0,", "--gpu-memory", "10", "--pack-gpus", "4", "--cpus", "4")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with EmbeddedServer.start(tmp_path / "server") as server:
        yield server.url


@pytest.fixture
def alteration(tmp_path: Path) -> str:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER.format(file=str(tmp_path / "processes.json")))
    taken(tmp_path)
    return ALTERATION.format(python=sys.executable, driver=str(driver))


def taken(folder: Path, **gb: float) -> None:
    """Have the driver say how much memory the processes of trials have, by their numbers."""
    pids = {(folder / f"process-{name.removeprefix('n')}").read_text(): size * GB for name, size in gb.items()}
    (folder / "processes.new").write_text(json.dumps(pids))
    (folder / "processes.new").replace(folder / "processes.json")


def gb(size: float) -> mqtune.Resources:
    return mqtune.Resources(gpu_memory_gb=size)


def by_number(config: dict[str, int]) -> mqtune.Resources:
    """Ask for 4 GB, as trial 2 does, or 5."""
    return gb(4 + config["number"] % 2)


def runs(tuner: mqtune.Tuner, trial: Trial) -> None:
    eventually(lambda: tuner.step(0.05) or trial.attempt.reports, SOON_S, f"trial {trial.id} runs")


def ended(tuner: mqtune.Tuner, trial: Trial) -> AttemptEnd | None:
    # Once all have ended it takes no step any more.
    eventually(lambda: trial.attempt.end or tuner.step(0.05), SOON_S, f"trial {trial.id} has ended")
    return trial.attempt.end


def test_trials_of_two_experiments_begin_as_memory_allows_also_when_one_is_killed_and_why_says_what_one_waits_for(
    broker: str, tmp_path: Path, alteration: str
) -> None:
    with (
        altered_worker(broker, tmp_path, alteration, *OPTIONS),
        tuner_of(broker, "large", gb(6)) as large,
        tuner_of(broker, "small", by_number) as small,
        tuner_of(broker, "late", gb(6)) as late,
        contextlib.closing(connect(broker)) as client,
    ):
        (info,) = Fleet(client, patience_s=5).workers()
        assert (info.slots, info.gpus, info.gpu_memory_gb, info.gpu_names) == (4, 0, 10, ["0"])
        assert (large.slots, small.slots) == (1, 2)
        first, second = large.add({"number": 1}), small.add({"number": 2})
        runs(large, first)
        runs(small, second)
        third = late.add({"number": 3})

        def why() -> str:
            late.step(0.05)
            return CliRunner().invoke(group, ["why", "late", str(third.id), "--broker", broker]).stdout

        none = f"{info.name} has it, and no GPU has 6 GB for it now: they have none free: "
        eventually(lambda: none in why(), SOON_S)
        # Whichever began first.
        assert re.search("large 0001 for .*small 0001 for |small 0001 for .*large 0001 for ", why())
        let_go(tmp_path, 2)
        assert ended(small, second) is AttemptEnd.COMPLETED
        eventually(lambda: "they have no more than 4 GB free: large 0001 for " in why(), SOON_S)
        assert third.status is TrialStatus.STAGED
        shown = CliRunner().invoke(group, ["fleet", "--broker", broker]).stdout
        assert "1 worker · 1 of 4 slots busy · 1 GPU\n" in shown
        assert "0 (4 GB free)" in shown
        os.kill(int((tmp_path / "process-1").read_text()), signal.SIGKILL)
        assert ended(large, first) is AttemptEnd.FAILED
        runs(late, third)
        assert third.attempt.devices == ("0",)
        let_go(tmp_path, 3)
        assert ended(late, third) is AttemptEnd.COMPLETED


def test_an_attempt_that_waits_for_memory_goes_to_a_worker_that_has_it(
    broker: str, tmp_path: Path, alteration: str
) -> None:
    with altered_worker(broker, tmp_path, alteration, *OPTIONS), tuner_of(broker, "mine", gb(6)) as mine:
        first = mine.add({"number": 1})
        runs(mine, first)
        second = mine.add({"number": 2})
        eventually(lambda: mine.step(0.05) or "mine/0002/1" in (tmp_path / "worker.log").read_text(), SOON_S)

        with altered_worker(broker, tmp_path, alteration, *OPTIONS, name="other"):
            runs(mine, second)

            assert (first.attempt.worker.split("@")[0], second.attempt.worker.split("@")[0]) == ("altered", "other")
            let_go(tmp_path, 1, 2)
            assert (ended(mine, first), ended(mine, second)) == (AttemptEnd.COMPLETED, AttemptEnd.COMPLETED)
    assert [len(trial.attempts) for trial in (first, second)] == [1, 1], "it was never lost"


@pytest.mark.parametrize("strict", [(), ("--strict-gpu-memory",)])
def test_a_trial_that_takes_more_than_it_asked_for_is_named_and_where_that_is_strict_it_alone_fails(
    broker: str, tmp_path: Path, alteration: str, strict: tuple[str, ...]
) -> None:
    log = tmp_path / "worker.log"
    with altered_worker(broker, tmp_path, alteration, *OPTIONS, *strict), tuner_of(broker, "mine", gb(4)) as mine:
        greedy, modest = mine.add({"number": 1}), mine.add({"number": 2})
        runs(mine, greedy)
        runs(mine, modest)

        taken(tmp_path, n1=5, n2=3)

        told = "experiment mine, trial 0001 attempt 1: the trial took 5.0 GB of its GPU's memory, and it had asked for 4.0 GB"
        eventually(lambda: mine.step(0.05) or told in log.read_text(), SOON_S)
        if strict:
            assert ended(mine, greedy) is AttemptEnd.FAILED
            assert (greedy.attempt.error_type, "had asked for 4.0 GB" in greedy.attempt.error) == (
                "GpuMemoryExceeded",
                True,
            )
        let_go(tmp_path, 1, 2)
        assert (ended(mine, greedy), ended(mine, modest)) == (
            AttemptEnd.FAILED if strict else AttemptEnd.COMPLETED,
            AttemptEnd.COMPLETED,
        )

    assert log.read_text().count(told) == 1
    assert (modest.attempt.usage["gpu_memory_bytes_peak"], greedy.attempt.usage["gpu_memory_bytes_asked"]) == (
        3 * GB,
        4 * GB,
    )
    shown = CliRunner().invoke(group, ["show", "mine", "1"]).stdout
    assert "attempt 1 has taken 5.0 GB of its GPU's memory, and had asked for 4.0 GB" in shown
