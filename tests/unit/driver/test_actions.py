"""What the driver does to trials: checked first, then journaled, then carried out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import NAME, Bench, Obedient

from mqtune.core.errors import ConfigurationError, DriverFenced, InvalidTransition
from mqtune.core.events import DriverStarted, ExperimentEnded
from mqtune.core.trial import Action, CheckpointId, Decision, TrialId, TrialStatus
from mqtune.core.version import __version__
from mqtune.driver import AnswerQuestion, Drop, Finish, Stage
from mqtune.journal import MemoryJournal
from mqtune.schedulers.base import Fork, Release, Resume, Wait

ONE, TWO, THREE = TrialId("0001"), TrialId("0002"), TrialId("0003")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Two slots, each with a trial that a worker runs."""
    return Bench(tmp_path).step().start(ONE).start(TWO)


# Checked first.


def test_a_trial_that_ended_can_not_be_staged_and_trying_it_leaves_no_trace(bench: Bench) -> None:
    bench.report(ONE, 1.0)
    bench.end(ONE)
    events, published = len(bench.events()), list(bench.backend.published)

    with pytest.raises(InvalidTransition, match="trial 0001 is COMPLETED and can't become STAGED"):
        bench.driver.carry_out(Stage(trial=ONE, config={"lr": 1.0}, by="user"))

    assert (len(bench.events()), bench.backend.published) == (events, published)


def test_a_config_that_is_too_large_is_refused_by_its_largest_value_before_anything_is_journaled(bench: Bench) -> None:
    events = len(bench.events())

    with pytest.raises(
        ConfigurationError, match=r"trial 0003 has 2,\d{3},\d{3} bytes .* most is 1,048,576; .* is 'text' with 2,"
    ):
        bench.driver.carry_out(Stage(trial=THREE, config={"lr": 0.1, "text": "x" * 2 * 2**20}, by="user"))

    assert (len(bench.events()), list(bench.experiment.trials)) == (events, [ONE, TWO])


@pytest.mark.parametrize(
    "command",
    [
        lambda b: b.hand.add({}),
        lambda b: b.hand.trial(ONE).stop(),
        lambda b: b.hand.trial(TWO).abandon("no"),
        lambda b: b.hand.trial(ONE).save(),
        lambda b: b.driver.carry_out(Drop([])),
        lambda b: b.driver.carry_out(Finish("finished", "")),
    ],
)
def test_a_driver_that_was_replaced_changes_nothing_any_more(bench: Bench, command: Callable[[Bench], Any]) -> None:
    state = bench.server.experiments[NAME]
    state.driver_until = 0.0
    MemoryJournal(bench.server, NAME).lock("another", "", 60.0)
    before, events = repr(bench.experiment.trials), len(bench.events())

    with pytest.raises(DriverFenced):
        command(bench)

    assert (repr(bench.experiment.trials), len(bench.events())) == (before, events)


# What a slot is used for.


def test_a_scheduler_resumes_a_paused_trial_with_another_config_from_another_trials_checkpoint(bench: Bench) -> None:
    donor = bench.save(TWO)
    own = bench.save(ONE)
    bench.hand.trial(ONE).pause()
    bench.scheduler.choices.append(Resume(ONE, "exploit 0002", {"lr": 0.5, "depth": 3}, TWO))
    bench.end(ONE)

    attempt = bench.trial().attempt
    assert (attempt.number, attempt.checkpoint, attempt.source, attempt.config["lr"]) == (2, donor, TWO, 0.5)
    assert (bench.trial().reason, bench.trial().history[-1].by) == ("exploit 0002", "scheduler")
    assert (bench.trial().checkpoint, list(bench.trial().checkpoints)) == (donor, [own])
    assert bench.start(ONE).grant.assignment.checkpoint == donor


def test_a_scheduler_resumes_from_the_checkpoint_that_it_names_while_that_is_there(bench: Bench) -> None:
    donor = bench.save(TWO)
    bench.report(ONE, 1.0)
    bench.scheduler.decisions[ONE, 2] = Decision(Action.PAUSE, "exploit 0002", TWO)
    bench.report(ONE, 1.0)
    newest = bench.save(TWO)
    bench.scheduler.choices.append(Resume(ONE, "exploit 0002", None, TWO, donor))
    bench.end(ONE)
    assert (bench.trial().attempt.checkpoint, bench.trial().attempt.source) == (donor, TWO)

    bench.start(ONE)
    bench.hand.trial(ONE).pause()
    gone = CheckpointId("m-0002-1-99")
    bench.scheduler.choices.append(Resume(ONE, "exploit 0002", None, TWO, gone))
    bench.end(ONE)
    assert (bench.trial().attempt.checkpoint, bench.trial().attempt.source) == (newest, TWO)


