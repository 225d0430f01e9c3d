"""Requests: anybody's entries in the journal, which the driver carries out once each, in order, or refuses for a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench import NAME, Bench

from mqtune.core.errors import InvalidTransition, UserCodeFailed
from mqtune.core.events import DecisionTaken, RequestAnswered, Requested, TrialClosed, TrialStaged
from mqtune.core.trial import NO_LABELS, Labels, TrialStatus
from mqtune.driver import AT_ONCE
from mqtune.journal import MemoryJournal
from mqtune.schedulers import Wait

ONE, TWO, THREE = "0001", "0002", "0003"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Two slots, each with a trial that a worker runs."""
    return Bench(tmp_path).step().start(ONE).start(TWO)


def ask(bench: Bench, action: str, trial: str = "", id: str = "", **arguments: Any) -> str:
    """Append a request, as any client may; return its id."""
    requests = bench.server.experiments[NAME].requests
    name = id or f"request {len(requests) + 1}"
    event = Requested(id=name, action=action, trial=trial, arguments=arguments, by="ann", at=bench.clock.now)
    MemoryJournal(bench.server, NAME).request(event)
    return name


def request(bench: Bench, action: str, trial: str = "", id: str = "", **arguments: Any) -> RequestAnswered:
    """Append a request, have the driver hear of it, and return its answer."""
    name = ask(bench, action, trial, id, **arguments)
    bench.step()
    return answer(bench, name)


def answer(bench: Bench, id: str) -> RequestAnswered:
    (found,) = [event for event in bench.of(RequestAnswered) if event.id == id]
    return found  # type: ignore[no-any-return]


def answered(bench: Bench) -> list[str]:
    return [event.id for event in bench.of(RequestAnswered)]


def test_a_flood_of_requests_is_carried_out_over_several_rounds_and_each_leaves_reports_their_turn(
    bench: Bench,
) -> None:
    asked = [ask(bench, "label", ONE, tags=[f"t{number}"]) for number in range(2 * AT_ONCE + 1)]

    bench.step()
    assert answered(bench) == asked[:AT_ONCE]
    bench.report(TWO, 0.5)
    assert bench.trial(TWO).reports == 1
    assert answered(bench) == asked[: 2 * AT_ONCE]
    bench.step()
    assert answered(bench) == asked


# What may be asked for.


@pytest.mark.parametrize("action", ["stop", "pause", "complete", "abandon", "fail"])
def test_a_running_trial_is_told_what_a_request_says_and_the_answer_names_it(bench: Bench, action: str) -> None:
    found = request(bench, action, ONE, reason="enough")

    assert (found.done, found.reason, found.trial) == (True, "", ONE)
    (decision,) = bench.of(DecisionTaken)
    assert (decision.action, decision.trial, decision.reason, decision.by) == (action, ONE, "enough", "user")
    assert decision.request == found.id
    assert bench.told(ONE) == {"fail": "stop"}.get(action, action)


def test_a_trial_saves_pauses_goes_on_with_a_part_of_a_config_and_is_closed_by_requests(bench: Bench) -> None:
    assert request(bench, "save", ONE).done
    assert bench.told(ONE) == "save:1"
    request(bench, "pause", ONE)
    assert bench.of(DecisionTaken)[0].reason == "requested by ann"
    bench.end(ONE)

    resumed = request(bench, "resume", ONE, config={"lr": 0.75})

    assert resumed.done
    staged = bench.of(TrialStaged)[-1]
    assert (staged.trial, staged.config, staged.request) == (ONE, {"lr": 0.75, "depth": 3}, resumed.id)
    request(bench, "pause", ONE)
    closed = request(bench, "abandon", ONE)
    assert (closed.done, bench.trial().status) == (True, TrialStatus.ABANDONED)
    assert bench.of(TrialClosed)[0].request == closed.id


