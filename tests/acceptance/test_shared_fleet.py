"""Several experiments on one fleet: the slots of each, and the reason why it has no more."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator

import pytest
import trainables
import trainables_saving as saving
from click.testing import CliRunner
from fleets import worker
from running import running_worker
from waiting import eventually

import mqtune
from mqtune.cli import group
from mqtune.core.errors import ConfigurationError
from mqtune.core.keys import DEMANDS, SHARES
from mqtune.core.resources import queue_name
from mqtune.core.timing import Timing
from mqtune.core.trial import AttemptEnd, Intent, TrialStatus
from mqtune.journal import Fleet, connect, script_in
from mqtune.services.shares.demands import Demands
from mqtune.services.shares.divider import Demand

#: A shape that no other test's worker has.
SLOT = mqtune.Resources(cpus=9)
#: So many that no trial ends before the others have come, however busy the machine is.
STEPS = 140
OPTIONS = ("--gpus", "0", "--slots", "4", "--cpus", "36")
#: Slots are given back soon, and are still taken when a command that comes behind a driver's step looks at them.
TRIAL_S = 0.5

Tune = Callable[..., mqtune.Tuner]
Make = Callable[..., mqtune.Tuner]


@pytest.fixture(scope="module")
def four_slots(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with running_worker(broker, tmp_path_factory.mktemp("shared") / "worker.log", *OPTIONS, name="shared"):
        yield


@pytest.fixture
def make(four_slots: None, broker: str, tune: Tune) -> Iterator[Make]:
    """Build a tuner with endless short trials. Demands of drivers of earlier tests are forgotten."""
    with contextlib.closing(connect(broker)) as client:
        client.delete(DEMANDS)
    with contextlib.ExitStack() as stack:

        def build(**settings: object) -> mqtune.Tuner:
            tuner = tune(
                "as_long_as_it_says",
                {"seconds": TRIAL_S},
                max_trials=9999,
                resources=SLOT,
                run=mqtune.RunOptions(**settings),
            )
            stack.callback(end, tuner)
            return tuner

        yield build


def end(tuner: mqtune.Tuner) -> None:
    # A test may have closed it.
    with contextlib.suppress(ConfigurationError):
        tuner.stop_all("the test is over")
        eventually(lambda: tuner.step(0.1) or tuner.is_finished, 30)
    tuner.close()


def why(tuner: mqtune.Tuner) -> list[str]:
    [found] = json.loads(CliRunner().invoke(group, ["why", tuner.name, "--json"]).stdout)["reasons"]
    return [found["cause"], found["text"], found["way_out"]]


def without_slot() -> list[str]:
    """Return the experiments that ``mqtune fleet`` lists as experiments without a slot."""
    _, _, rows = CliRunner().invoke(group, ["fleet"]).stdout.partition("no slot for")
    return [line.split()[0] for line in rows.splitlines()[1:]]


def running(*tuners: mqtune.Tuner) -> list[int]:
    for tuner in tuners:
        tuner.step(0.05)
    return [sum(trial.attempt.end is None for trial in tuner.get_trials()) for tuner in tuners]


def test_slots_are_shared_by_weight_then_by_priority_and_given_back(
    make: Make, fleet: str, monkeypatch: pytest.MonkeyPatch
):
    timing = Timing(keep_lock_s=0.5)
    monkeypatch.setenv("MQTUNE_BROKER", fleet)
    first = make(share=3.0, timing=timing)
    eventually(lambda: running(first)[0] > 4, 60)

    second = make(timing=timing)
    eventually(lambda: running(first, second) == [3, 1], 60)
    said = "its share is used up: 1 of 4 slots, as 1 other experiment wants slots too"
    eventually(lambda: running(second) and second.debug_string().endswith(said))

    with mqtune.Client(fleet) as client:
        client.experiment(second.name).set(priority="high", wait_s=0)
    eventually(lambda: running(first, second) == [0, 4], 60)
    said = "its share is used up: 0 of 4 slots, as 1 other experiment wants slots too, 1 of higher priority"
    eventually(lambda: running(first, second) and why(first)[:2] == ["share", f"nothing is running: {said}"], 60)
    eventually(lambda: running(first, second) and why(first)[2].endswith(f"mqtune set {first.name} priority=high"), 60)
    eventually(lambda: running(first, second) and without_slot() == [first.name], 60)

    # The driver of the second says nothing any more: its attempts end, and its share is given to the first.
    eventually(lambda: running(first)[0] > 4, 60)


def test_trials_are_paused_for_others_and_go_on_later_without_losing_a_report(
    make: Make, fleet: str, tune: Tune, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trainables, "in_dicts", saving.in_dicts, raising=False)
    config = {"lr": mqtune.uniform(1, 2), "steps": STEPS, "step_s": 0.05}
    patient = mqtune.RunOptions(preemptible=True, timing=Timing(share_grace_s=0.5))
    low = tune("in_dicts", config, max_trials=4, resources=SLOT, run=patient)
    eventually(lambda: low.step(0.05) or sum(bool(trial.checkpoint) for trial in low.get_trials()) == 4, 60)

    high = make(priority="high")
    eventually(lambda: running(low, high) == [0, 4], 60)
    paused = [trial.reports for trial in low.get_trials()]
    end(high)
    eventually(lambda: low.step(0.05) or low.is_finished, 60)

    trials = low.get_trials()
    low.close()
    assert all(0 < reports < STEPS for reports in paused)
    for trial in trials:
        assert trial.status is TrialStatus.COMPLETED
        # It continued where it had been paused.
        assert trial.last_metrics["step"] == STEPS
        assert trial.last_metrics["loss"] == pytest.approx(-STEPS * trial.config["lr"])
        assert len(trial.attempts) == 2
        assert (trial.attempts[0].intent, trial.attempts[0].end) == (Intent.GIVE_WAY, AttemptEnd.HANDED_BACK)
        assert trial.attempts[1].checkpoint
    assert {trial.reports for trial in trials} <= {STEPS, STEPS + 1}


def test_when_the_driver_that_divides_is_silent_another_does_within_5_s_and_shares_stay_right(own_broker: str):
    assert Timing().share_table_s + Timing().look_at_shares_s <= 5
    quick = Timing(share_table_s=0.3, lock_s=1.5, lend_after_s=9.0)
    with contextlib.closing(connect(own_broker, timing=quick)) as client:
        info = worker("six@h", queue=queue_name(SLOT), cpus=SLOT.cpus, slots=6)
        Fleet(client, patience_s=5).join(info, 600)
        drivers = {name: Demands(client, patience_s=5) for name in "abc"}

        def look(name: str) -> float:
            share = drivers[name].exchange(name, Demand(experiment=name, queues=[queue_name(SLOT)], wanted=9))
            assert share is not None
            return share.limit

        def number() -> int:
            return int(client.hget(SHARES, "number") or 0)  # type: ignore[arg-type]

        assert [look(name) for name in "abcab"] == [math.inf, 3, 2, 2, 2]
        # The dividing driver was killed, or is frozen. It keeps its share as long as its demand holds.
        of_silent = number()
        assert eventually(lambda: [look("a"), look("b")] == [2, 2] and number() > of_silent)
        assert eventually(lambda: [look("a"), look("b")] == [3, 3])
        # The thawed driver can't publish any more. It has no share, and asks for one as a new driver does.
        of_later = number()
        assert (
            script_in("mqtune.services.shares", "divide")(client, [SHARES], [of_silent, 1000, "", "", "", 0, "a", b""])
            == 0
        )
        assert look("a") == 3
        assert (look("c"), look("a"), look("b")) == (2, 2, 2)
        assert number() > of_later