def test_a_scheduler_forks_a_trial(bench: Bench) -> None:
    donor = bench.save(TWO)
    bench.scheduler.choices.append(Fork(TWO, {"lr": 0.5, "depth": 3}, "as good"))
    bench.report(ONE, 1.0)
    bench.end(ONE)

    fork = bench.trial(THREE)
    assert (fork.parent, fork.attempt.checkpoint, fork.config["lr"]) == (TWO, donor, 0.5)
    assert bench.trial(TWO).status is TrialStatus.RUNNING


def test_a_scheduler_releases_a_paused_trial_and_the_slot_is_asked_about_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_trials=3).step().start(ONE).start(TWO)
    bench.hand.trial(ONE).pause()
    bench.scheduler.choices += [Release(ONE, "not promoted"), Wait("for others")]
    bench.end(ONE)

    assert (bench.trial().status, bench.trial().reason) == (TrialStatus.EARLY_STOPPED, "not promoted")
    assert ("end", ONE) in bench.scheduler.heard
    assert bench.journal.waits() == "for others"


def test_an_added_trial_goes_on_from_the_checkpoint_of_a_source_that_has_ended_meanwhile(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_trials=3).step().start(ONE).start(TWO)
    bench.report(ONE, 0.1)
    saved = bench.save(TWO)
    bench.report(TWO, 1.0)
    bench.driver.steer("add", "", {"config": {"lr": 0.5}, "source": TWO})
    bench.step()

    # It is not the best one, and so its dicts would go with it.
    bench.end(TWO)

    assert bench.step().trial(THREE).attempt.checkpoint == saved


# Again.


def test_a_lost_trial_goes_on_from_its_own_checkpoint_once_it_has_one(bench: Bench) -> None:
    bench.save(TWO)
    bench.hand.add({}, source=TWO)
    bench.backend.slots = 3
    bench.start(THREE)
    own = bench.save(THREE)
    bench.lose(THREE)

    attempt = bench.trial(THREE).attempt
    assert (attempt.checkpoint, attempt.source) == (own, None)


# In lockstep.


def test_in_lockstep_a_trial_whose_report_ends_it_is_told_so_and_never_to_go_on(tmp_path: Path) -> None:
    def stopping() -> Obedient:
        scheduler = Obedient()
        scheduler.decisions[ONE, 1] = Decision(Action.STOP, "bad")
        return scheduler

    bench = Bench(tmp_path, lockstep=True, scheduler=stopping).step().start(ONE)
    bench.report(ONE, 3.0)

    for _ in range(2):
        assert bench.told(ONE) == "stop"
        assert not bench.server.experiments[NAME].trials[ONE].orders
        # The next driver says nothing else.
        bench.begin()


def test_a_later_driver_lets_those_go_on_that_the_earlier_one_left_waiting(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lockstep=True).step().start(ONE)
    bench.journal.order = lambda orders: [True]  # type: ignore[method-assign]
    bench.report(ONE, 3.0)
    assert bench.told(ONE) == ""

    bench.begin()

    assert bench.told(ONE) == "go:1"


def test_in_lockstep_an_answer_to_a_report_stays_when_that_is_decided_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lockstep=True).step().start(ONE)
    bench.driver.listen_to_reports(lambda _, report: bench.driver.carry_out(AnswerQuestion(report, "yes")))

    bench.report(ONE, 1.0)

    assert bench.told(ONE).startswith("go:1:")


# The experiment.


def test_each_driver_says_that_it_begins_with_which_version_and_once_that_it_ends(bench: Bench) -> None:
    bench.begin()
    for _ in range(2):
        bench.driver.carry_out(Finish("finished", "all done"))

    assert [(event.driver, event.version) for event in bench.of(DriverStarted)] == [("driver", __version__)] * 2
    assert [(event.outcome, event.reason) for event in bench.of(ExperimentEnded)] == [("finished", "all done")]
