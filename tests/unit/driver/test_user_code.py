"""A user's scheduler, searcher, stop rule or callback that raises: who, on what, and that the corrected code goes on."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import Bench
from simulation import SPACE, Simulation, curve

import mqtune
from mqtune.backends import Simulated
from mqtune.core.errors import ConfigurationError, MqtuneError, UserCodeFailed
from mqtune.core.events import DecisionTaken, TrialStaged
from mqtune.core.trial import Action, Config, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.driver import Limits
from mqtune.schedulers.asha import ASHA, PromotionASHA
from mqtune.schedulers.base import Choice, Resume, Scheduler, Wait
from mqtune.schedulers.policy import PBTReplay, PolicyStep
from mqtune.schedulers.stopping.rule import StopRule, as_rule
from mqtune.schedulers.stopping.trial_rules import MaximumIteration
from mqtune.search.base import Searcher
from mqtune.search.random import RandomSearcher

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


SCRIPT = """
import mqtune

def train(config):
    pass

class Mine(mqtune.FIFO):
    def on_report(self, trial, report):
        return self.judge(report)

    def judge(self, report):
        return report.metrics["accuracy"]  # the mistake

reports = [{"seconds": 1.0, "lr": 0.5, "loss": 0.5}]
mqtune.Tuner(
    train, {"lr": 0.5}, metric="loss", mode="min", scheduler=Mine(), backend=mqtune.Simulated(reports),
    run=mqtune.RunOptions(progress=False),
).run()
"""


def test_a_script_ends_with_the_place_of_the_mistake_and_one_line(tmp_path: Path, mqtune_home: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)

    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1
    assert lines[-1].startswith(
        "mqtune: UserCodeFailed: Mine.on_report raised KeyError: 'accuracy' (report 1 of trial 0001"
    )
    assert '    return report.metrics["accuracy"]  # the mistake' in lines
    assert not [line for line in lines if "mqtune/driver/loop.py" in line]


@pytest.mark.parametrize(
    ("make", "mistake", "meant"),
    [
        (mqtune.Tuner, "num_samples", "max_trials"),
        (mqtune.Tuner, "max_trails", "max_trials"),
        (mqtune.RunOptions, "max_concurent", "max_concurrent"),
    ],
)
def test_a_mistake_in_an_argument_is_named_with_what_may_be_meant(
    make: Callable[..., Any], mistake: str, meant: str
) -> None:
    given = (curve, {}) if make is mqtune.Tuner else ()

    with pytest.raises(ConfigurationError, match=f"^{make.__name__} has no argument '{mistake}'; do you mean {meant}="):
        make(*given, **{mistake: 3})


@pytest.mark.parametrize(
    ("find", "meant"),
    [
        (lambda: mqtune.ASHAScheduler, "mqtune.ASHA(max_t=…)"),
        (lambda: mqtune.TuneConfig, "the arguments metric=, mode="),
        (lambda: mqtune.create_study, "mqtune.Tuner(…)"),
        (lambda: space_tuner().fit, "tuner.run()"),
        (lambda: space_tuner().optimize, "tuner.run()"),
        (lambda: space_tuner().results().get_best_result, "results.best"),
        (lambda: space_tuner().results().trials_dataframe, "results.dataframe()"),
    ],
)
def test_an_attribute_that_another_library_has_is_named_as_it_is_called_here(
    find: Callable[[], Any], meant: str
) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"do you mean {meant}")):
        find()


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("mqtune.ASHA(max_t=-9)", "mqtune: ConfigurationError: ASHA: max_t=-9"),
        ("mqtune.uniform(1, 0)", "mqtune: SpaceError: uniform: low=1"),
    ],
)
def test_a_mistake_before_there_is_a_tuner_ends_a_script_with_one_line(tmp_path: Path, mistake: str, said: str) -> None:
    script = tmp_path / "tune.py"
    script.write_text(f"import mqtune\n{mistake}\n")

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)

    (line,) = done.stderr.splitlines()
    assert line.startswith(said)
    assert line.endswith("(tune.py, line 2)")


def test_an_attribute_that_nobody_has_is_an_error_without_a_guess() -> None:
    for owner in (mqtune, space_tuner(), space_tuner().results()):
        with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
            _ = owner.nothing


def space_tuner(**options: Any) -> Any:
    given = {"metric": "loss", "mode": "min", "backend": Simulated(curve(1)), **options}
    return mqtune.Tuner(curve, {"x": mqtune.uniform(0, 1)}, **given)


@pytest.mark.parametrize(
    ("make", "meant"),
    [
        (lambda: space_tuner(tune_config={}), "metric=, mode=, max_trials=, searcher= and scheduler=?"),
        (lambda: space_tuner(run_config={}), "name=, stop=, checkpoints=, failures= and run=?"),
        (lambda: space_tuner(searcher=object()), "OptunaSearcher(…)"),
        (lambda: mqtune.RunOptions(name="x"), "do you mean Tuner(name=…)?"),
        # A beginning comes before letters that are similar by chance.
        (lambda: mqtune.ASHA(max_t=9, grace=1), "ASHA has no argument 'grace'; do you mean grace_period=?"),
        (lambda: mqtune.ASHA(max_t=9, metric="loss"), "ASHA has no argument 'metric'; do you mean Tuner(metric=…)?"),
        (lambda: mqtune.MedianStopping(n_warmup_steps=3), "do you mean grace_period=?"),
        (lambda: mqtune.WilcoxonStopping(n_warmup_steps=3), "it has 'p_threshold'"),
        (lambda: mqtune.TargetReached(0.3, mode="min"), "do you mean Tuner(mode=…)?"),
        (lambda: mqtune.uniform(1e-4, 1, log=True), "do you mean mqtune.loguniform(low, high)"),
        (lambda: mqtune.randint(0, 8, step=2), "mqtune.qrandint(low, high, q)?"),
        (lambda: mqtune.Resources(gpu=1), "do you mean gpus=?"),
        (lambda: mqtune.Resources(GPU=1), "do you mean gpus=?"),
        (lambda: mqtune.Checkpoints(num_to_keep=2), "do you mean keep_last=?"),
    ],
)
def test_what_another_library_calls_otherwise_is_named_as_it_is_called_here(
    make: Callable[[], Any], meant: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(meant)):
        make()


def test_a_rule_without_a_constructor_takes_no_arguments() -> None:
    class Bare(StopRule):
        pass

    assert isinstance(Bare(), StopRule)
    for given, options in (((3,), {}), ((), {"patience": 3})):
        with pytest.raises(TypeError, match=r"Bare\(\) takes no arguments"):
            Bare(*given, **options)


@pytest.mark.parametrize("kind", [mqtune.Resources, mqtune.RunOptions, mqtune.ASHA, mqtune.TargetReached])
def test_help_shows_the_arguments_of_a_class_that_refuses_others(kind: type) -> None:
    parameters = inspect.signature(kind).parameters.values()

    assert parameters
    assert not any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters)


def test_a_list_in_a_space_is_a_constant_and_said_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    def given(space: dict[str, Any]) -> str:
        caplog.clear()
        mqtune.Tuner(curve, space, metric="loss", mode="min", backend=Simulated(curve(1)))
        return caplog.text

    assert "the list [0.1, 0.2] as 'lr' in each trial; to try its values write mqtune.choice([0.1, 0.2])" in given(
        {"lr": [0.1, 0.2]}
    )
    assert given({"lr": (0.1, 0.2), "layers": [64, 64], "x": mqtune.choice([1, 2])}) == ""


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
