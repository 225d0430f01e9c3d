"""Trials that people evaluate outside: asked for, told of step by step or at once, stopped, paused, expired, and replayed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import NAME, SPACE, Bench
from simulation import tuner_on

import mqtune
from mqtune import ASHA, FIFO, PromotionASHA, RandomSearcher
from mqtune.core.errors import ConfigurationError, InvalidTransition, SpaceError
from mqtune.core.events import AttemptEnded, DecisionTaken, RequestAnswered, Requested, Told, TrialStaged
from mqtune.core.trial import ITERATION, TIME_TOTAL, Action, Decision, Report, Trial, TrialStatus
from mqtune.journal import MemoryJournal
from mqtune.schedulers import START, Resume
from mqtune.search import WAIT, Searcher, Suggestion

ONE, TWO, THREE = "0001", "0002", "0003"


class Learning(RandomSearcher):
    """Remembers the trials that it hears of, and what it hears."""

    adaptive = True

    def __init__(self) -> None:
        super().__init__(SPACE, 1)
        self.heard: list[Any] = []

    def adopt(self, trial: Any, config: Any) -> None:
        self.heard.append(("adopt", trial, config["lr"]))

    def on_report(self, trial: Any, report: Report) -> None:
        self.heard.append(("report", trial.id, report.metrics["loss"]))

    def on_trial_end(self, trial: Any) -> None:
        self.heard.append(("end", trial.id, trial.status))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """An experiment of four trials, and no slot."""
    return bench_of(tmp_path)


def bench_of(folder: Path, **options: Any) -> Bench:
    return Bench(folder, **{"slots": 0, "max_trials": 4, "scheduler": FIFO, "searcher": Learning, **options})


def append(bench: Bench, action: str, trial: str = "", id: str = "", **arguments: Any) -> str:
    requests = bench.server.experiments[NAME].requests
    name = id or f"request {len(requests) + 1}"
    event = Requested(id=name, action=action, trial=trial, arguments=arguments, by="ann", at=bench.clock.now)
    MemoryJournal(bench.server, NAME).request(event)
    return name


def answer(bench: Bench, name: str) -> RequestAnswered:
    (found,) = [event for event in bench.of(RequestAnswered) if event.id == name]
    return found  # type: ignore[no-any-return]


def request(bench: Bench, action: str, trial: str = "", id: str = "", **arguments: Any) -> RequestAnswered:
    name = append(bench, action, trial, id, **arguments)
    bench.step()
    return answer(bench, name)


def tell(bench: Bench, trial: str, loss: float, step: int | None = None, **others: Any) -> RequestAnswered:
    metrics = {"loss": loss} if step is None else {"loss": loss, ITERATION: step}
    return request(bench, "tell", trial, metrics=metrics, **others)


def state_of(bench: Bench) -> dict[str, Any]:
    """Return what a driver knows, but for how long it has driven."""
    return {name: value for name, value in bench.experiment.state().items() if not name.startswith("_driven")}


def heard(bench: Bench) -> list[Any]:
    return bench.searcher.heard  # type: ignore[no-any-return]


# Asking.


def test_a_config_of_the_searcher_that_is_asked_for_runs_without_a_slot_and_counts_for_max_trials(bench: Bench) -> None:
    answers = [request(bench, "ask", ttl_s=60.0, tags=["lab"], notes="bench 4", key="run-7")]
    answers += [request(bench, "ask") for _ in range(4)]

    assert [(each.done, each.trial) for each in answers[:4]] == [(True, f"000{number}") for number in (1, 2, 3, 4)]
    assert not answers[4].done
    assert "all of max_trials=4 have begun; give one of your own" in answers[4].reason
    first = bench.trial(ONE)
    expected = RandomSearcher(SPACE, 1).suggest(ONE)  # type: ignore[arg-type]
    assert (first.config, first.status, first.outside, first.ttl_s) == (expected, TrialStatus.RUNNING, True, 60.0)
    assert (first.labels, first.key, first.attempt.worker) == ((("lab",), "bench 4"), "run-7", "outside")
    assert (bench.experiment.live, bench.experiment.running, bench.server.experiments[NAME].trials) == (0, 0, {})
    assert [event.request for event in bench.of(TrialStaged)[:1]] == [answers[0].id]


def test_trials_of_workers_go_on_beside_those_that_are_evaluated_outside(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, slots=2).step()
    asked = request(bench, "ask")

    assert (asked.trial, bench.experiment.live) == (THREE, 2)
    bench.start(ONE).end(ONE).start(TWO)
    assert (bench.experiment.live, len(bench.experiment.trials)) == (2, 4)


def test_who_tells_of_a_trial_need_not_know_what_is_constrained(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, metric=["loss", "latency <= 10"])
    request(bench, "ask")

    assert tell(bench, ONE, 0.5, ends=True).done
    assert bench.step().trial(ONE).status is TrialStatus.COMPLETED
    assert bench.driver.failure is None, "a constrained metric that nobody has told of is not taken for a mistake"
    assert bench.experiment.best is None


def test_a_config_of_ones_own_is_completed_and_does_not_count_for_max_trials(bench: Bench) -> None:
    asked = request(bench, "ask", config={"lr": 0.75})

    assert bench.trial(asked.trial).config == {"lr": 0.75, "depth": 3}
    assert [request(bench, "ask").done for _ in range(5)] == [True, True, True, True, False]
    assert heard(bench)[:1] == [("adopt", ONE, 0.75)]


def test_who_asks_a_searcher_that_thinks_waits_for_its_answer(tmp_path: Path) -> None:
    class Slow(Searcher):
        thinks = True

        def suggest(self, trial: Any) -> Suggestion:
            return WAIT if self.thinks else {"lr": 0.5, "depth": 3}

    bench = bench_of(tmp_path, searcher=Slow)
    name = append(bench, "ask")
    bench.step()
    assert bench.of(RequestAnswered) == []

    bench.searcher.thinks = False
    bench.step()

    assert answer(bench, name).trial == ONE


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"config": {"lr": 7}}, "lr"),
        ({"config": [1]}, "is not of type dict"),
        ({"ttl_s": -1}, "ttl_s"),
        ({"metrics": {}}, "ask has no argument 'metrics'"),
    ],
)
def test_what_can_not_be_asked_for_is_refused(bench: Bench, arguments: dict[str, Any], reason: str) -> None:
    found = request(bench, "ask", **arguments)

    assert (found.done, bench.experiment.trials) == (False, {})
    assert reason in found.reason


def test_a_searcher_without_another_config_has_none_to_ask_for(tmp_path: Path) -> None:
    class Through(Searcher):
        def suggest(self, trial: Any) -> Suggestion:
            return None

    refused = request(bench_of(tmp_path, searcher=Through), "ask")

    assert refused.reason == "there is no config to ask for: the searcher has no other config; give one of your own"


# Telling.


def test_a_result_completes_the_trial_and_searcher_and_results_know_it(bench: Bench) -> None:
    asked = request(bench, "ask")
    bench.clock.now += 30

    told = request(bench, "tell", asked.trial, metrics={"loss": 0.25, "accuracy": 0.9})

    trial = bench.trial(ONE)
    assert (told.done, told.reason, told.trial) == (True, "", ONE)
    assert (trial.status, trial.best_value, trial.reports) == (TrialStatus.COMPLETED, 0.25, 1)
    assert trial.last_metrics == {
        "loss": 0.25,
        "accuracy": 0.9,
        ITERATION: 1,
        "time_this_iter_s": 30.0,
        TIME_TOTAL: 30.0,
    }
    assert heard(bench) == [("report", ONE, 0.25), ("end", ONE, TrialStatus.COMPLETED)]
    assert bench.experiment.best is trial
    bench.step()
    assert [report.metrics["loss"] for report in bench.hand.results().reports()] == [0.25]


def test_a_config_is_told_with_its_result_in_one_step(bench: Bench) -> None:
    told = request(
        bench, "tell", config={"lr": 0.5}, metrics={"loss": 0.125, ITERATION: 9}, tags=["last year"], key="row 17"
    )

    trial = bench.trial(told.trial)
    assert (trial.config, trial.status, trial.best_value) == ({"lr": 0.5, "depth": 3}, TrialStatus.COMPLETED, 0.125)
    assert (trial.labels.tags, trial.key, trial.last_metrics[ITERATION]) == (("last year",), "row 17", 9)
    assert heard(bench) == [("adopt", ONE, 0.5), ("report", ONE, 0.125), ("end", ONE, TrialStatus.COMPLETED)]
    assert [request(bench, "ask").done for _ in range(5)] == [True, True, True, True, False]


def test_a_result_that_is_told_again_counts_once(bench: Bench) -> None:
    row = {"config": {"lr": 0.5}, "metrics": {"loss": 0.125}}
    first = request(bench, "tell", id="same", **row)
    append(bench, "tell", id="same", **row)
    bench.step()
    by_key = [request(bench, "tell", key="row 17", **row) for _ in range(2)]
    asked = request(bench, "ask")
    steps = [tell(bench, asked.trial, loss, 1, ends=False) for loss in (0.5, 0.4)]
    ends = [tell(bench, asked.trial, 0.25, 2) for _ in range(2)]

    assert [each.trial for each in (first, *by_key)] == [ONE, TWO, TWO]
    assert [each.done for each in (*steps, *ends)] == [True] * 4
    assert (bench.trial(THREE).reports, bench.trial(THREE).best_value) == (2, 0.25)
    assert len(bench.of(Told)) == 4


def test_a_last_step_that_was_told_as_one_on_the_way_completes_the_trial(bench: Bench) -> None:
    asked = request(bench, "ask")
    tell(bench, asked.trial, 0.5, 3, ends=False)

    assert tell(bench, asked.trial, 0.5, 3).done
    assert (bench.trial(ONE).status, bench.trial(ONE).reports) == (TrialStatus.COMPLETED, 1)


def test_a_trial_that_was_asked_for_with_a_key_is_told_by_it(bench: Bench) -> None:
    request(bench, "ask", key="run-7")

    assert request(bench, "tell", key="run-7", metrics={"loss": 0.5}).trial == ONE
    assert bench.trial(ONE).status is TrialStatus.COMPLETED


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"metrics": {"los": 1.0}}, "tell has no 'loss': give a number for 'loss'; it has 'los'"),
        ({"metrics": {"loss": "low"}}, "tell has loss='low', which is not a number"),
        ({"metrics": {}}, "it has nothing"),
        ({"metrics": [0.5]}, "is not a dict of metrics"),
        ({"metrics": {"loss": 0.5, ITERATION: "two"}}, "give the step as a finite number"),
        ({"metrics": {"loss": 0.5, "log": "x" * 2**20}}, "tell: these 2 metrics have"),
        ({"metrics": {"loss": 0.5}, "ends": 1}, "ends=1 of tell is not of type bool"),
        ({"metrics": {"loss": 0.5}, "key": "row"}, "tell has a trial and 'key', which is for a new one"),
    ],
)
def test_what_can_not_be_told_is_refused_and_ends_nothing(bench: Bench, arguments: dict[str, Any], reason: str) -> None:
    asked = request(bench, "ask")

    found = request(bench, "tell", asked.trial, **arguments)

    assert not found.done
    assert reason in found.reason
    assert (bench.trial(ONE).status, bench.trial(ONE).reports, bench.driver.failure) == (TrialStatus.RUNNING, 0, None)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "tell lacks both a trial and a config"),
        ({"config": {"lr": 7}}, "lr"),
        ({"config": {}}, "the config lacks lr"),
        ({"config": {"lr": 0.5, "momentum": 1}}, "momentum"),
        ({"config": {"lr": 0.5}, "ends": False}, "ask with the config first"),
    ],
)
def test_a_result_of_no_config_of_the_space_is_refused(bench: Bench, arguments: dict[str, Any], reason: str) -> None:
    found = request(bench, "tell", metrics={"loss": 0.5}, **arguments)

    assert (found.done, bench.experiment.trials) == (False, {})
    assert reason in found.reason


def test_trials_of_workers_and_trials_that_have_ended_are_not_told(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, slots=1).step().start(ONE)
    request(bench, "ask")
    tell(bench, TWO, 0.5)

    assert "trial 0001 is one that workers run" in tell(bench, ONE, 0.5).reason
    assert tell(bench, TWO, 0.25).reason == "nothing more is told: trial 0002 is COMPLETED"
    assert "there is no trial '0009'" in tell(bench, "0009", 0.5).reason
    assert bench.trial(TWO).best_value == 0.5


def test_a_step_before_the_last_one_is_refused(bench: Bench) -> None:
    asked = request(bench, "ask")
    tell(bench, asked.trial, 0.5, 3, ends=False)

    assert "has training_iteration=2 after 3" in tell(bench, asked.trial, 0.5, 2, ends=False).reason


def test_a_value_that_is_nan_may_be_told(bench: Bench) -> None:
    asked = request(bench, "ask")

    assert tell(bench, asked.trial, math.nan).done
    assert (bench.trial(ONE).status, bench.experiment.best) == (TrialStatus.COMPLETED, None)


# Schedulers.


def test_a_scheduler_stops_a_trial_on_the_way_and_who_tells_hears_of_it(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, scheduler=lambda: ASHA(max_t=9, reduction_factor=3))
    for _ in range(3):
        request(bench, "ask")
    answers = [tell(bench, f"000{number}", 0.1 * number, 1, ends=False) for number in (1, 2, 3)]

    assert [(each.done, bool(each.reason)) for each in answers] == [(True, False), (True, True), (True, True)]
    assert answers[1].reason.startswith("trial 0002 is EARLY_STOPPED: ")
    assert (bench.trial(TWO).status, bench.trial(TWO).attempt.stop.by) == (TrialStatus.EARLY_STOPPED, "scheduler")  # type: ignore[union-attr]
    refused = tell(bench, TWO, 0.05, 2, ends=False)
    assert not refused.done
    assert "nothing more is told: trial 0002 is EARLY_STOPPED" in refused.reason


def test_a_last_report_completes_its_trial_whatever_is_decided_on_it(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, scheduler=lambda: ASHA(max_t=9, reduction_factor=3))
    for loss in (0.1, 0.2, 0.3):
        request(bench, "tell", config={"lr": loss}, metrics={"loss": loss, ITERATION: 1})

    assert {trial.status for trial in bench.experiment.trials.values()} == {TrialStatus.COMPLETED}
    assert bench.of(DecisionTaken) == []


def test_a_trial_that_is_paused_and_promoted_runs_outside_again(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, slots=1, max_trials=3, scheduler=lambda: PromotionASHA(max_t=9, reduction_factor=3))
    bench.backend.slots = 0
    for _ in range(3):
        request(bench, "ask")
    for number in (1, 2, 3):
        tell(bench, f"000{number}", 0.1 * number, 1, ends=False)
    assert bench.trial(TWO).status is TrialStatus.PAUSED
    bench.backend.slots = 1
    bench.step()

    promoted = bench.trial(ONE)
    assert (promoted.status, promoted.attempt.number, promoted.outside) == (TrialStatus.RUNNING, 2, True)
    assert bench.experiment.live == 0
    told = tell(bench, ONE, 0.05, 3, ends=False)
    assert (told.done, promoted.reports) == (True, 2)
    assert told.reason.startswith("trial 0001 is PAUSED")


def test_a_trial_that_is_to_go_on_with_another_config_is_stopped_as_nobody_outside_would_know(tmp_path: Path) -> None:
    class Exploits(FIFO):
        def on_report(self, trial: Any, report: Report) -> Decision:
            return Decision(Action.PAUSE, "one of the worst")

        paused: Trial | None = None

        def on_trial_pause(self, trial: Trial) -> None:
            self.paused = trial

        def on_trial_end(self, trial: Trial) -> None:
            self.paused = None

        def choose(self, *, can_start: bool) -> Any:
            if self.paused is None:
                return START
            return Resume(self.paused.id, "copies the best", {"lr": 0.5, "depth": 3})

    bench = bench_of(tmp_path, slots=1, scheduler=Exploits)
    bench.backend.slots = 0
    request(bench, "ask")
    tell(bench, ONE, 0.5, 1, ends=False)
    bench.backend.slots = 1
    request(bench, "ask")

    assert bench.trial(ONE).status is TrialStatus.EARLY_STOPPED
    assert bench.trial(ONE).reason.startswith("copies the best; nobody outside evaluates another config")


def test_the_time_that_a_scheduler_goes_by_must_be_told(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, scheduler=lambda: ASHA(max_t=9, time_attr="epoch"))
    asked = request(bench, "ask")

    refused = tell(bench, asked.trial, 0.5)
    assert "tell has epoch=None: give the step as a finite number" in refused.reason
    assert request(bench, "tell", asked.trial, metrics={"loss": 0.5, "epoch": 9}).done


# People, and time.


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("stop", TrialStatus.EARLY_STOPPED),
        ("complete", TrialStatus.COMPLETED),
        ("fail", TrialStatus.FAILED),
        ("abandon", TrialStatus.ABANDONED),
        ("pause", TrialStatus.PAUSED),
    ],
)
def test_a_person_ends_a_trial_that_is_evaluated_outside_at_once(
    bench: Bench, action: str, status: TrialStatus
) -> None:
    request(bench, "ask")

    found = request(bench, action, ONE, reason="the lab has burnt down")

    assert (found.done, bench.trial(ONE).status, bench.trial(ONE).reason) == (True, status, "the lab has burnt down")
    assert bench.experiment.outside == {}


def test_a_trial_that_is_paused_or_restarted_goes_on_outside_and_saves_nothing(bench: Bench) -> None:
    request(bench, "ask")
    request(bench, "pause", ONE)
    request(bench, "resume", ONE, config={"lr": 0.25})

    trial = bench.trial(ONE)
    assert (trial.status, trial.config["lr"], trial.outside) == (TrialStatus.RUNNING, 0.25, True)
    saved = request(bench, "save", ONE)
    assert saved.reason == "trial 0001 is evaluated outside, and has no process that could save a checkpoint"


def test_a_trial_that_nobody_tells_of_in_time_fails_and_is_not_tried_again(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, max_failures=3)
    request(bench, "ask", ttl_s=60.0)
    request(bench, "ask")
    bench.clock.now += 59
    bench.step()
    assert bench.trial(ONE).status is TrialStatus.RUNNING

    bench.clock.now += 20
    bench.step()

    trial = bench.trial(ONE)
    assert trial.status is TrialStatus.FAILED
    assert trial.reason == "TimeToLive: nobody has told its result within its ttl_s of 60 s"
    assert (bench.trial(TWO).status, bench.experiment.to_retry) == (TrialStatus.RUNNING, [])


def test_an_experiment_waits_for_results_from_outside_and_says_so(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, max_trials=1, slots=1)
    bench.backend.slots = 0
    request(bench, "ask")
    bench.backend.slots = 1
    bench.step()

    assert not bench.driver.is_finished
    expected = (
        "the results of trial 0001, which is evaluated outside: tell them (mqtune tell x TRIAL METRIC=VALUE), or end trials "
        "(mqtune stop x TRIAL)"
    )
    assert bench.driver.waiting_for == expected
    tell(bench, ONE, 0.5)
    assert bench.driver.is_finished


def test_an_experiment_that_is_to_end_waits_for_results_unless_it_is_to_end_now(bench: Bench) -> None:
    request(bench, "ask")
    request(bench, "end")
    bench.step()
    assert (bench.driver.is_finished, bench.trial(ONE).status) == (False, TrialStatus.RUNNING)
    assert "evaluated outside" in bench.driver.waiting_for
    assert "the experiment ends" in request(bench, "ask").reason

    request(bench, "end", now=True)
    bench.step()

    assert (bench.driver.is_finished, bench.trial(ONE).status) == (True, TrialStatus.EARLY_STOPPED)


def test_a_driver_that_is_interrupted_leaves_what_is_evaluated_outside_as_it_is(bench: Bench) -> None:
    request(bench, "ask")
    bench.driver.requeue_all("Ctrl-C")
    assert bench.driver.is_finished

    bench.begin()

    assert bench.trial(ONE).status is TrialStatus.RUNNING
    assert tell(bench, ONE, 0.5).done


def test_a_stop_rule_hears_of_what_is_told(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, stop={"loss": 0.2})
    request(bench, "ask")
    answers = [tell(bench, ONE, loss, ends=False) for loss in (0.5, 0.1, 0.05)]
    assert [each.done for each in answers] == [True, True, False]
    assert bench.trial(ONE).reason == "loss=0.1 reached 0.2"


# Replay.


def _outside_all(bench: Bench) -> None:
    for _ in range(3):
        request(bench, "ask")
    for number, loss in ((1, 0.3), (2, 0.2), (3, 0.4)):
        tell(bench, f"000{number}", loss, 1, ends=False)
    request(bench, "tell", config={"lr": 0.5}, metrics={"loss": 0.1, ITERATION: 9}, key="row")
    tell(bench, TWO, 0.15, 3)


@pytest.mark.parametrize(
    "scheduler", [FIFO, lambda: ASHA(max_t=9, reduction_factor=3), lambda: PromotionASHA(max_t=9, reduction_factor=3)]
)
def test_another_driver_comes_to_the_same_by_the_journal(tmp_path: Path, scheduler: Callable[[], Any]) -> None:
    bench = bench_of(tmp_path, scheduler=scheduler)
    _outside_all(bench)
    told, before = heard(bench), state_of(bench)
    entries = len(bench.events())

    bench.begin()

    assert (heard(bench), state_of(bench)) == (told, before)
    assert not [event for event in bench.events()[entries:] if isinstance(event, DecisionTaken | Told | AttemptEnded)]
    assert bench.hand.results().summary()["reports"] == bench.experiment.reports == len(bench.of(Told))


def test_what_an_earlier_driver_took_in_and_did_not_answer_is_answered_by_the_next(bench: Bench) -> None:
    request(bench, "ask")
    journal = bench.server.experiments[NAME]
    name = append(bench, "tell", ONE, metrics={"loss": 0.5})
    bench.step()
    # As if it had been killed just before its answer.
    (place,) = [
        at for at, event in enumerate(bench.events()) if isinstance(event, RequestAnswered) and event.id == name
    ]
    del journal.entries[place:]

    bench.begin()
    bench.step()

    assert (answer(bench, name).done, bench.trial(ONE).reports, len(bench.of(Told))) == (True, 1, 1)


ONE_NUMBER = {"x": mqtune.uniform(0, 1)}


def never(config: dict[str, Any]) -> None:
    raise AssertionError("no worker runs anything here")


@contextlib.contextmanager
def opened(name: str, space: Any = ONE_NUMBER, **options: Any) -> Iterator[mqtune.Tuner]:
    tuner = tuner_on(mqtune.Simulated(lambda config: [], keep_journal=True), never, space, name=name, **options)
    with contextlib.closing(tuner):
        yield tuner


@pytest.mark.usefixtures("mqtune_home")
def test_a_search_without_any_worker_is_a_loop_of_ask_and_tell() -> None:
    with opened("by-hand", max_trials=10, seed=1) as tuner:
        for _ in range(10):
            trial = tuner.ask()
            tuner.tell(trial, {"loss": np.float32((trial.config["x"] - 0.3) ** 2)})
        with pytest.raises(ConfigurationError, match="all of max_trials=10 have begun"):
            tuner.ask()
        assert tuner.is_finished
        best = tuner.results().best

    assert min(abs(trial.config["x"] - 0.3) for trial in tuner.get_trials()) == abs(best.config["x"] - 0.3)
    assert {trial.status for trial in tuner.get_trials()} == {TrialStatus.COMPLETED}
    loaded = mqtune.Results.load("by-hand")
    assert (loaded.outcome, len(list(loaded.reports())), loaded.best.id) == ("finished", 10, best.id)


@pytest.mark.usefixtures("mqtune_home")
def test_trials_are_named_by_themselves_by_their_ids_or_by_a_config_and_are_told_once() -> None:
    with opened("named", max_trials=3) as tuner:
        first = tuner.ask({"x": 0.5}, tags=["mine"], key="a")
        assert tuner.ask(key="a") is first
        tuner.tell(first.id, {"loss": 0.5}, ends=False)
        assert tuner.tell(first, {"loss": 0.25}).status is TrialStatus.COMPLETED
        last_year = [tuner.tell({"x": 0.125}, {"loss": 0.75}, key="row 1") for _ in range(2)]

        assert last_year[0] is last_year[1]
        assert [(trial.config["x"], trial.reports) for trial in tuner.get_trials()] == [(0.5, 2), (0.125, 1)]
        with pytest.raises(InvalidTransition, match="nothing more is told: trial 0001 is COMPLETED"):
            tuner.tell(first, {"loss": 0.1})
        with pytest.raises(SpaceError, match="x"):
            tuner.tell({"x": 7}, {"loss": 0.1})


@pytest.mark.usefixtures("mqtune_home")
def test_an_experiment_without_a_space_takes_any_config_and_has_none_to_ask_for(tmp_path: Path) -> None:
    with opened("open", None) as tuner:
        asked = tuner.ask({"anything": [1, 2]})
        tuner.tell({"else": 3}, {"loss": 0.5})

        assert tuner.tell(asked, {"loss": 0.25}).config == {"anything": [1, 2]}
        with pytest.raises(ConfigurationError, match="nothing is searched without a space; give one of your own"):
            tuner.ask()
