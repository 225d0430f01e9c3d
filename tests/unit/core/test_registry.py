"""Schedulers, searchers, stop rules and spaces can be rebuilt from their descriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mqtune
from mqtune import GridSearcher, InitialPoints, RandomSearcher, Space
from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import ConfigurationError
from mqtune.core.registry import described
from mqtune.core.trial import TrialId
from mqtune.schedulers import MetricBounds, PolicyStep, Scheduler, as_rule
from mqtune.schedulers.stopping import StopRule
from mqtune.search import Searcher, searcher_of

SPACE = Space(
    {
        "lr": mqtune.loguniform(1e-9, 0.1 + 0.2),
        "net": {"width": mqtune.qrandint(8, 99, 7), "kind": mqtune.choice(["a", [1, {"b": None}], b"\x00", True])},
        "depth": mqtune.grid_search([1, 2.5, "x"]),
        "nothing": {},
        "fixed": [1, {"a": 2}],
    }
)
#: The space that a Repeater over the kind gives to its other searcher.
REST = SPACE.fixed("net/kind", "a")

#: Each class with all its arguments, and classes whose defaults depend on arguments.
SCHEDULERS: list[Callable[[], Scheduler]] = [
    mqtune.FIFO,
    lambda: mqtune.FIFO(batch=8),
    lambda: mqtune.ASHA(81),
    lambda: mqtune.ASHA(max_t=1.1, grace_period=0.1, reduction_factor=1.5, time_attr="züge", brackets=2),
    lambda: mqtune.PromotionASHA(max_t=2**60, grace_period=3, reduction_factor=2, cost="time_total_s", most_paused=50),
    lambda: mqtune.PromotionASHA(81, brackets=2, stop_last_trials=False),
    lambda: mqtune.RUSH(81, 3, reduction_factor=4, time_attr="epoch"),
    lambda: mqtune.MOASHA(81, brackets=2, time_attr="epoch"),
    lambda: mqtune.PASHA(81, grace_period=3, reduction_factor=4, time_attr="epoch"),
    lambda: mqtune.HyperBand(9, brackets=1, scope="last-5-avg"),
    lambda: mqtune.HyperBand(49, reduction_factor=7, grace_period=0.5, stop_last_trials=False),
    mqtune.MedianStopping,
    lambda: mqtune.MedianStopping(
        grace_period=2.5, interval=0.3, min_samples=1, time_attr="epoch", cutoff=0.3, min_run_s=60
    ),
    lambda: mqtune.MedianStopping(against="completed", min_completed=5),
    mqtune.WilcoxonStopping,
    lambda: mqtune.WilcoxonStopping(p_threshold=0.05, min_samples=5, paired_by="fold"),
    lambda: mqtune.PBT(
        4,
        {
            "lr": mqtune.loguniform(1e-4, 1),
            "list": [1, 2, "x"],
            "net": {"width": mqtune.qrandint(8, 64, 8), "noise": mqtune.normal(0, 0.1)},
        },
        quantile_fraction=0.5,
        resample_probability=0,
        perturbation_factors=(1.5,),
        grace_period=0.1,
        seed=-3,
        population_size=12,
        synchronous=True,
        time_attr="t",
    ),
    lambda: mqtune.schedulers.PBTReplay(
        [PolicyStep(0, {"lr": 0.1}), PolicyStep(2.5, {"lr": 0.2, "net": {"width": 8}})]
    ),
]

RULES: list[Callable[[], StopRule]] = [
    lambda: mqtune.TimeLimit(0.5, count="trial_time"),
    lambda: mqtune.schedulers.stopping.TrialsStarted(1),
    lambda: mqtune.schedulers.stopping.TrialsCompleted(2),
    lambda: mqtune.schedulers.stopping.TrialsFailed(3),
    lambda: mqtune.schedulers.stopping.TrialsEnded(4),
    lambda: mqtune.schedulers.stopping.ReportsReceived(500),
    lambda: mqtune.TargetReached(-1e-300),
    lambda: mqtune.ExperimentPlateau("accuracy", std=0, top=2, patience=7, mode="max"),
    lambda: MetricBounds({"loss": 0.1 + 0.2, "training_iteration": 9}),
    lambda: mqtune.MetricMaximum("loss", 1e9),
    lambda: mqtune.schedulers.stopping.MaximumIteration(5),
    lambda: mqtune.TrialDiverged("gradient_norm"),
    lambda: mqtune.TrialPlateau(),
    lambda: mqtune.TrialPlateau("accuracy", std=0, num_results=2, grace_period=0),
    lambda: mqtune.TrialPlateau("accuracy", metric_threshold=0.9, mode="max"),
    lambda: mqtune.TrialPlateau(num_results=1, min_delta=0),
    lambda: mqtune.TimeLimit(5) | {"loss": 1} | mqtune.TargetReached(0),
    lambda: mqtune.schedulers.stopping.MaximumIteration(5) & (mqtune.TrialPlateau() | mqtune.MetricMaximum("x", 2)),
]

SEARCHERS: list[Callable[[], Searcher]] = [
    lambda: RandomSearcher(Space({"own": mqtune.uniform(-1, 1)}), 2**40),
    lambda: GridSearcher(SPACE, 1),
    lambda: InitialPoints([{"lr": 0.1}, {}], RandomSearcher(SPACE, 7), space=SPACE, seed=3),
    lambda: mqtune.Repeater("depth"),
    lambda: mqtune.Repeater("net/kind", InitialPoints([{"lr": 0.1}], GridSearcher(REST, 7), space=REST, seed=3)),
    lambda: InitialPoints([{"depth": 2.5}], mqtune.Repeater("net/width"), space=SPACE, seed=3),
    lambda: InitialPoints(
        [{"depth": 2.5}], InitialPoints([], GridSearcher(SPACE, 7), space=SPACE), space=SPACE, seed=3
    ),
]


def travelled(value: Any) -> Any:
    return decode_value(encode_value(value))


@pytest.mark.parametrize(
    ("kind", "make"), [*((Scheduler, each) for each in SCHEDULERS), *((StopRule, each) for each in RULES)]
)
@pytest.mark.parametrize("is_bound", [False, True])
def test_every_rule_is_rebuilt_from_its_description(kind: type[Any], make: Callable[[], Any], is_bound: bool) -> None:
    made = make()
    if is_bound:
        made.bind("loss", "min")
    description = travelled(described(made))

    again = kind.rebuild(description)

    assert type(again) is type(made)
    assert travelled(described(again)) == description
    again.bind("loss", "min")


@pytest.mark.parametrize("make", SEARCHERS)
def test_every_searcher_is_made_again_from_its_description_and_suggests_the_same(make: Callable[[], Searcher]) -> None:
    searcher = make()
    description = travelled(described(searcher))

    again = searcher_of(description, SPACE)

    assert type(again) is type(searcher)
    assert travelled(described(again)) == description
    for each in (searcher, again):
        each.bind(SPACE, 5, metric="loss", mode="min")
    assert [again.suggest(TrialId("0001")) for _ in range(9)] == [searcher.suggest(TrialId("0001")) for _ in range(9)]


def subclasses(kind: type) -> set[type]:
    return {each for sub in kind.__subclasses__() for each in ({sub} | subclasses(sub))}


@pytest.mark.parametrize(("kind", "examples"), [(Scheduler, SCHEDULERS), (Searcher, SEARCHERS), (StopRule, RULES)])
def test_no_built_in_is_left_out(kind: type, examples: list[Callable[[], Any]]) -> None:
    packages = mqtune, mqtune.schedulers, mqtune.schedulers.stopping, mqtune.search
    public = {getattr(package, name) for package in packages for name in package.__all__} | {MetricBounds}
    built_in = {each for each in subclasses(kind) if each in public}

    assert built_in - {type(make()) for make in examples} == set()


class MyASHA(mqtune.ASHA):
    pass


class MyRandom(RandomSearcher):
    pass


class MyBound(mqtune.schedulers.stopping.MaximumIteration):
    pass


@pytest.mark.parametrize(
    ("rebuild", "thing", "what"),
    [
        (Scheduler.rebuild, MyASHA(9), "the scheduler is an object of your own class .*:MyASHA"),
        *(
            (lambda d: searcher_of(d, SPACE), searcher, "the searcher is an object of your own class .*:MyRandom")
            for searcher in (MyRandom(SPACE), InitialPoints([], MyRandom(SPACE), space=SPACE))
        ),
        (StopRule.rebuild, MyBound(3) | {"loss": 1}, "the rule is an object of your own class .*:MyBound"),
        (StopRule.rebuild, as_rule(lambda trial, report: False), "the rule is a function of yours, .*<lambda>"),
        (
            Scheduler.rebuild,
            mqtune.PBT(1, {"lr": [1, 2]}, explore=dict),
            "the scheduler 'pbt' explores with a function",
        ),
        (
            lambda d: searcher_of(d, SPACE),
            RandomSearcher(Space({"a": 1, "b": mqtune.sample_from(lambda config: config["a"])})),
            r"b: sample_from\(.*\) can't be made without your code",
        ),
    ],
)
def test_what_only_the_users_code_can_make_is_said(rebuild: Callable[[Any], Any], thing: Any, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        rebuild(travelled(described(thing)))


class MyForgetfulRule(StopRule):
    def __init__(self, patience: int) -> None:
        pass


def test_an_argument_that_is_not_kept_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"MyForgetfulRule has no attribute _patience; .* or define describe"):
        MyForgetfulRule(3).describe()


@pytest.mark.parametrize(
    "description",
    [{"scheduler": "of tomorrow"}, {}, {"scheduler": "asha"}, {"scheduler": "asha", "max_t": 9, "speed": 2}],
)
def test_a_description_of_another_version_is_a_clear_error(description: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="version of mqtune"):
        Scheduler.rebuild(description)
