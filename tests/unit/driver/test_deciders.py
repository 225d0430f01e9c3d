"""Searchers, schedulers and rules: their notifications, their errors, and odd reports."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import Bench
from simulation import SPACE, Simulation, curve, simulate

from mqtune import ASHA, FIFO, PromotionASHA, RandomSearcher, Simulated
from mqtune.core.codec import pack_metrics, segment_bytes
from mqtune.core.errors import ConfigurationError, MetricMissing, MqtuneError, UserCodeFailed
from mqtune.core.events import DecisionTaken, TrialStaged
from mqtune.core.trial import CONTINUE, Action, Config, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.driver import Failures
from mqtune.journal import Segment
from mqtune.schedulers import BackgroundDecisions, Choice, PBTReplay, PolicyStep, Resume, Scheduler, Wait
from mqtune.schedulers.stopping import MaximumIteration, StopRule
from mqtune.search import Searcher
from mqtune.testing.waiting import eventually

ONE, TWO, THREE = "0001", "0002", "0003"


class Told(Searcher):
    """Suggests a number, and writes down each call."""

    adaptive = True

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def suggest(self, trial: TrialId) -> Config:
        self.calls.append(("suggest", trial))
        return {"lr": int(trial) / 10}

    def replay(self, trial: TrialId, config: Config) -> Config:
        self.calls.append(("replay", trial))
        return config

    def describe(self) -> dict[str, Any]:
        return {"searcher": "told"}


for hook in ("adopt", "on_queue", "on_report", "on_trial_pause", "on_attempt_end", "on_abandon", "on_trial_end"):
    noted = lambda told, trial, *_, hook=hook: told.calls.append((hook, getattr(trial, "id", trial)))  # noqa: E731
    setattr(Told, hook, noted)

CALLS = """
    on_queue 1, on_queue 2, on_report 1, on_trial_pause 1, on_attempt_end 2, on_queue 2, on_attempt_end 2, on_queue 2,
    on_queue 1, on_report 1, on_trial_end 1, on_abandon 2, on_trial_end 2,
    adopt 3, on_queue 3, on_report 3, on_trial_end 3
