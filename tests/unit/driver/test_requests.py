"""The driver carries out each request in the journal once and in order, or refuses it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import NAME, SPACE, Bench, Obedient
from simulation import tuner_on

import mqtune
from mqtune import ASHA, FIFO, PromotionASHA, RandomSearcher
from mqtune.core.errors import ConfigurationError, InvalidTransition, SpaceError
from mqtune.core.events import DecisionTaken, RequestAnswered, Requested, Told, TrialStaged
from mqtune.core.labels import NO_LABELS, Labels
from mqtune.core.trial import ITERATION, TIME_TOTAL, Action, Decision, Report, TrialStatus
from mqtune.driver import AT_ONCE
from mqtune.journal import MemoryJournal
from mqtune.schedulers import Resume
from mqtune.search import WAIT, Searcher, Suggestion

ONE, TWO, THREE = "0001", "0002", "0003"


@pytest.fixture
def driven(tmp_path: Path) -> Bench:
    """Two slots, each with a trial that a worker runs."""
    return Bench(tmp_path).step().start(ONE).start(TWO)


def ask(driven: Bench, action: str, trial: str = "", id: str = "", **arguments: Any) -> str:
    """Append a request, as any client may; return its id."""
    requests = driven.server.experiments[NAME].requests
    name = id or f"request {len(requests) + 1}"
    event = Requested(id=name, action=action, trial=trial, arguments=arguments, by="ann", at=driven.clock.now)
    MemoryJournal(driven.server, NAME).request(event)
    return name


def request(driven: Bench, action: str, trial: str = "", id: str = "", **arguments: Any) -> RequestAnswered:
    """Append a request, step the driver, and return its answer."""
    name = ask(driven, action, trial, id, **arguments)
    driven.step()
    return answer(driven, name)


def answer(driven: Bench, id: str) -> RequestAnswered:
    (found,) = [event for event in driven.of(RequestAnswered) if event.id == id]
    return found  # type: ignore[no-any-return]


def answered(driven: Bench) -> list[str]:
    return [event.id for event in driven.of(RequestAnswered)]


@pytest.mark.parametrize("action", ["stop", "pause", "complete", "abandon", "fail"])
def test_a_running_trial_is_told_what_a_request_says_and_the_answer_names_it(driven: Bench, action: str) -> None:
    found = request(driven, action, ONE, reason="enough")

    assert (found.done, found.reason, found.trial) == (True, "", ONE)
    (decision,) = driven.of(DecisionTaken)
    assert (decision.action, decision.trial, decision.reason, decision.by) == (action, ONE, "enough", "user")
    assert decision.request == found.id
    assert driven.told(ONE) == {"fail": "stop"}.get(action, action)


def test_a_trial_is_added_when_a_slot_is_free_and_only_then_answered(driven: Bench) -> None:
    saved = driven.save(ONE)
    name = ask(driven, "add", config={"lr": 0.75}, source=ONE, timeout_s=60, tags=["mine"], notes="a guess")
    driven.step()
    assert answered(driven) == []
    assert not driven.driver.is_finished

    driven.end(ONE)

    assert (answer(driven, name).done, answer(driven, name).trial) == (True, THREE)
    new = driven.trial(THREE)
    assert (new.config, new.timeout_s, new.labels) == ({"lr": 0.75, "depth": 3}, 60.0, (("mine",), "a guess"))
    assert (new.attempt.checkpoint, new.attempt.source) == (saved, ONE)
    assert driven.of(TrialStaged)[-1].request == name


def test_requests_with_one_key_add_one_trial_also_while_the_first_waits_for_a_slot(driven: Bench) -> None:
    saved = driven.save(ONE)
    # It is not the best one, and so its dicts would go with its end.
    driven.report(ONE, 1.0)
    driven.report(TWO, 0.5)
    first, second = (ask(driven, "add", config={"lr": lr}, key="theirs-7", source=ONE) for lr in (0.25, 0.5))
    driven.step()
    assert answered(driven) == []

    driven.end(ONE).end(TWO).step()

    assert [answer(driven, name).trial for name in (first, second)] == [THREE, THREE]
    assert (driven.trial(THREE).config["lr"], driven.trial(THREE).attempt.checkpoint) == (0.25, saved)
    third = request(driven, "add", config={"lr": 0.75}, key="theirs-7")
    assert (third.done, third.trial, len(driven.experiment.trials)) == (True, THREE, 3)
    assert not driven.driver.requests.queued()
    driven.start(THREE).end(THREE)
    assert driven.driver.is_finished


def test_options_that_are_set_stay_for_the_next_driver_and_others_are_as_they_were(driven: Bench) -> None:
    assert request(driven, "set", max_trials=4, max_concurrent=1, share=3).done
    assert request(driven, "set", priority="high").done
    driven.end(ONE).end(TWO)
    assert (len(driven.experiment.trials), driven.experiment.live) == (3, 1)

    driven.begin()
    driven.step()

    options = driven.driver.requests.options
    assert (options.priority, options.share, options.preemptible) == ("high", 3, False)
    assert driven.experiment.live == 1
    driven.start(THREE).end(THREE)
    assert len(driven.experiment.trials) == 4


def test_an_end_lets_what_runs_end_by_itself_and_starts_nothing_else(tmp_path: Path) -> None:
    driven = Bench(tmp_path, max_trials=9).step().start(ONE)
    assert driven.trial(TWO).status is TrialStatus.QUEUED

    assert request(driven, "end").done

    assert driven.trial(TWO).status is TrialStatus.EARLY_STOPPED
    assert (driven.trial().decision, driven.driver.is_finished) == (None, False)
    driven.report(ONE, 1.0)
    driven.end(ONE)
    assert (driven.trial().status, driven.driver.is_finished) == (TrialStatus.COMPLETED, True)
    assert driven.driver.over == "requested by ann"


@pytest.mark.parametrize("action", ["resume", "restart"])
@pytest.mark.parametrize("now", [True, False])
def test_no_trial_goes_on_by_a_request_that_comes_with_the_end(driven: Bench, action: str, now: bool) -> None:
    request(driven, "pause", ONE)
    driven.end(ONE)
    assert driven.trial().status is TrialStatus.PAUSED
    driven.backend.slots = 0
    waits = ask(driven, "add", config={"lr": 0.75})
    driven.step()
    ask(driven, "end", now=now)

    refused = request(driven, action, ONE)
    assert not answer(driven, waits).done
    assert "the experiment ends: requested by ann" in answer(driven, waits).reason

    why = "nothing is started any more: the experiment ends (requested by ann)"
    assert (refused.done, refused.reason) == (False, why)
    assert not request(driven, "restart", TWO).done
    assert [event.attempt for event in driven.of(TrialStaged)] == [1, 1]


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
            "is neither 'newest' nor 'best' nor a checkpoint's",
        ),
        ({"action": "add"}, "add lacks a config"),
        ({"action": "add", "config": {"lr": 7.0}}, "lr"),
        ({"action": "add", "config": {"lr": 0.5}, "source": "0009"}, "there is no trial '0009'"),
        (
            {"action": "add", "config": {"lr": 0.5}, "checkpoint": "p-0001-1-9"},
            "checkpoint 'p-0001-1-9' does not exist",
        ),
        ({"action": "add", "config": {"lr": 0.5}, "timeout_s": -1}, "timeout_s=-1"),
        ({"action": "add", "config": {"lr": 0.5}, "tags": "mine"}, "tags"),
        ({"action": "set"}, "set changes nothing"),
        ({"action": "set", "max_trials": 0}, "max_trials=0 is not a whole number of at least 1"),
        ({"action": "set", "max_concurrent": "2"}, "max_concurrent='2' is not a whole number"),
        ({"action": "set", "journal_mb": 0}, "journal_mb=0 must be above 0"),
        ({"action": "set", "priority": "urgent"}, "priority='urgent' is none of 'high', 'normal', 'low'"),
        ({"action": "set", "share": 0}, "share=0 must be above 0"),
        ({"action": "set", "share": "2"}, "share='2'"),
        ({"action": "set", "preemptible": 1}, "preemptible=1 is neither True nor False"),
        ({"action": "end", "now": "yes"}, "now='yes' of end is not of type bool"),
        ({"action": "label", "trial": "0099", "tags": ["a"]}, "there is no trial '0099'"),
        ({"action": "label", "trial": ONE, "tags": [["a"]]}, "['a'] is not a tag"),
        ({"action": "label", "trial": ONE, "colour": "red"}, "label has no argument 'colour'"),
        ({"action": "ask", "config": {"lr": 7}}, "lr"),
        ({"action": "ask", "config": [1]}, "is not of type dict"),
        ({"action": "ask", "timeout_s": -1}, "timeout_s"),
        ({"action": "ask", "metrics": {}}, "ask has no argument 'metrics'"),
        ({"action": "tell", "metrics": {"loss": 0.5}}, "tell lacks both a trial and a config"),
        ({"action": "tell", "metrics": {"loss": 0.5}, "config": {"lr": 7}}, "lr"),
        ({"action": "tell", "metrics": {"loss": 0.5}, "config": {}}, "the config lacks lr"),
        ({"action": "tell", "metrics": {"loss": 0.5}, "config": {"lr": 0.5, "momentum": 1}}, "momentum"),
        (
            {"action": "tell", "metrics": {"loss": 0.5}, "config": {"lr": 0.5}, "ends": False},
            "begin a trial with ask and this config",
        ),
        ({"action": "tell", "trial": "0009", "metrics": {"loss": 0.5}}, "there is no trial '0009'"),
        ({"action": "tell", "trial": ONE, "metrics": {"loss": 0.5}}, "trial 0001 runs on a worker"),
    ],
)
def test_an_invalid_request_is_refused_and_does_nothing(driven: Bench, asked: dict[str, Any], reason: str) -> None:
    before = len(driven.events())

    found = request(driven, **asked)

    assert not found.done
    assert reason in found.reason
    # The request and its answer.
    assert len(driven.events()) == before + 2
    assert len(driven.experiment.trials) == 2
    assert (driven.trial(ONE).labels, driven.experiment.labels) == (NO_LABELS, NO_LABELS)


def test_a_request_that_a_driver_finds_late_does_not_undo_what_its_trial_has_reported_since(driven: Bench) -> None:
    asked = ask(driven, "pause", ONE)
    driven.is_away = True
    driven.report(ONE, 0.5)
    driven.end(ONE)

    driven.is_away = False
    driven.step()

    assert not answer(driven, asked).done
    assert "trial 0001 is COMPLETED" in answer(driven, asked).reason
    assert (driven.trial(ONE).status, driven.trial(ONE).best_value) == (TrialStatus.COMPLETED, 0.5)


def test_labels_are_in_force_before_a_driver_answers_and_once(driven: Bench) -> None:
    ask(driven, "label", ONE, id="first", tags=["odd", "v2"], note="look")
    seen = driven.replayed()
    driven.step()
    request(driven, "label", ONE, untag=["v2"], tags=["v3"], note="again")
    request(driven, "label", notes="all of it")
    ask(driven, "label", ONE, id="first", tags=["odd", "v2"], note="look")
    driven.step()

    assert seen.trials[driven.trial(ONE).id].labels == Labels(("odd", "v2"), "look")
    assert driven.trial(ONE).labels == Labels(("odd", "v3"), "look\nagain")
    assert driven.replayed().trials[driven.trial(ONE).id].labels == driven.trial(ONE).labels
    assert driven.replayed().labels == Labels((), "all of it")
    assert all(event.done for event in driven.of(RequestAnswered))
    assert len(driven.of(RequestAnswered)) == 3


class Learning(RandomSearcher):
    """Records its calls."""

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


def tell(bench: Bench, trial: str, loss: float, step: int | None = None, **others: Any) -> RequestAnswered:
    metrics = {"loss": loss} if step is None else {"loss": loss, ITERATION: step}
    return request(bench, "tell", trial, metrics=metrics, **others)


def heard(bench: Bench) -> list[Any]:
    return bench.searcher.heard  # type: ignore[no-any-return]


def test_a_config_of_the_searcher_that_is_asked_for_runs_without_a_slot_and_counts_for_max_trials(bench: Bench) -> None:
    answers = [request(bench, "ask", timeout_s=60.0, tags=["lab"], notes="bench 4", key="run-7")]
    answers += [request(bench, "ask") for _ in range(4)]

    assert [(each.done, each.trial) for each in answers[:4]] == [(True, f"000{number}") for number in (1, 2, 3, 4)]
    assert not answers[4].done
    assert "all of max_trials=4 have begun; give one of your own" in answers[4].reason
    first = bench.trial(ONE)
    expected = RandomSearcher(SPACE, 1).suggest(ONE)  # type: ignore[arg-type]
    assert (first.config, first.status, first.outside, first.timeout_s) == (expected, TrialStatus.RUNNING, True, 60.0)
    assert (first.labels, first.key, first.attempt.worker) == ((("lab",), "bench 4"), "run-7", "outside")
    assert (bench.experiment.live, bench.experiment.running, bench.server.experiments[NAME].trials) == (0, 0, {})
    assert [event.request for event in bench.of(TrialStaged)[:1]] == [answers[0].id]


def test_who_tells_of_a_trial_need_not_know_what_is_constrained(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, metric=["loss", "latency <= 10"])
    request(bench, "ask")

    assert tell(bench, ONE, 0.5, ends=True).done
    assert bench.step().trial(ONE).status is TrialStatus.COMPLETED
    assert bench.driver.failure is None, "a constrained metric that nobody has told of is not taken for a mistake"
    assert bench.experiment.best is None


def test_who_asks_a_searcher_that_thinks_waits_for_its_answer(tmp_path: Path) -> None:
    class Slow(Searcher):
        thinks = True

        def suggest(self, trial: Any) -> Suggestion:
            return WAIT if self.thinks else {"lr": 0.5, "depth": 3}

    bench = bench_of(tmp_path, searcher=Slow)
    name = ask(bench, "ask")
    bench.step()
    assert bench.of(RequestAnswered) == []

    bench.searcher.thinks = False
    bench.step()

    assert answer(bench, name).trial == ONE


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


def test_a_result_that_is_told_again_counts_once(bench: Bench) -> None:
    row = {"config": {"lr": 0.5}, "metrics": {"loss": 0.125}}
    first = request(bench, "tell", id="same", **row)
    ask(bench, "tell", id="same", **row)
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

    assert "has training_iteration=2 after 3" in tell(bench, asked.trial, 0.5, 2, ends=False).reason
    assert tell(bench, asked.trial, 0.5, 3).done
    assert (bench.trial(ONE).status, bench.trial(ONE).reports) == (TrialStatus.COMPLETED, 1)
    assert tell(bench, asked.trial, 0.25).reason == "no further result is accepted: trial 0001 is COMPLETED"


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
    assert "no further result is accepted: trial 0002 is EARLY_STOPPED" in refused.reason


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
    bench = bench_of(tmp_path, slots=1, scheduler=Obedient)
    bench.backend.slots = 0
    bench.scheduler.decisions[ONE, 1] = Decision(Action.PAUSE, "one of the worst")
    bench.scheduler.choices.append(Resume(ONE, "copies the best", {"lr": 0.5, "depth": 3}))
    request(bench, "ask")
    tell(bench, ONE, 0.5, 1, ends=False)
    bench.backend.slots = 1
    bench.step()

    assert bench.trial(ONE).status is TrialStatus.EARLY_STOPPED
    assert bench.trial(ONE).reason.startswith("copies the best; nobody outside evaluates another config")


def test_a_trial_that_nobody_tells_of_in_time_fails_and_is_not_tried_again(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, max_failures=3)
    request(bench, "ask", timeout_s=60.0)
    request(bench, "ask")
    bench.clock.now += 59
    bench.step()
    assert bench.trial(ONE).status is TrialStatus.RUNNING

    bench.clock.now += 20
    bench.step()

    trial = bench.trial(ONE)
    assert trial.status is TrialStatus.FAILED
    assert trial.reason == "AttemptTimeout: nobody has told its result within its timeout_s of 60 s"
    assert (bench.trial(TWO).status, bench.experiment.to_retry) == (TrialStatus.RUNNING, [])


ONE_NUMBER = {"x": mqtune.uniform(0, 1)}


def never(config: dict[str, Any]) -> None:
    raise AssertionError("no worker runs anything here")


@contextlib.contextmanager
def opened(name: str, space: Any = ONE_NUMBER, **options: Any) -> Iterator[mqtune.Tuner]:
    tuner = tuner_on(mqtune.Simulated(lambda config: [], keep_journal=True), never, space, name=name, **options)
    with contextlib.closing(tuner):
        yield tuner


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
        with pytest.raises(InvalidTransition, match="no further result is accepted: trial 0001 is COMPLETED"):
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


def test_a_flood_of_requests_leaves_reports_their_turn(driven: Bench) -> None:
    asked = [ask(driven, "label", ONE, tags=[f"t{number}"]) for number in range(2 * AT_ONCE + 1)]

    driven.step()
    assert answered(driven) == asked[:AT_ONCE]
    driven.report(TWO, 0.5)
    assert driven.trial(TWO).reports == 1
    assert answered(driven) == asked[: 2 * AT_ONCE]
    driven.step()
    assert answered(driven) == asked


def test_a_script_that_asks_for_more_trials_again_and_again_gets_them(tmp_path: Path) -> None:
    driven = Bench(tmp_path, max_trials=1).step().start(ONE).end(ONE)

    for wanted, trial in ((2, TWO), (3, THREE)):
        driven.options["max_trials"] = wanted
        driven.begin()
        assert not driven.driver.is_finished
        driven.step().start(trial).end(trial)

    assert driven.driver.is_finished
