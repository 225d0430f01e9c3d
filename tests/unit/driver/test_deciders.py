"""What searchers, schedulers and rules are told, and what becomes of their errors: who failed on what, and how the corrected code goes on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from bench import Bench
from simulation import SPACE, Simulation, curve

from mqtune import ASHA, FIFO, PromotionASHA, RandomSearcher, Simulated
from mqtune.core.errors import ConfigurationError, MqtuneError, UserCodeFailed
from mqtune.core.events import DecisionTaken, TrialStaged
from mqtune.core.trial import CONTINUE, Action, Config, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.driver import Limits
from mqtune.schedulers import BackgroundDecisions, Choice, PBTReplay, PolicyStep, Resume, Wait, as_rule
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


for hook in ("adopt", "on_stage", "on_report", "on_trial_pause", "on_attempt_end", "on_abandon", "on_trial_end"):
    noted = lambda told, trial, *_, hook=hook: told.calls.append((hook, getattr(trial, "id", trial)))  # noqa: E731
    setattr(Told, hook, noted)

CALLS = """
    on_stage 1, on_stage 2, on_report 1, on_trial_pause 1, on_attempt_end 2, on_stage 2, on_attempt_end 2, on_stage 2,
    on_stage 1, on_report 1, on_trial_end 1, on_abandon 2, on_trial_end 2,
    adopt 3, on_stage 3, on_report 3, on_trial_end 3
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
    # Each right before its trial is staged.
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


#: What a scheduler, a searcher or a rule is asked without a trial.
ASKED = ("choose", "suggest", "stops_experiment")


class Bug:
    """Raises in one method until it is corrected: at the first report of trial 0003, or when it is asked again and again."""

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


@pytest.mark.parametrize(
    ("who", "method"),
    [
        *(("scheduler", each) for each in ("on_stage", "on_report", "on_trial_pause", "on_trial_end", "choose")),
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
    )

    def limited(rule: type[StopRule]) -> Simulation:
        simulation.limits = Limits(max_trials=9, rule=bound(rule(10)) if who == "rule" else None)
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


def test_a_function_that_fails_names_the_report() -> None:
    limits = Limits(max_trials=1, rule=bound(as_rule(lambda trial, report: report.metrics["accuracy"] > 1)))  # type: ignore[arg-type]
    error = fail(Simulation(Simulated(curve(3)), limits=limits))

    assert "failed on report 1 of trial 0001: KeyError: 'accuracy'" in str(error)


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
