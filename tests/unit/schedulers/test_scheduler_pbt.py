"""Population-based training: its exploration, its policies and their replay."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from population_table import MUTATIONS, curve, pbt, population, starting
from scheduler_play import Faults, Play, rngs, some_faults
from scheduler_table import Table, bound

from mqtune import PBT, Space, choice, lograndint, normal, qlograndint, qrandint, qrandn, quniform, randint, uniform
from mqtune.core.errors import ConfigurationError, SpaceError
from mqtune.core.events import START as BEGINNING, CheckpointSaved, Reports, TrialStaged
from mqtune.core.trial import CONTINUE, Action, CheckpointId, Config, Report, SavedCheckpoint, TrialId
from mqtune.schedulers import Exploration, PBTReplay, PolicyStep, Release, policy_of

NAN = math.nan


def test_where_nobody_knows_how_far_a_checkpoint_is_the_first_report_only_shows_it() -> None:
    table = population()
    table.stage("a", "b")
    for now in range(1, 8):
        table.report("a", now, 1)
    table.report("b", 2, 2)
    table.pause("b")
    saved = table.trials["a"].checkpoints
    saved.update({name: SavedCheckpoint(name, 0.0, {"loss": 1}) for name in saved})
    table.stage("b", config=table.resumed().config, source="a")

    assert table.report("b", 8, 9, sequence=1) is CONTINUE
    assert table.report("b", 9, 9, sequence=2) is CONTINUE
    assert table.report("b", 10, 9, sequence=3).action is Action.PAUSE


def explored(domain: Any, value: Any, seed: int = 0, **arguments: Any) -> Any:
    exploration = Exploration(
        {"x": domain}, **{"resample_probability": 0, "factors": (1.2, 0.8), "explore": None, **arguments}
    )
    return exploration({"x": value}, random.Random(seed))["x"]


@pytest.mark.parametrize(
    ("domain", "value", "expected"),
    [
        (uniform(0, 1), 0.9, (1.0, 0.72)),
        (uniform(-1, 0), -0.5, (-0.6, -0.4)),
        (randint(1, 100), 2, (3, 1)),
        (randint(1, 100), 1, (2, 1)),
        (randint(-9, 9), -2, (-3, -1)),
        (lograndint(1, 8), 8, (8, 6)),
        (qrandint(8, 64, 8), 16, (24, 8)),
        (quniform(0, 1, 0.1), 0.3, (0.4, 0.2)),
        (normal(0, 1), 5.0, (6.0, 4.0)),
        (qrandn(0, 1, 0.5), 5.0, (6.0, 4.0)),
        (qrandn(0, 1, 0.5), -0.5, (-1.0, 0.0)),
        (qlograndint(8, 64, 8), 16, (24, 8)),
        ([16, 32, 64], 16, (16, 32)),
        (choice(["relu", "tanh", "gelu"]), "gelu", ("tanh", "gelu")),
        ((True, False), True, (True, False)),
    ],
)
def test_a_value_moves_to_one_near_it_in_its_domain(domain: Any, value: Any, expected: tuple[Any, Any]) -> None:
    found = [explored(domain, value, seed) for seed in range(40)]

    for result in found:
        assert any(result == (pytest.approx(each) if isinstance(each, float) else each) for each in expected)
        assert type(result) is type(value)
    assert len(set(found)) == 2


@pytest.mark.parametrize("domain", [uniform(0, 1), randint(0, 9), normal(0, 1), [1, 2, 3]])
@pytest.mark.parametrize("value", ["text", None, [1], NAN])
def test_a_value_that_can_not_be_changed_is_drawn_anew(domain: Any, value: Any) -> None:
    assert len({explored(domain, value, seed) for seed in range(30)}) > 2


def test_what_is_not_named_stays_and_what_is_missing_is_left_out() -> None:
    exploration = Exploration(
        {"deep": {"x": [1, 2], "gone": [1]}, "away": {"y": [1]}, "flat": {"z": [3, 4]}},
        resample_probability=1,
        factors=(1.2,),
        explore=None,
    )
    config = {"deep": {"x": 5, "other": 7}, "flat": 3, "list": [1]}

    assert exploration(config, random.Random(0)) in (
        {"deep": {"x": x, "other": 7}, "flat": 3, "list": [1]} for x in (1, 2)
    )
    assert config == {"deep": {"x": 5, "other": 7}, "flat": 3, "list": [1]}


def test_a_function_of_the_users_own_has_the_last_word() -> None:
    def explore(config: Config) -> Config:
        config["batch"] = (1, 2)
        return config

    table = population(hyperparam_mutations=None, explore=explore)
    table.stage("a", "b")
    table.report("a", 2, 1)
    table.report("b", 2, 2)
    table.pause("b")

    assert table.scheduler.describe()["explore"].endswith(".explore")
    assert table.resumed().config == {"lr": 0.5, "batch": [1, 2]}
    assert table.trials["a"].config == {"lr": 0.5}


def _raise(config: Config) -> Config:
    raise KeyError("lr")


@pytest.mark.parametrize(
    ("explore", "message"),
    [
        (_raise, "PBT: explore=_raise raised KeyError: 'lr'"),
        (lambda config: None, "returned None, which is not a config"),
        (lambda config: {"x": object()}, "what explore=.* returned/x: .* can't be sent to a worker"),
    ],
)
def test_a_function_that_fails_is_named(explore: Callable[[Config], Any], message: str) -> None:
    table = population(explore=explore)
    table.stage("a", "b")
    table.report("a", 2, 1)

    with pytest.raises(ConfigurationError, match=message):
        table.report("b", 2, 2)


def test_what_is_explored_meets_the_constraint_or_stays_as_it_was() -> None:
    exploration = Exploration({"x": uniform(0, 1)}, resample_probability=0, factors=[0.5, 1.2], explore=None)
    exploration.check_space(Space({"x": uniform(0, 1)}, constraint=lambda config: config["x"] > 0.45))

    assert {exploration({"x": 0.5}, random.Random(seed))["x"] for seed in range(20)} == {0.6}
    exploration.check_space(Space({"x": uniform(0, 1)}, constraint=lambda config: 0.45 < config["x"] < 0.55))
    assert exploration({"x": 0.5}, random.Random(0)) == {"x": 0.5}


def test_what_the_entries_of_a_choice_have_of_their_own_may_change() -> None:
    space = Space({"opt": choice([{"name": "adam", "lr": uniform(0, 1)}, {"name": "sgd", "momentum": uniform(0, 1)}])})
    exploration = Exploration({"opt": {"lr": uniform(0, 1)}}, resample_probability=0, factors=[0.5], explore=None)
    exploration.check_space(space)

    assert exploration({"opt": {"name": "adam", "lr": 0.5}}, random.Random(0)) == {"opt": {"name": "adam", "lr": 0.25}}
    assert exploration({"opt": {"name": "sgd", "momentum": 0.5}}, random.Random(0))["opt"]["momentum"] == 0.5
    with pytest.raises(ConfigurationError, match=r"'opt/beta', which is not in the space; that has 'opt'"):
        PBT(2, {"opt": {"beta": uniform(0, 1)}}).check_space(space)


def staged(trial: str, attempt: int, config: Config, checkpoint: str = "") -> TrialStaged:
    return TrialStaged(
        trial=TrialId(trial), attempt=attempt, config=config, at=0.0, cursor=BEGINNING, checkpoint=checkpoint
    )


def reported(trial: str, attempt: int, now: int, checkpoint: str = "") -> Report:
    return Report(TrialId(trial), attempt, now, 0.0, {"training_iteration": now}, CheckpointId(checkpoint))


JOURNAL = [
    staged("a", 1, {"lr": 1}),
    staged("b", 1, {"lr": 2}),
    reported("a", 1, 2, "a2"),
    reported("b", 1, 3, "b3"),
    reported("a", 1, 4),
    CheckpointSaved(trial=TrialId("a"), attempt=1, checkpoint="a4", at=0.0),
    staged("b", 2, {"lr": 1.2}, "a4"),
    Reports([(TrialId("b"), 2, 5, [(0.0, {"training_iteration": 6}, "b6")])]),  # type: ignore[list-item]
    staged("b", 3, {"lr": 1.2}, "b6"),
    staged("a", 2, {"lr": 1.5}, "b6"),
]


def test_a_policy_leads_through_the_trials_that_were_copied_and_begins_anew_from_scratch() -> None:
    assert policy_of(JOURNAL, "a") == [
        PolicyStep(0, {"lr": 1}, TrialId("a")),
        PolicyStep(4, {"lr": 1.2}, TrialId("b")),
        PolicyStep(6, {"lr": 1.5}, TrialId("a")),
    ]
    assert policy_of([*JOURNAL, staged("a", 3, {"lr": 4})], "a") == [PolicyStep(0, {"lr": 4}, TrialId("a"))]
    # A resume with the same config is no step.
    assert policy_of(JOURNAL, "b") == [PolicyStep(0, {"lr": 1}, TrialId("a")), PolicyStep(4, {"lr": 1.2}, TrialId("b"))]
    # A step without training does not count either.
    again = [*JOURNAL, staged("b", 4, {"lr": 9}, "a4"), staged("c", 1, {"lr": 7}, "b3")]

    assert policy_of(again, "b") == [PolicyStep(0, {"lr": 1}, TrialId("a")), PolicyStep(4, {"lr": 9}, TrialId("b"))]
    saved = CheckpointSaved(trial=TrialId("a"), attempt=2, checkpoint="a6", at=0.0)
    assert policy_of([*again, saved, staged("c", 2, {"lr": 8}, "a6")], "c") == [
        PolicyStep(0, {"lr": 1}, TrialId("a")),
        PolicyStep(4, {"lr": 1.2}, TrialId("b")),
        PolicyStep(6, {"lr": 8}, TrialId("c")),
    ]


def test_a_policy_needs_a_trial_and_its_checkpoints() -> None:
    with pytest.raises(ConfigurationError, match="the journal has no trial 'z'; there are a, b"):
        policy_of(JOURNAL, "z")
    with pytest.raises(ConfigurationError, match="attempt 2 of trial c began from checkpoint 'gone'"):
        policy_of([staged("c", 1, {}), staged("c", 2, {}, "gone")], "c")


def expanded(policy: list[PolicyStep], length: int) -> list[Config]:
    """The config of each iteration."""
    return [[step.config for step in policy if step.time < now][-1] for now in range(1, length + 1)]


@given(rng=rngs, slots=st.integers(2, 6), faults=some_faults)
def test_a_policy_and_its_replay_train_the_same(rng: random.Random, slots: int, faults: Faults) -> None:
    scheduler = pbt(hyperparam_mutations=MUTATIONS, quantile_fraction=0.5)
    play = Play(scheduler, curve, slots, slots, rng, starting, faults).run()

    for name, history in play.histories.items():
        policy = policy_of(play.events, name)
        assert expanded(policy, len(history)) == history
        if play.statuses[name] == "COMPLETED":
            begins = policy[0].config
            again = Play(
                replay(policy), curve, slots=2, trials=2, rng=rng, configs=lambda _, begins=begins: begins
            ).run()  # type: ignore[misc]
            assert list(again.histories.values()) == [history, history]


POLICY = [PolicyStep(0, {"lr": 1}), PolicyStep(4, {"lr": 2}), PolicyStep(6, {"lr": 3})]


def replay(policy: list[PolicyStep] = POLICY) -> PBTReplay:
    return bound(PBTReplay(policy))  # type: ignore[no-any-return]


def test_a_report_that_skips_steps_leads_to_the_highest_and_without_a_checkpoint_to_none() -> None:
    table = Table(replay(), saves=True)
    table.stage("a", "b", config={"lr": 1})
    table.report("b", 8)
    table.pause("b")
    assert table.resumed().config == {"lr": 3}
    table.stage("b", config={"lr": 3})
    table.report("a", 4, saves=False)
    table.pause("a")

    assert table.choose() == Release(TrialId("a"), "has no checkpoint to go on from, as the policy wants it at 4")


def test_a_trial_that_begins_otherwise_is_refused() -> None:
    table = Table(replay(), saves=True)

    with pytest.raises(ConfigurationError, match=r"trial a begins with {'lr': 9}, and the policy with {'lr': 1}; give"):
        table.stage("a", config={"lr": 9})
    replay().check_space(Space(replay().config))
    with pytest.raises(SpaceError, match="lr: 1 is not the constant 2"):
        replay().check_space(Space({"lr": 2}))
