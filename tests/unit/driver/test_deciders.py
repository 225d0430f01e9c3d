"""What searchers, schedulers and rules are told, and what becomes of their errors: who failed on what, and how the corrected code goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import Bench
from simulation import SPACE, Simulation, curve

from mqtune import ASHA, FIFO, PromotionASHA, RandomSearcher, Simulated
from mqtune.core.errors import ConfigurationError, MqtuneError, UserCodeFailed
from mqtune.core.events import DecisionTaken, DriverStarted, TrialStaged
from mqtune.core.trial import CONTINUE, Action, AttemptEnd, Config, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.driver import Limits
from mqtune.schedulers import BackgroundDecisions, Choice, PBTReplay, PolicyStep, Resume, Scheduler, Wait, as_rule
from mqtune.schedulers.stopping import MaximumIteration, StopRule
from mqtune.search import Searcher
from mqtune.testing.waiting import eventually

ONE, TWO, THREE = "0001", "0002", "0003"


class Told(Searcher):
    """Suggests a number, and writes down each call."""

    adaptive = True

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def suggest(self, trial: TrialId) -> Config:
        self.calls.append(("suggest", trial))
        return {"lr": int(trial) / 10}

    def replay(self, trial: TrialId, config: Config) -> Config:
        self.calls.append(("replay", trial, config["lr"]))
        return config

    def adopt(self, trial: TrialId, config: Config) -> None:
        self.calls.append(("adopt", trial, config["lr"]))

    def on_stage(self, trial: Trial) -> None:
        self.calls.append(("stage", trial.id, trial.attempt.number))

    def on_report(self, trial: Trial, report: Report) -> None:
        self.calls.append(("report", trial.id, report.metrics["loss"]))

    def on_trial_pause(self, trial: Trial) -> None:
        self.calls.append(("pause", trial.id))

    def on_attempt_end(self, trial: Trial) -> None:
        self.calls.append(("attempt ended", trial.id, len(trial.attempts)))

    def on_abandon(self, trial: Trial) -> None:
        self.calls.append(("abandon", trial.id))

    def on_trial_end(self, trial: Trial) -> None:
        self.calls.append(("end", trial.id, trial.status.name))

    def describe(self) -> dict[str, Any]:
        return {"searcher": "told"}


@pytest.fixture
def made() -> list[Told]:
    return []


@pytest.fixture
def bench(tmp_path: Path, made: list[Told]) -> Bench:
    def new() -> Told:
        made.append(Told())
        return made[-1]

    return Bench(tmp_path, searcher=new, max_failures=3)


def live_through(bench: Bench) -> list[tuple[Any, ...]]:
    """One trial that is paused, goes on, and completes; one that fails, is lost, and is abandoned; and one that a user adds."""
    bench.step().start(ONE).start(TWO)
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
    return [
        ("stage", ONE, 1),
        ("stage", TWO, 1),
        ("report", ONE, 3.0),
        ("pause", ONE),
        ("attempt ended", TWO, 1),
        ("stage", TWO, 2),
        ("attempt ended", TWO, 2),
        ("stage", TWO, 3),
        ("stage", ONE, 2),
        ("report", ONE, 2.0),
        ("end", ONE, "COMPLETED"),
        ("abandon", TWO),
        ("end", TWO, "ABANDONED"),
        ("adopt", THREE, 0.75),
        ("stage", THREE, 1),
        ("report", THREE, 1.0),
        ("end", THREE, "COMPLETED"),
    ]


def test_a_searcher_is_told_of_all_that_becomes_of_a_trial_also_by_a_driver_that_resumes(
    bench: Bench, made: list[Told]
) -> None:
    expected = live_through(bench)
    bench.begin()

    first, second = (told.calls for told in made)
    assert [call for call in first if call[0] != "suggest"] == expected
    assert [call for call in first if call[0] == "suggest"] == [("suggest", ONE), ("suggest", TWO)]
    assert [call for call in second if call[0] != "replay"] == expected
    # Each right before its trial is staged.
    assert second[:4] == [("replay", ONE, 0.1), expected[0], ("replay", TWO, 0.2), expected[1]]


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


@pytest.fixture
def one_trial(tmp_path: Path) -> Bench:
    return Bench(tmp_path, max_trials=1, slots=1)


def go_on_with(one_trial: Bench, stop: Any) -> Bench:
    """Have another driver go on, with this rule."""
    one_trial.driver.close()
    one_trial.options["stop"] = stop
    one_trial.begin()
    return one_trial.step()


def test_a_rule_that_is_new_ends_no_trial_by_what_it_reported_before(one_trial: Bench) -> None:
    one_trial.step().start().report("0001", 0.9, 0.5, 0.1)
    one_trial.end(end=AttemptEnd.LOST)
    one_trial.step().start().report("0001", 0.8)

    go_on_with(one_trial, {"training_iteration": 2})

    first, second = one_trial.of(DriverStarted)
    assert (first.changes, second.changes.keys(), second.cursor) == ({}, {"stop"}, one_trial.driver.cursor)
    trial = one_trial.trial()
    assert (trial.status, trial.reports, trial.late_reports) == (TrialStatus.RUNNING, 4, 0)
    one_trial.report("0001", 0.7)
    assert one_trial.trial().decision is not None


@pytest.mark.parametrize("seen", [True, False], ids=["the first driver saw it", "it came while nobody drove"])
def test_a_rule_that_is_new_cuts_no_results_backwards(one_trial: Bench, *, seen: bool) -> None:
    one_trial.step().start().report("0001", 0.9)
    if not seen:
        one_trial.driver.close()
    one_trial.is_away = not seen
    one_trial.report("0001", 0.5, 0.4, 0.3, 0.2)
    one_trial.is_away = False
    go_on_with(one_trial, lambda trial, report: report.sequence >= 2)

    assert (one_trial.trial().reports, one_trial.trial().late_reports, one_trial.trial().best_value) == (5, 0, 0.2)
    one_trial.report("0001", 0.1)
    one_trial.report("0001", 0.05)
    one_trial.end()
    assert (one_trial.trial().reports, one_trial.trial().late_reports) == (6, 1)
    assert one_trial.trial().status is TrialStatus.COMPLETED
    assert one_trial.replayed().trials[one_trial.trial().id].reports == 6


def test_a_rule_that_is_taken_away_leaves_what_it_has_ended_and_ends_no_more(tmp_path: Path) -> None:
    one_trial = Bench(tmp_path, max_trials=2, slots=2, stop={"training_iteration": 2})
    one_trial.step().start("0001").start("0002").report("0001", 0.9, 0.8)
    one_trial.end("0001")
    assert one_trial.trial("0001").status is TrialStatus.COMPLETED

    go_on_with(one_trial, None)

    one_trial.report("0002", 0.9, 0.8, 0.7)
    assert one_trial.trial("0002").decision is None
    assert one_trial.trial("0001").status is TrialStatus.COMPLETED
    assert one_trial.replayed().trials[one_trial.trial("0002").id].reports == 3


LENGTH = 12


class Bug:
    """Raises when it is asked about a certain thing, until it is corrected."""

    def __init__(self, method: str, trial: str = "0003", sequence: int = 2) -> None:
        self.method, self.trial, self.sequence = method, trial, sequence
        self.is_there = True
        self.calls = 0

    def bites(self, method: str, *arguments: Any) -> None:
        if not self.is_there or method != self.method:
            return
        trial, report = arguments if len(arguments) > 1 else (*arguments, None)
        if (trial is None or trial.id == self.trial) and (report is None or report.sequence == self.sequence):
            self.calls += 1
            raise KeyError("accuracy")


def buggy(kind: type[Any], bug: Bug, *methods: str) -> type[Any]:
    """Return a subclass with these methods, which raise where the bug is."""

    def overriding(method: str) -> Any:
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            counted = getattr(self, "asked", 0)
            if method in ("choose", "suggest", "stops_experiment"):
                self.asked = counted + 1
                if self.asked > 3:
                    bug.bites(method, None)
            else:
                bug.bites(method, *arguments)
            return getattr(kind, method)(self, *arguments, **options)

        return call

    return type(f"Buggy{kind.__name__}", (kind,), {method: overriding(method) for method in methods})


SCHEDULER = ("on_stage", "on_report", "on_trial_pause", "on_trial_end", "choose", "on_abandon")

SEARCHER = ("on_report", "on_trial_end", "suggest")

RULE = ("stops_trial", "on_trial_end", "stops_experiment")


def simulation_of(
    bug: Bug,
    *,
    scheduler: bool = False,
    searcher: bool = False,
    rule: bool = False,
    base: Callable[[], Scheduler] | None = None,
) -> Simulation:
    make = buggy(PromotionASHA, bug, *SCHEDULER) if scheduler else PromotionASHA
    seek: Any = buggy(RandomSearcher, bug, *SEARCHER) if searcher else RandomSearcher
    simulation = Simulation(
        Simulated(curve(LENGTH), keep_journal=True, slots=3),
        scheduler=base or (lambda: make(9)),
        searcher=lambda: seek(SPACE, 0),
        limits=Limits(max_trials=9),
    )
    if rule:
        simulation.limits = Limits(max_trials=9, rule=bound(buggy(MaximumIteration, bug, *RULE)(10)))
    return simulation


def bound(rule: StopRule) -> StopRule:
    rule.bind("loss", "min")
    return rule


def fail(simulation: Simulation) -> MqtuneError:
    """Run until it fails, and end as a run does then: attempts are handed back, and the driver is done."""
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


def outcome(simulation: Simulation) -> dict[TrialId, tuple[TrialStatus, int, Config]]:
    return {
        t.id: (t.status, int(t.last_metrics.get("training_iteration", 0)), t.config)
        for t in simulation.experiment.trials.values()
    }


CASES = [
    *(
        ("scheduler", method, bad)
        for method, bad in zip(SCHEDULER[:5], ("0003", "0003", "0003", "0003", ""), strict=True)
    ),
    *(("searcher", method, "0003") for method in SEARCHER),
    *(("rule", method, "0003") for method in RULE),
]


@pytest.mark.parametrize(("who", "method"), [case[:2] for case in CASES])
def test_the_error_names_who_failed_on_what_and_the_corrected_code_goes_on(who: str, method: str) -> None:
    bug = Bug(method, sequence=1)
    simulation = simulation_of(bug, **{who: True})  # type: ignore[arg-type]

    error = fail(simulation)

    assert isinstance(error, UserCodeFailed)
    assert f".{method} raised KeyError: 'accuracy'" in str(error)
    assert isinstance(error.__cause__, KeyError)
    if method in ("on_report", "stops_trial"):
        assert "report 1 of trial 0003, attempt 1" in str(error)
    elif method not in ("choose", "stops_experiment"):
        assert "trial 0003" in str(error) or method == "suggest"
    assert bug.calls == 1, "what has failed is asked nothing more"

    # Run again as it is, it says the same and writes nothing that stands in the way.
    if method not in ("choose", "suggest", "stops_experiment"):
        with pytest.raises(UserCodeFailed, match=f"{method} raised KeyError"):
            fail(simulation)
    bug.is_there = False
    simulation.limits = Limits(max_trials=9, rule=bound(MaximumIteration(10)) if who == "rule" else None)
    simulation.run()

    assert len(simulation.experiment.trials) == 9
    assert all(trial.status.is_terminal for trial in simulation.experiment.trials.values())
    assert simulation.experiment.counts[TrialStatus.FAILED] == 0
    assert_replays(simulation)


def assert_replays(simulation: Simulation) -> None:
    """The next driver comes to the same."""
    before = outcome(simulation)
    rule = simulation.limits.rule
    simulation.limits = Limits(max_trials=9, rule=None if rule is None else bound(MaximumIteration(10)))
    simulation.driver()
    assert outcome(simulation) == before


def test_what_was_decided_on_a_report_that_failed_is_decided_by_the_next_driver() -> None:
    """Nothing of it is half done: the report is the first thing that the corrected scheduler sees."""
    seen: list[tuple[str, int, int]] = []
    is_corrected = False

    class Stopping(ASHA):
        def on_report(self, trial: Trial, report: Report) -> Decision:
            seen.append((trial.id, report.attempt, report.sequence))
            if trial.id == "0001" and report.sequence == 3:
                if not is_corrected:
                    raise ValueError("oh")
                return Decision(Action.STOP, "three are enough")
            return Decision(Action.CONTINUE)

    simulation = Simulation(
        Simulated(curve(5), keep_journal=True, slots=2), scheduler=lambda: Stopping(99), limits=Limits(max_trials=2)
    )
    fail(simulation)
    failed_at = len(seen)
    assert seen[-1] == ("0001", 1, 3)
    is_corrected = True
    seen.clear()

    simulation.run()

    assert seen[failed_at - 1] == ("0001", 1, 3)
    assert simulation.experiment.trials[TrialId("0001")].status is TrialStatus.EARLY_STOPPED
    assert simulation.experiment.trials[TrialId("0001")].reason == "three are enough"
    assert simulation.experiment.trials[TrialId("0002")].status is TrialStatus.COMPLETED
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (None, r"Confused.on_report\(\) returned None; it may return"),
        (Decision("stop"), r"it may return"),  # type: ignore[arg-type]
        (Decision(Action.STOP, 5), "whose reason is not text"),  # type: ignore[arg-type]
        (Decision(Action.PAUSE, "", TrialId("0099")), "no such trial"),
        (Decision(Action.ABANDON, ""), r"Confused.on_report\(\) wants trials to abandon, which only a user may"),
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
        (None, "may return Start"),
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


def test_a_rule_that_says_only_yes_has_a_reason() -> None:
    """What the journal says of it can be read again."""

    class Yes(StopRule):
        def stops_trial(self, trial: Trial, report: Report) -> str:
            return report.sequence == 2  # type: ignore[return-value]

        def describe(self) -> dict[str, Any]:
            return {}

    simulation = Simulation(Simulated(curve(3), keep_journal=True), limits=Limits(max_trials=2, rule=bound(Yes())))
    simulation.run()
    simulation.driver()

    assert {t.reason for t in simulation.experiment.trials.values()} == {"Yes says so"}


def test_a_function_that_fails_names_the_report() -> None:
    limits = Limits(max_trials=1, rule=bound(as_rule(lambda trial, report: report.metrics["accuracy"] > 1)))  # type: ignore[arg-type]
    error = fail(Simulation(Simulated(curve(3)), limits=limits))

    assert "failed on report 1 of trial 0001: KeyError: 'accuracy'" in str(error)


def test_a_trial_that_a_person_starts_outside_a_policy_ruins_no_experiment(tmp_path: Path) -> None:
    """It was refused behind its staging, and each later driver met it in the journal."""
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


# What may be journaled at all.


def test_nothing_is_journaled_that_could_not_be_read_again(tmp_path: Any) -> None:
    bench = Bench(tmp_path).step().start("0001")
    before = len(bench.events())
    trial = bench.hand.trial("0001")
    for call in (trial.stop, trial.abandon):
        with pytest.raises((TypeError, ConfigurationError), match="reason"):
            call(5)  # type: ignore[arg-type]

    assert len(bench.events()) == before
    assert bench.trial("0001").status is TrialStatus.RUNNING
    bench.replayed()