def test_a_trial_is_added_when_a_slot_is_free_and_only_then_answered(bench: Bench) -> None:
    saved = bench.save(ONE)
    name = ask(bench, "add", config={"lr": 0.75}, source=ONE, ttl_s=60, tags=["mine"], notes="a guess")
    bench.step()
    assert answered(bench) == []
    assert not bench.driver.is_finished

    bench.end(ONE)

    assert (answer(bench, name).done, answer(bench, name).trial) == (True, THREE)
    new = bench.trial(THREE)
    assert (new.config, new.ttl_s, new.labels) == ({"lr": 0.75, "depth": 3}, 60.0, (("mine",), "a guess"))
    assert (new.attempt.checkpoint, new.attempt.source) == (saved, ONE)
    assert bench.of(TrialStaged)[-1].request == name


def test_requests_with_one_key_add_one_trial_also_while_the_first_waits_for_a_slot(bench: Bench) -> None:
    saved = bench.save(ONE)
    first, second = (ask(bench, "add", config={"lr": lr}, key="theirs-7", source=ONE) for lr in (0.25, 0.5))
    bench.step()
    assert answered(bench) == []

    bench.end(ONE).end(TWO).step()

    assert [answer(bench, name).trial for name in (first, second)] == [THREE, THREE]
    assert (bench.trial(THREE).config["lr"], bench.trial(THREE).attempt.checkpoint) == (0.25, saved)
    third = request(bench, "add", config={"lr": 0.75}, key="theirs-7")
    assert (third.done, third.trial, len(bench.experiment.trials)) == (True, THREE, 3)
    assert not bench.driver.requests.queued()
    bench.start(THREE).end(THREE)
    assert bench.driver.is_finished


def test_what_an_added_config_leaves_out_is_sampled_alike_by_every_driver(tmp_path: Path) -> None:
    configs = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        bench = Bench(tmp_path / folder, max_trials=1)
        ask(bench, "add", id="same", config={})
        bench.step().step()
        configs.append(bench.trial(TWO).config)
    assert configs[0] == configs[1]


def test_more_trials_and_fewer_at_once_are_set_and_stay_for_the_next_driver(bench: Bench) -> None:
    assert request(bench, "set", max_trials=4, max_concurrent=1).done
    bench.end(ONE).end(TWO)
    assert (len(bench.experiment.trials), bench.experiment.live) == (3, 1)

    bench.begin()
    bench.step()
    assert bench.experiment.live == 1
    bench.start(THREE).end(THREE)

    assert len(bench.experiment.trials) == 4


def test_a_script_that_brings_another_limit_later_has_the_last_word(bench: Bench) -> None:
    request(bench, "set", max_trials=9)

    bench.options["max_trials"] = 3
    bench.begin()
    bench.begin()
    bench.end(ONE).end(TWO).start(THREE).end(THREE)

    assert (bench.driver.is_finished, len(bench.experiment.trials)) == (True, 3)


def test_a_script_that_asks_for_more_trials_again_and_again_gets_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_trials=1).step().start(ONE).end(ONE)

    for wanted, trial in ((2, TWO), (3, THREE)):
        bench.options["max_trials"] = wanted
        bench.begin()
        assert not bench.driver.is_finished
        bench.step().start(trial).end(trial)

    assert bench.driver.is_finished


def test_an_end_lets_what_runs_end_by_itself_and_starts_nothing_else(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_trials=9).step().start(ONE)
    assert bench.trial(TWO).status is TrialStatus.STAGED

    assert request(bench, "end").done

    assert bench.trial(TWO).status is TrialStatus.EARLY_STOPPED
    assert (bench.trial().decision, bench.driver.is_finished) == (None, False)
    bench.report(ONE, 1.0)
    bench.end(ONE)
    assert (bench.trial().status, bench.driver.is_finished) == (TrialStatus.COMPLETED, True)
    assert bench.driver.over == "requested by ann"


@pytest.mark.parametrize("after_another", [False, True])
def test_an_end_now_stops_what_runs_also_what_an_earlier_end_has_let_run_on(bench: Bench, after_another: bool) -> None:
    if after_another:
        request(bench, "end")
        assert bench.trial().decision is None

    assert request(bench, "end", now=True, reason="the night is over").done

    assert bench.told(ONE) == bench.told(TWO) == "stop"
    assert bench.trial().reason == "the night is over"