"""


def test_a_searcher_is_told_of_all_that_becomes_of_a_trial_also_by_a_driver_that_resumes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, searcher=Told, max_failures=3).step().start(ONE).start(TWO)
    bench.report(ONE, 3.0)
    bench.hand.trial(ONE).pause()
    bench.end(ONE)
    bench.fail(TWO).step().start(TWO)
    bench.lose(TWO).step().start(TWO)
    bench.hand.trial(ONE).resume()
    bench.start(ONE).report(ONE, 2.0)
    bench.end(ONE)
    bench.hand.trial(TWO).abandon()
    bench.end(TWO)
    bench.hand.add({"lr": 0.75})
    bench.start(THREE).report(THREE, 1.0)
    bench.end(THREE)
    expected = [(hook, f"000{number}") for hook, number in (call.split() for call in CALLS.split(","))]
    first = bench.searcher.calls
    bench.begin()

    assert [call for call in first if call[0] != "suggest"] == expected
    assert [call for call in first if call[0] == "suggest"] == [("suggest", ONE), ("suggest", TWO)]
    second = bench.searcher.calls
    assert [call for call in second if call[0] != "replay"] == expected
    # Each right before its trial is queued.
    assert second[:4] == [("replay", ONE), expected[0], ("replay", TWO), expected[1]]


class Undecided(FIFO):
    """Says of its trial, in the background, that it may go on."""

    def __init__(self) -> None:
        self.background = BackgroundDecisions(lambda: {TrialId(ONE): CONTINUE})


def test_a_trial_that_a_scheduler_lets_go_on_in_the_background_gets_no_decision(tmp_path: Path) -> None:
    bench = Bench(tmp_path, scheduler=Undecided).step().start(ONE)
    with contextlib.closing(bench.scheduler.background) as background:
        background.tell(lambda: None)
        eventually(lambda: bench.step() and not background.is_busy)

    assert bench.trial(ONE).decision is None


#: The methods of a scheduler, a searcher or a rule without a trial.
ASKED = ("choose", "suggest", "stops_experiment")


class Bug:
    """Raises in one method until corrected: at report 1 of trial 0003, or at its fourth call."""

    def __init__(self, method: str) -> None:
        self.method, self.is_there, self.asked, self.calls = method, True, 0, 0

    def within(self, kind: type[Any], who: bool) -> type[Any]:
        """Return a subclass that has it, if it is *who* has it."""

        def call(user: Any, *arguments: Any, **options: Any) -> Any:
            trial, report, *_ = *arguments, None, None
            self.asked += 1
            is_its = trial.id == "0003" if self.method not in ASKED else self.asked > 3
            if self.is_there and is_its and (self.method in ASKED or report is None or report.sequence == 1):
                self.calls += 1
                raise KeyError("accuracy")
            return getattr(kind, self.method)(user, *arguments, **options)

        return type(f"Buggy{kind.__name__}", (kind,), {self.method: call}) if who else kind


def fail(simulation: Simulation) -> MqtuneError:
    """Run until it fails, and end as a run does then, with all attempts requeued."""
    driver = simulation.driver()

    def drive() -> None:
        while not driver.is_finished:
            driver.step(10.0)

    with pytest.raises(MqtuneError) as caught:
        drive()
    assert driver.failure is caught.value
    driver.requeue_all("the driver failed")
    for _ in range(1000):
        if driver.is_finished:
            break
        driver.step(1.0)
    assert driver.is_finished
    driver.end("failed", "")
    driver.close()
    return caught.value


@pytest.mark.parametrize(
    ("who", "method"),
    [
        *(("scheduler", each) for each in ("on_queue", "on_report", "on_trial_pause", "on_trial_end", "choose")),
        *(("searcher", each) for each in ("on_report", "on_trial_end", "suggest")),
        *(("rule", each) for each in ("stops_trial", "on_trial_end", "stops_experiment")),
    ],
)
def test_the_error_names_who_failed_on_what_and_the_corrected_code_goes_on(who: str, method: str) -> None:
    bug = Bug(method)
    scheduler, searcher = bug.within(PromotionASHA, who == "scheduler"), bug.within(RandomSearcher, who == "searcher")
    simulation = Simulation(
        Simulated(curve(12), keep_journal=True, slots=3),
        scheduler=lambda: scheduler(9),
        searcher=lambda: searcher(SPACE, 0),
        max_trials=9,
    )

    def limited(rule: type[StopRule]) -> Simulation:
        simulation.stop = lambda: rule(10) if who == "rule" else None
        return simulation

    def outcome() -> list[Any]:
        return [(t.id, t.status, t.last_metrics, t.config) for t in simulation.experiment.trials.values()]

    error = fail(limited(bug.within(MaximumIteration, who == "rule")))

    assert isinstance(error, UserCodeFailed)
    assert f".{method} raised KeyError: 'accuracy'" in str(error)
    assert isinstance(error.__cause__, KeyError)
    if method in ("on_report", "stops_trial"):
        assert "report 1 of trial 0003, attempt 1" in str(error)
    elif method not in ASKED:
        assert "trial 0003" in str(error)
    assert bug.calls == 1, "what has failed is asked nothing more"

    # Run again as it is, it says the same and writes nothing that stands in the way.
    if method not in ASKED:
        with pytest.raises(UserCodeFailed, match=f"{method} raised KeyError"):
            fail(simulation)
    bug.is_there = False
    limited(MaximumIteration).run()

    assert len(simulation.experiment.trials) == 9
    assert all(trial.status.is_terminal for trial in simulation.experiment.trials.values())
    assert simulation.experiment.counts[TrialStatus.FAILED] == 0
    before = outcome()
    limited(MaximumIteration).driver()
    assert outcome() == before, "the next driver comes to the same"


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (None, r"Confused.on_report\(\) returned None; it may return"),
        (Decision("stop"), r"it may return"),  # type: ignore[arg-type]
        (Decision(Action.STOP, 5), "whose reason is not text"),  # type: ignore[arg-type]
        (Decision(Action.PAUSE, "", TrialId("0099")), "not a trial of the experiment"),
        (Decision(Action.ABANDON, ""), r"Confused.on_report\(\) returned the action abandon, which is for users only"),
    ],
)
def test_a_decision_that_makes_no_sense_is_refused_before_it_is_journaled(decision: Any, message: str) -> None:
    class Confused(ASHA):
        def on_report(self, trial: Trial, report: Report) -> Decision:
            return decision if report.sequence == 2 and is_confused else Decision(Action.CONTINUE)  # type: ignore[no-any-return]

    is_confused = True
    simulation = Simulation(Simulated(curve(3), keep_journal=True), scheduler=lambda: Confused(9))
    with pytest.raises(ConfigurationError, match=message):
        raise fail(simulation)
    is_confused = False

    simulation.run()

    assert simulation.experiment.counts[TrialStatus.COMPLETED] == 4
    assert not [e for e in simulation.events() if isinstance(e, DecisionTaken) and e.action != "hand_back"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (None, "return Start, Resume"),
        (Resume(TrialId("0099")), "there is no trial '0099'"),
        (Wait(7), "whose reason is not text"),  # type: ignore[arg-type]
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(choice: Any, message: str) -> None:
    class Confused(ASHA):
        def choose(self, *, can_start: bool) -> Choice:
            return choice  # type: ignore[no-any-return]

    with pytest.raises(ConfigurationError, match=message):
        raise fail(Simulation(Simulated(curve(3)), scheduler=lambda: Confused(9)))


@pytest.mark.parametrize("config", [7, "lr", {"lr": object()}])
def test_a_suggestion_that_makes_no_sense_is_refused(config: Any) -> None:
    class Confused(Searcher):
        def suggest(self, trial: TrialId) -> Config | None:
            return config  # type: ignore[no-any-return]

        def describe(self) -> dict[str, Any]:
            return {}

    simulation = Simulation(Simulated(curve(3)), searcher=Confused)
    with pytest.raises(ConfigurationError, match=r"Confused.suggest\(\) returned.*trial 0001"):
        raise fail(simulation)
    assert not [event for event in simulation.events() if isinstance(event, TrialStaged)]


def test_a_trial_that_a_person_starts_outside_a_policy_ruins_no_experiment(tmp_path: Path) -> None:
    policy = [PolicyStep(0, {"lr": 0.5, "depth": 3}), PolicyStep(2, {"lr": 0.25, "depth": 3})]
    bench = Bench(tmp_path, slots=1, max_trials=1, scheduler=lambda: PBTReplay(policy), searcher=Nothing)

    bench.hand.add({"lr": 0.1})
    bench.start("0001").report("0001", 0.9, 0.8, 0.7)

    assert bench.told("0001") == ""
    bench.begin()
    assert bench.trial("0001").config == {"lr": 0.1, "depth": 3}


class Nothing(Searcher):
    def suggest(self, trial: TrialId) -> Config | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {}


def waiting(folder: Path) -> Bench:
    """An open experiment with a trial that runs, whose driver takes nothing in by itself."""
    bench = Bench(folder, space=None, scheduler=FIFO, max_trials=None)
    bench.hand.add({"lr": 1.0})
    bench.start(ONE).is_away = True
    return bench


def ahead(bench: Bench, count: int = 9) -> list[tuple[str, int]]:
    return [(report.trial, report.sequence) for report in bench.driver.reports_ahead(count)]


@pytest.mark.parametrize("hands_out", [False, True])
def test_unreadable_reports_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, hands_out: bool) -> None:
    bench = waiting(tmp_path)
    bench.report(ONE, 3.0)
    damaged = segment_bytes(ONE, 1, 2, [pack_metrics(1.0, {"loss": 2.0}), b"\x07"])
    bench.worker.report([Segment(bench.claims[ONE], 2, 2, 1.0, damaged)])
    bench.sequences[ONE] = 3
    bench.report(ONE, 1.0)

    if hands_out:
        bench.driver.next_report(0)
        assert ahead(bench) == [(ONE, 2), (ONE, 4)]
        assert bench.experiment.unreadable == 0
        assert [bench.driver.next_report(0).sequence for _ in range(2)] == [2, 4]
        assert bench.driver.next_report(0) is None
    else:
        bench.driver.step(0)

    assert bench.experiment.unreadable == 1
    assert bench.trial().reports == 3
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1


NAN, INF = float("nan"), float("inf")


def odd_curve(odd: dict[str, Any]) -> Callable[[Config], Iterable[tuple[float, dict[str, Any]]]]:
    """Return a function whose third and fourth report are odd."""

    def reports(config: Config) -> Iterator[tuple[float, dict[str, Any]]]:
        for step in range(1, 10):
            metrics = {"loss": config["lr"] / step, "epoch": step, "accuracy": 0.1}
            if step in (3, 4):
                metrics = {key: value for key, value in {**metrics, **odd}.items() if value is not None}
            yield 1.0, metrics

    return reports


def test_nan_is_a_number_whose_place_is_the_schedulers_rule(caplog: pytest.LogCaptureFixture) -> None:
    simulation = simulate(odd_curve({"loss": NAN}), scheduler=lambda: ASHA(9, grace_period=3, time_attr="epoch"))

    assert simulation.used_scheduler.rung_sizes[0] == 4  # type: ignore[attr-defined]
    assert not caplog.records


def test_an_odd_value_is_said_once_for_each_trial_and_key(caplog: pytest.LogCaptureFixture) -> None:
    simulation = simulate(
        odd_curve({"loss": "low", "epoch": "late", "accuracy": "high"}),
        scheduler=lambda: ASHA(9, time_attr="epoch"),
        trials=2,
        stop=lambda: {"accuracy": 0.9},
        keep_journal=True,
    )

    said = {record.getMessage() for record in caplog.records}
    assert len(said) == len(caplog.records) == 6
    for key, kind, counts in (
        ("loss", "number", "loss"),
        ("epoch", "finite number", "loss"),
        ("accuracy", "number", "accuracy"),
    ):
        value = {"loss": "low", "epoch": "late", "accuracy": "high"}[key]
        assert (
            f"trial 0001: report 3 has {key}={value!r}, which is not a {kind}; it counts as a report without {counts!r}"
            in said
        )
    caplog.clear()
    simulation.driver()
    assert not caplog.records


def test_an_odd_report_fails_its_own_trial_if_that_is_asked_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=2, on_invalid_report="fail", max_failures=3).step().start(ONE).start(TWO)
    bench.report(ONE, 0.5)
    bench.report(TWO, 0.5)

    bench.report(ONE, "low")  # type: ignore[arg-type]
    bench.report(TWO, 0.4)

    assert (bench.trial(TWO).status, bench.told(ONE)) == (TrialStatus.RUNNING, "stop")
    bench.end(ONE)
    assert (bench.trial(ONE).status, len(bench.trial(ONE).attempts)) == (TrialStatus.FAILED, 1)
    assert bench.trial(ONE).reason == "trial 0001: report 2 has loss='low', which is not a number"
    (decision,) = bench.of(DecisionTaken)
    assert (decision.action, decision.by, decision.sequence) == ("fail", "driver", 2)
    assert bench.replayed().trials[ONE].status is TrialStatus.FAILED
    assert bench.driver.failure is None


def first_report(metrics: dict[str, Any], scheduler: Callable[[], Scheduler] = FIFO, **reading: Any) -> Simulation:
    def reports(config: Config) -> Iterator[tuple[float, dict[str, Any]]]:
        yield 1.0, metrics
        yield 10_000.0, {**metrics, "loss": 0.5, "epoch": 2}

    simulation = Simulation(Simulated(reports), scheduler=scheduler, max_trials=2, failures=Failures(**reading))
    return simulation.run()


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        (
            {"los": 0.5, "acc": 0.5},
            (
                r"metric='loss' is not in the first report, of trial 0001.*'los', 'acc'.*mean 'los'.*"
                r"or give failures=mqtune\.Failures\(metric_required='eventually'\)"
            ),
        ),
        ({"loss": 0.5, "epochs": 1}, r"time_attr='epoch' is not in the first report.*did you mean 'epochs'"),
    ],
)
def test_a_metric_or_time_that_the_first_report_lacks_ends_the_run(metrics: dict[str, Any], says: str) -> None:
    with pytest.raises(MetricMissing, match=says):
        first_report(metrics, lambda: ASHA(9, time_attr="epoch"))


@pytest.mark.parametrize("metrics", [{"note": "warming up"}, {"los": 0.5, "acc": 0.5}, {}])
def test_a_metric_may_come_later_if_that_is_said(metrics: dict[str, Any]) -> None:
    simulation = first_report(metrics, lambda: ASHA(2, time_attr="epoch"), metric_required="eventually")

    assert {trial.status for trial in simulation.experiment.trials.values()} == {TrialStatus.COMPLETED}


@pytest.mark.parametrize("others", [[{"loss": 0.5}, {"note": "validating"}], [{"loss": "?"}, {"loss": 0.5}]])
def test_a_metric_that_some_report_had_may_be_missing_from_others_or_no_number(others: list[dict[str, Any]]) -> None:
    simulation = simulate(lambda config: [(1.0, metrics) for metrics in others])

    assert simulation.experiment.counts[TrialStatus.COMPLETED] == 4
