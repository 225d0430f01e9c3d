"""Steering from the command line: with a driver, after its death, and on a machine that runs everything alone."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import trainables
from click.testing import CliRunner
from waiting import eventually

import mqtune
from mqtune.cli import COMMANDS, group
from mqtune.core.errors import MqtuneError
from mqtune.core.trial import TrialId, TrialStatus
from mqtune.results.results import Results

Tune = Callable[..., mqtune.Tuner]


class Said(NamedTuple):
    """What a command printed, and how it ended."""

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
    points = mqtune.PointsFirst([{"x": 0.25, "kind": "a"}, {"x": 0.75, "kind": "b"}])
    with driven(tune("slow", space, name="steered-by-hand", max_trials=2, searcher=points)):
        eventually(lambda: Results.load("steered-by-hand").experiment.counts[TrialStatus.RUNNING] == 2, 60)

        paused = run("pause", "steered-by", "1", "--reason", "a look")
        refused = run("save", "steered-by", "1", "2")
        eventually(lambda: status("steered-by-hand", "0001") is TrialStatus.PAUSED, 60)
        resumed = run("resume", "steered-by", "--all", "--json")
        stopped = run("stop", "steered-by", "--where", "x>0.6 and kind=b")
        nobody = run("stop", "steered-by", "--where", "x>0.9")
        # Its slot is free, and no other config may have it before the limit is raised.
        added = run("add", "steered-by", "--config", "x=0.5,kind=a", "--key", "mine", "--timeout", "0")
        eventually(lambda: "mine" in Results.load("steered-by-hand").experiment.keys, 60)
        mine = Results.load("steered-by-hand").experiment.keys["mine"]
        again = run("add", "steered-by", "--config", "x=0.5,kind=a", "--key", "mine", "--json")
        limits = run("set", "steered-by", "max_trials=4", "max_concurrent=3")
        ended = run("end", "steered-by", "--now")
        eventually(lambda: all(each.status.is_terminal for each in Results.load("steered-by-hand")), 60)

    assert paused == (0, "trial 0001 is paused\n", "")
    assert refused.code == 1
    assert refused.out == "trial 0002 is to save a checkpoint\n"
    assert "trial 0001: save is refused: " in refused.err
    answer = {"action": "resume", "trial": "0001", "done": True, "reason": "", "refused": False}
    assert [{**each, **answer} == each for each in json.loads(resumed.out)] == [True]
    assert limits == (0, "steered-by-hand has these limits now\n", "")
    assert added.code in (0, 3)
    assert stopped == (0, "trial 0002 is stopped\n", "")
    assert nobody == (0, "", "no trial of steered-by-hand to stop\n")
    assert [(each["done"], each["trial"]) for each in json.loads(again.out)] == [(True, mine)]
    assert ended == (0, "steered-by-hand ends\n", "")
    assert "it is EARLY_STOPPED already" in run("pause", "steered-by", "2").err
    assert run("end", "steered-by") == (1, "", "experiment 'steered-by-hand' has finished already")


def test_what_is_asked_of_a_dead_driver_the_next_one_does(tune: Tune):
    with driven(tune("slow", name="left-alone", max_trials=2), leave=True):
        eventually(lambda: len(Results.load("left-alone")) == 2, 60)

    assert run("resume", "left-alone", "1", "--max-trials", "3").code == 2
    for verb in ("stop", "abandon"):
        trial = {"stop": "1", "abandon": "0002"}[verb]
        said = run(verb, "left-alone", trial)
        assert said.code == 3
        assert said.out == (
            f"trial {trial.zfill(4)}: {verb} is requested: nobody drives experiment 'left-alone'; the next driver will carry "
            "the request out\n"
        )
        assert "mqtune resume left-alone" in said.err
    tune("slow", name="left-alone", max_trials=2).run()

    assert status("left-alone", "0001") is TrialStatus.EARLY_STOPPED
    assert status("left-alone", "0002") is TrialStatus.ABANDONED


def test_an_experiment_with_a_server_of_its_own_is_steered_with_its_driver_and_without():
    def tuner() -> mqtune.Tuner:
        space = {"x": mqtune.uniform(0, 1)}
        return mqtune.Tuner(
            trainables.slow, space, metric="loss", mode="min", name="at-home", max_trials=1,
            backend=mqtune.Local(slots=1), run=mqtune.Run(progress=False),
        )  # fmt: skip

    with driven(tuner(), leave=True):
        eventually(lambda: status("at-home", "0001") is TrialStatus.RUNNING, 60)
        assert run("set", "at-home", "max_trials=2").code == 0

    assert run("end", "at-home", "--now").code == 3
    with contextlib.closing(tuner()) as again:
        again.run()
    assert all(each.status.is_terminal for each in Results.load("at-home"))


def test_a_name_that_may_be_several_is_answered_with_them(tune: Tune):
    for name in ("pair-one", "pair-two"):
        tune("steady", name=name, max_trials=1).run()

    for verb in ("show", "stop"):
        said = run(verb, "pair", "1")
        assert said.code == 1
        assert "experiment 'pair' may be any of 'pair-two', 'pair-one'; give more of the name" in said.err
    assert "best loss=" in run("show", "pair-o").out
    assert json.loads(run("show", "pair-o", "best", "--json").out)["status"] == "completed"


@pytest.mark.parametrize(
    ("address", "reason"),
    [("redis://127.0.0.1:1", "no Redis answers at redis://127.0.0.1:1"), ("", "give its broker: --broker URL")],
)
def test_without_its_server_a_request_says_what_is_missing(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, address: str, reason: str
):
    tune("steady", name="out-of-reach", max_trials=1).run()
    monkeypatch.setenv("MQTUNE_BROKER", address)

    said = run("stop", "out-of-reach", "1")

    assert said.code == 1
    assert reason in said.err


def test_a_wrong_password_is_said_and_not_shown(monkeypatch: pytest.MonkeyPatch, fleet: str):
    begin, _, place = fleet.rpartition("@")
    monkeypatch.setenv("MQTUNE_BROKER", f"{begin}x@{place}")

    said = run("stop", "anything", "1")

    assert said.code == 1
    assert "refuses the login" in said.err
    assert begin.rpartition(":")[2] not in said.err


def test_the_shell_completes_experiments_and_trials(tune: Tune, monkeypatch: pytest.MonkeyPatch):
    tune("steady", name="completed-by-tab", max_trials=2).run()

    def completed(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(("mqtune", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        shown = CliRunner().invoke(group, [], prog_name="mqtune", env={"_MQTUNE_COMPLETE": "bash_complete"})
        return [line.partition(",")[2] for line in shown.output.splitlines()]

    assert "completed-by-tab" in completed("stop", "compl")
    assert completed("show", "completed-by-tab", "00") == ["0001", "0002"]
    assert set(COMMANDS) >= set(completed("re")) == {"restart", "resume"}


def test_the_fleet_is_shown_with_what_runs_where(tune: Tune, fleet: str):
    with driven(tune("slow", name="seen-from-above", max_trials=2)):
        eventually(lambda: Results.load("seen-from-above").experiment.counts[TrialStatus.RUNNING] == 2, 60)
        eventually(lambda: json.loads(run("workers", "--json").out)[0]["busy"] == 2, 60)
        workers, queues, top = (run(verb).out for verb in ("workers", "queues", "top"))
        runs = json.loads(run("top", "--json").out)
        queue = json.loads(run("queues", "--json").out)
        assert run("end", "seen-from-above", "--now").code == 0
        eventually(lambda: all(each.status.is_terminal for each in Results.load("seen-from-above")), 60)

    worker = runs[0]["worker"]
    assert [row.split()[:3] for row in workers.splitlines()[1:]] == [[worker, "2", "2"]]
    assert top.startswith("1 worker · 2 of 2 slots busy\n")
    assert {(each["experiment"], each["trial"]) for each in runs} == {
        ("seen-from-above", id_) for id_ in ("0001", "0002")
    }
    assert [(each["workers"], each["slots"], each["waiting"]) for each in queue] == [(1, 2, 0)]
    assert queue[0]["queue"] in queues


def test_an_experiment_is_watched_over_the_broker_until_it_ends(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, fleet: str
):
    tuner = tune("steady", name="watched", max_trials=3)
    eventually(lambda: tuner.step(0.1) or tuner.get_trials(), 60)
    thread = threading.Thread(target=tuner.run)
    thread.start()

    watched = run("watch", "watched", "--broker", fleet, "--json")
    thread.join()
    tuner.close()

    last = {each["trial"]: each["status"] for each in map(json.loads, watched.out.splitlines())}
    assert last == dict.fromkeys(("0001", "0002", "0003"), "completed")
    assert "3 completed" in run("watch", "watched").out