@pytest.mark.parametrize("now", [True, False])
def test_an_end_is_in_force_for_a_driver_that_comes_before_all_has_ended(tmp_path: Path, now: bool) -> None:
    bench = Bench(tmp_path, max_trials=9).step().start(ONE)
    request(bench, "end", now=now)

    bench.begin()
    bench.step()

    assert len(bench.experiment.trials) == bench.experiment.counts[TrialStatus.EARLY_STOPPED] + 1
    bench.end(ONE)
    assert bench.driver.is_finished


def test_an_experiment_that_has_finished_by_request_may_go_on_as_any_other(bench: Bench) -> None:
    request(bench, "end", now=True)
    bench.end(ONE).end(TWO)
    bench.driver.end("finished", bench.driver.over)

    bench.options["max_trials"] = 3
    bench.begin()

    assert bench.driver.requests.ending is None
    bench.step()
    assert bench.trial(THREE).status is TrialStatus.STAGED


def test_what_waits_for_a_slot_when_the_experiment_is_ended_is_refused(bench: Bench) -> None:
    name = ask(bench, "add", config={"lr": 0.75})
    bench.step()

    request(bench, "end", now=True)

    assert not answer(bench, name).done
    assert "the experiment ends: requested by ann" in answer(bench, name).reason


@pytest.mark.parametrize("action", ["resume", "restart"])
@pytest.mark.parametrize("now", [True, False])
def test_no_trial_goes_on_by_a_request_that_comes_with_the_end(bench: Bench, action: str, now: bool) -> None:
    request(bench, "pause", ONE)
    bench.end(ONE)
    assert bench.trial().status is TrialStatus.PAUSED
    ask(bench, "end", now=now)

    refused = request(bench, action, ONE)

    why = "nothing is started any more: the experiment ends (requested by ann)"
    assert (refused.done, refused.reason) == (False, why)
    assert not request(bench, "restart", TWO).done
    assert [event.attempt for event in bench.of(TrialStaged)] == [1, 1]


# What is refused.


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"action": "explode", "trial": ONE}, "there is no action 'explode'; there are stop, pause"),
        ({"action": "stop", "trial": "0009"}, "there is no trial '0009' in experiment 'x'; it has 2"),
        ({"action": "stop", "trial": ONE, "now": True}, "stop has no argument 'now'; it has reason"),
        ({"action": "stop", "trial": ONE, "reason": 5}, "reason=5 of stop is not of type str"),
        ({"action": "resume", "trial": ONE}, "trial 0001 is RUNNING and can't be resumed"),
        ({"action": "restart", "trial": ONE, "config": {"lr": 7.0}}, "lr"),
        ({"action": "restart", "trial": ONE, "config": "lr=7"}, "is not of type dict"),
        ({"action": "restart", "trial": ONE, "checkpoint": "best"}, "trial 0001 has no checkpoint to start from"),
        (
            {"action": "restart", "trial": ONE, "checkpoint": "/etc"},
            "is neither 'newest' nor 'best' nor a checkpoint's id",
        ),
        ({"action": "add"}, "add lacks a config"),
        ({"action": "add", "config": {"lr": 7.0}}, "lr"),
        ({"action": "add", "config": {"lr": 0.5}, "source": "0009"}, "there is no trial '0009'"),
        ({"action": "add", "config": {"lr": 0.5}, "checkpoint": "p-0001-1-9"}, "there is no checkpoint 'p-0001-1-9'"),
        ({"action": "add", "config": {"lr": 0.5}, "ttl_s": -1}, "ttl_s=-1"),
        ({"action": "add", "config": {"lr": 0.5}, "tags": "mine"}, "tags"),
        ({"action": "set"}, "set changes nothing"),
        ({"action": "set", "max_trials": 0}, "max_trials=0 is not a whole number of at least 1"),
        ({"action": "set", "max_concurrent": "2"}, "max_concurrent='2' is not a whole number"),
        ({"action": "set", "journal_mb": 0}, "journal_mb=0 must be above 0"),
        ({"action": "end", "now": "yes"}, "now='yes' of end is not of type bool"),
        ({"action": "label", "trial": "0099", "tags": ["a"]}, "there is no trial '0099'"),
        ({"action": "label", "trial": ONE, "tags": [["a"]]}, "['a'] is not a tag"),
        ({"action": "label", "trial": ONE, "untag": 5}, "tags=5 is not a list of names"),
        ({"action": "label", "note": "x" * 10_001}, "10,001 characters"),
        ({"action": "label", "trial": ONE, "colour": "red"}, "label has no argument 'colour'"),
    ],
)
def test_an_invalid_request_is_refused_for_a_reason_and_nothing_is_done(
    bench: Bench, asked: dict[str, Any], reason: str
) -> None:
    before = len(bench.events())

    found = request(bench, **asked)

    assert not found.done
    assert reason in found.reason
    # The request and its answer.
    assert len(bench.events()) == before + 2
    assert (bench.trial(ONE).labels, bench.replayed().labels) == (NO_LABELS, NO_LABELS)


