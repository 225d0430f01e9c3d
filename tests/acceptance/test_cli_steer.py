"""Steering from the command line: with a driver, after its death, and on a machine that runs everything alone."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from waiting import eventually

import mqtune
from mqtune.cli import group
from mqtune.core.errors import MqtuneError
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId, TrialStatus
from mqtune.results.results import Results

Tune = Callable[..., mqtune.Tuner]


class Said(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: str) -> Said:
    done = CliRunner().invoke(group, arguments)
    if isinstance(done.exception, MqtuneError):
        return Said(1, done.stdout, str(done.exception))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Said(done.exit_code, done.stdout, done.stderr)


@contextlib.contextmanager
def driven(tuner: mqtune.Tuner, *, leave: bool = False) -> Iterator[None]:
    """Drive an experiment in a thread; afterwards its trials are stopped, or left as a driver leaves them that is told to go."""
    over = threading.Event()

    def drive() -> None:
        while not over.is_set() and not tuner.is_finished:
            tuner.step(0.1)

    # Its server, and its first trials, are there before anything is asked.
    eventually(lambda: tuner.step(0.1) or tuner.get_trials(), 60)
    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if not leave:
            # No other test has their slots otherwise.
            tuner.stop_all("the test is over")
            eventually(lambda: tuner.is_finished or tuner.step(0.1), 60)
        tuner.close()


def status(name: str, trial: str) -> TrialStatus | None:
    found = Results.load(name).experiment.trials
    return found[TrialId(trial)].status if trial in found else None


@pytest.fixture(autouse=True)
def _address(fleet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_BROKER", fleet)


def test_trials_are_steered_by_shortened_names_while_the_driver_lives(tune: Tune):
    space = {"x": mqtune.uniform(0, 1), "kind": mqtune.choice(["a", "b"])}
    points = mqtune.InitialPoints([{"x": 0.25, "kind": "a"}, {"x": 0.75, "kind": "b"}])
    with driven(tune("slow", space, name="steered-by-hand", max_trials=2, searcher=points)):
        eventually(lambda: Results.load("steered-by-hand").experiment.counts[TrialStatus.RUNNING] == 2, 60)

        paused = run("pause", "steered-by", "1", "--reason", "a look")
        eventually(lambda: status("steered-by-hand", "0001") is TrialStatus.PAUSED, 60)
        refused = run("save", "steered-by", "1", "2")
        resumed = run("resume", "steered-by", "all", "--json")
        stopped = run("stop", "steered-by", "--where", "x>0.6 and kind=b")
        nobody = run("stop", "steered-by", "--where", "x>0.9")
        # Its slot is free, and no other config may have it before the limit is raised.
        added = run("add", "steered-by", "--config", "x=0.5,kind=a", "--key", "mine", "--wait", "0")
        eventually(lambda: "mine" in Results.load("steered-by-hand").experiment.keys, 60)
        mine = Results.load("steered-by-hand").experiment.keys["mine"]
        again = run("add", "steered-by", "--config", "x=0.5,kind=a", "--key", "mine", "--json")
        limits = run("set", "steered-by", "max_trials=4", "max_concurrent=3")
        ended = run("end", "steered-by", "--now")
        eventually(lambda: all(each.status.is_terminal for each in Results.load("steered-by-hand")), 60)

    assert paused == (0, "trial 0001 is paused\n", "")
    assert refused.code == 1
    assert refused.out == "trial 0002 will save a checkpoint\n"
    assert "can't save trial 0001: " in refused.err
    answer = {"action": "resume", "trial": "0001", "done": True, "reason": "", "refused": False}
    assert [{**each, **answer} == each for each in json.loads(resumed.out)] == [True]
    assert limits == (0, "steered-by-hand has new limits: max_trials=4, max_concurrent=3\n", "")
    assert added.code in (0, 3)
    assert stopped == (0, "trial 0002 is stopped\n", "")
    assert nobody == (0, "", "steered-by-hand has no trial to stop\n")
    assert [(each["done"], each["trial"]) for each in json.loads(again.out)] == [(True, mine)]
    assert ended == (0, "steered-by-hand is ending\n", "")
    assert "can't pause trial 0002: it was already stopped early" in run("pause", "steered-by", "2").err
    assert run("end", "steered-by") == (1, "", "experiment 'steered-by-hand' has already finished")


def why(*arguments: str) -> tuple[str, str]:
    found = json.loads(run("why", *arguments, "--json").out)["reasons"][0]
    return found["cause"], found["text"]


def test_why_says_what_a_trial_waits_for_while_others_have_the_slots(tune: Tune):
    limited = ("limit", "2 trials are running; no other trial starts: its limit max_concurrent=2 is reached")
    # What the driver says of itself comes with its lock.
    often = mqtune.RunOptions(timing=Timing(keep_lock_s=0.2))
    with driven(tune("slow", name="asked", run=replace(often, max_concurrent=2), max_trials=4)):
        eventually(lambda: status("asked", "0002") is TrialStatus.RUNNING, 60)
        # What the driver says of itself is as old as its lock, and for a moment one of the trials may not run.
        eventually(lambda: why("asked") == limited, 60)
        with driven(tune("slow", name="other", run=often, max_trials=1)):
            eventually(lambda: status("other", "0001") is TrialStatus.QUEUED, 60)
            eventually(lambda: why("other", "1")[0] == "busy", 60)
            waits = why("other", "1")
            began = time.monotonic()
            full = run("add", "asked", "--config", "x=0.5", "--wait", "60")
            took_s = time.monotonic() - began
            run("pause", "asked", "1", "--reason", "lunch")
            eventually(lambda: status("asked", "0001") is TrialStatus.PAUSED, 60)
            paused = run("why", "asked", "1")
        stopped = why("other", "1")

    assert full.code == 3
    assert re.match(
        "asked: add is requested; it is queued and starts as soon as a slot is free: both matching slots", full.out
    )
    assert took_s < 30, "a slot is free when the other experiment ends"
    assert waits[1].startswith("trial 0001 has been waiting for ")
    assert "both matching slots are busy: asked 000" in waits[1]
    assert paused.out == "trial 0001 is paused by hand: lunch\n  → resume it: mqtune resume asked 0001\n"
    assert stopped == ("ended", "trial 0001 is EARLY_STOPPED by hand: the test is over")
    assert why("asked") == ("ended", "asked has ended: finished: the test is over")