def test_a_request_that_a_driver_finds_late_does_not_undo_what_its_trial_has_reported_since(bench: Bench) -> None:
    asked = ask(bench, "pause", ONE)
    bench.is_away = True
    bench.report(ONE, 0.5)
    bench.end(ONE)

    bench.is_away = False
    bench.step()

    assert not answer(bench, asked).done
    assert "trial 0001 is COMPLETED" in answer(bench, asked).reason
    assert (bench.trial(ONE).status, bench.trial(ONE).best_value) == (TrialStatus.COMPLETED, 0.5)


def test_a_request_brings_an_experiment_that_had_finished_to_life_with_the_next_driver(bench: Bench) -> None:
    bench.end(ONE).end(TWO)
    assert bench.driver.is_finished
    bench.driver.end("finished", "")
    name = ask(bench, "add", config={"lr": 0.75})

    bench.begin()

    assert not bench.driver.is_finished
    bench.step()
    assert answer(bench, name).trial == THREE


# While nothing runs.


def test_trials_that_a_request_has_paused_wait_for_another_request(bench: Bench) -> None:
    bench.scheduler.choices.append(Wait("for others"))
    for trial in (ONE, TWO):
        request(bench, "pause", trial)
        bench.end(trial)
    bench.step()
    assert not bench.driver.is_finished
    assert "a request" in bench.driver.waiting_for

    assert request(bench, "resume", ONE).done
    assert bench.trial().status is TrialStatus.STAGED


def test_a_driver_that_looks_on_leaves_requests_to_the_next(bench: Bench) -> None:
    """Its scheduler has failed, and it decides nothing any more."""
    bench.scheduler.decisions = None
    with pytest.raises(UserCodeFailed):
        bench.report(ONE, 1.0)
    name = ask(bench, "stop", ONE)
    bench.step()
    assert answered(bench) == []

    bench.begin()

    assert answered(bench) == [name]


# In the driver's own process.


def test_in_the_drivers_process_an_action_is_carried_out_at_once_and_outlives_the_driver(bench: Bench) -> None:
    bench.driver.steer("pause", ONE, {"reason": "later"})

    assert bench.told(ONE) == "pause"
    assert bench.of(Requested) == []
    with pytest.raises(InvalidTransition, match="trial 0001 can't be told to pause"):
        bench.driver.steer("pause", ONE, {})
    bench.driver.steer("add", "", {"config": {"lr": 0.75}})
    bench.begin()
    bench.end(TWO)
    assert bench.trial(THREE).config["lr"] == 0.75


# Labels.


def test_labels_are_in_force_before_a_driver_answers_and_once(bench: Bench) -> None:
    ask(bench, "label", ONE, id="first", tags=["odd", "v2"], note="look")
    seen = bench.replayed()
    bench.step()
    request(bench, "label", ONE, untag=["v2"], tags=["v3"], note="again")
    request(bench, "label", notes="all of it")
    ask(bench, "label", ONE, id="first", tags=["odd", "v2"], note="look")
    bench.step()

    assert seen.trials[bench.trial(ONE).id].labels == Labels(("odd", "v2"), "look")
    assert bench.trial(ONE).labels == Labels(("odd", "v3"), "look\nagain")
    assert bench.replayed().trials[bench.trial(ONE).id].labels == bench.trial(ONE).labels
    assert bench.replayed().labels == Labels((), "all of it")
    assert all(event.done for event in bench.of(RequestAnswered))
    assert len(bench.of(RequestAnswered)) == 3
