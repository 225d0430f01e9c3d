"""Trials that ask for resources by their configs: what it came to stands in the journal, and what nobody offers is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from simulation import Killed, Simulation, curve

import mqtune
from mqtune.backends import Simulated
from mqtune.core.errors import ConfigurationError, InsufficientResources
from mqtune.core.trial import Config, TrialStatus
from mqtune.driver import Limits, ResourcesByConfig
from mqtune.search.points import PointsFirst
from mqtune.search.space import Space

SMALL = mqtune.Resources(gpus=1)
LARGE = mqtune.Resources(gpus=2)
WIDTHS = {"width": mqtune.choice([256, 1024])}


def by_width(config: Config) -> mqtune.Resources:
    return LARGE if config["width"] > 512 else SMALL


def play(config: Config) -> list[tuple[float, dict[str, float]]]:
    return [(1.0, {"loss": 1 / config["width"]})]


def trainable(config: Config) -> None:
    """It is named, and never called."""


def tuner(**options: Any) -> mqtune.Tuner:
    usual: dict[str, Any] = {
        "metric": "loss",
        "mode": "min",
        "name": "x",
        "resources": by_width,
        "backend": mqtune.Simulated(play, slots=2),
        "run": mqtune.RunOptions(progress=False),
    }
    space = options.pop("space", {"width": mqtune.grid_search([256, 1024, 512, 2048])})
    return mqtune.Tuner(trainable, space, **{**usual, **options})


def asked(tuned: mqtune.Tuner) -> dict[int, mqtune.Resources | None]:
    return {trial.config["width"]: trial.attempts[-1].resources for trial in tuned.get_trials()}


ALL = {256: SMALL, 1024: LARGE, 512: SMALL, 2048: LARGE}


def test_each_trial_gets_what_its_config_asks_for(mqtune_home: Any) -> None:
    tuned = tuner()

    results = tuned.run()

    assert asked(tuned) == ALL
    # So does who reads the journal alone.
    kept = mqtune.Results.load("x")
    assert {each.config["width"]: each.attempts[0].resources for each in kept} == ALL
    assert {each.status for each in results} == {TrialStatus.COMPLETED}


def test_another_driver_takes_it_from_the_journal_and_calls_the_function_for_new_trials_alone(mqtune_home: Any) -> None:
    backend = mqtune.Simulated(play, slots=1, keep_journal=True)
    first = tuner(backend=backend)
    while len(first.get_trials()) < 2:
        first.step()
    first.close()
    begun = asked(first)
    assert 2 <= len(begun) < len(ALL)
    huge = mqtune.Resources(gpus=8)

    def by_other_width(config: Config) -> mqtune.Resources:
        return huge

    by_other_width.__name__ = by_width.__name__
    second = tuner(backend=backend, resources=by_other_width)
    second.run()

    assert asked(second) == {width: begun.get(width, huge) for width in ALL}


@pytest.mark.parametrize("call", range(1, 24))
def test_whoever_comes_after_a_driver_that_was_killed_asks_for_the_same(call: int) -> None:
    def by_rate(config: Config) -> mqtune.Resources:
        return LARGE if config["lr"] > 0.5 else SMALL

    def simulation() -> Simulation:
        limits = Limits(max_trials=6, asks=ResourcesByConfig(by_rate, Space({"lr": mqtune.uniform(0, 1)})))
        return Simulation(Simulated(curve(2), slots=2, keep_journal=True), limits=limits)

    cut = simulation()
    with pytest.raises(Killed):
        cut.run(kill_at=call)
    cut.run()

    whole = simulation().run()
    found = [[each.attempts[0].resources for each in one.experiment.trials.values()] for one in (cut, whole)]
    assert found[0] == found[1]
    assert {SMALL, LARGE} == set(found[0])
    trials = cut.experiment.trials.values()
    assert all(each.attempts[0].resources == by_rate(each.config) for each in trials)


def test_a_trial_that_is_run_again_asks_for_the_same_and_one_with_another_config_for_its_own() -> None:
    calls: list[float] = []

    def by_rate(config: Config) -> mqtune.Resources:
        calls.append(config["lr"])
        return LARGE if config["lr"] > 0.5 else SMALL

    by_config = ResourcesByConfig(by_rate, Space({"lr": mqtune.uniform(0, 1)}))
    calls.clear()
    points: list[Config] = [{"lr": 0.1}]
    simulation = Simulation(
        Simulated(curve(50), slots=1),
        searcher=lambda: _bound(points),
        limits=Limits(max_trials=1, asks=by_config),
    )
    driver = simulation.driver()
    while not simulation.experiment.trials or simulation.experiment.trials["0001"].reports < 3:
        driver.step(10)
    for config in (None, {"lr": 0.9}):
        driver.steer("pause", "0001", {})
        while simulation.experiment.trials["0001"].status is not TrialStatus.PAUSED:
            driver.step(10)
        driver.steer("resume", "0001", {} if config is None else {"config": config})
        driver.step(10)

    attempts = simulation.experiment.trials["0001"].attempts
    assert [each.resources for each in attempts] == [SMALL, SMALL, LARGE]
    assert calls == [0.1, 0.9]


def _bound(points: list[Config]) -> PointsFirst:
    searcher = PointsFirst(points)
    searcher.bind(Space({"lr": mqtune.uniform(0, 1)}), 0, metric="loss", mode="min")
    return searcher


# What nobody offers.


def test_a_trial_that_no_slot_can_ever_take_fails_and_says_why_and_the_others_run(mqtune_home: Any) -> None:
    tuned = tuner(backend=mqtune.Simulated(play, slots=2, offer=SMALL))

    tuned.run()

    ended = {trial.config["width"]: (trial.status, trial.reason) for trial in tuned.get_trials()}
    why = "no worker offers a slot with 2 GPUs, 1 CPU; there are 2 of 2 simulated workers: each 1 GPU, 1 CPU"
    refused = (TrialStatus.FAILED, why)
    assert ended == {256: (TrialStatus.COMPLETED, ""), 1024: refused, 512: (TrialStatus.COMPLETED, ""), 2048: refused}
    # They were never offered to the slots.
    assert tuned.has_resources(SMALL)


def test_an_experiment_none_of_whose_trials_fits_any_slot_is_refused_before_the_first(mqtune_home: Any) -> None:
    tuned = tuner(
        backend=mqtune.Simulated(play, offer=mqtune.Resources()),
        run=mqtune.RunOptions(progress=False, queue_trials=False),
    )

    with pytest.raises(InsufficientResources, match="a slot with 1 GPU, 1 CPU or 2 GPUs, 1 CPU: 4 of 4"):
        tuned.run()


def test_slots_that_offer_what_any_trial_may_ask_for_are_counted(mqtune_home: Any) -> None:
    tuned = tuner(backend=mqtune.Simulated(play, slots=3, offer=LARGE))

    with contextlib.closing(tuned):
        tuned.step()

        assert (tuned.slots, tuned.free_slots) == (3, 3 - len(tuned.busy_trials))


# What is refused at once.


def _fails(config: Config) -> mqtune.Resources:
    return mqtune.Resources(gpus=config["depth"])


def _returns_a_number(config: Config) -> Any:
    return 2


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_fails, "resources: _fails raised KeyError: 'depth', for {'width': "),
        (_returns_a_number, "resources: _returns_a_number returned 2 for {'width': .*return mqtune.Resources"),
        (lambda config: mqtune.Resources(gpus=1.5), "resources: <lambda> raised ConfigurationError: .*gpus=1.5"),
    ],
)
def test_a_function_that_makes_no_resources_is_refused_before_the_first_trial(
    function: Callable[[Config], Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        tuner(resources=function)


def test_without_a_space_nothing_is_known_of_the_configs() -> None:
    with pytest.raises(ConfigurationError, match="by_width: without a space"):
        tuner(space=None)


def test_a_function_that_changes_a_config_changes_only_its_own_copy(mqtune_home: Any) -> None:
    def taking(config: Config) -> mqtune.Resources:
        return LARGE if config.pop("width") > 512 else SMALL

    tuned = tuner(resources=taking)
    tuned.run()

    assert asked(tuned) == ALL


class Plain:
    """Its sessions know what all trials ask for."""

    def open(self, experiment: str, resources: mqtune.Resources) -> Any:
        return SimpleNamespace(close=lambda: None)


def test_a_backend_whose_trials_all_get_the_same_refuses_the_experiment(mqtune_home: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"SimpleNamespace, all get the same: give mqtune.Resources"):
        tuner(backend=Plain()).run()


# On this machine alone.


def test_slots_of_this_machine_suit_all_trials() -> None:
    def by_size(config: Config) -> mqtune.Resources:
        tags = ["fast"] if config["width"] > 512 else []
        return mqtune.Resources(cpus=2 if config["width"] > 512 else 1, tags=tags)

    most = ResourcesByConfig(by_size, Space(WIDTHS)).most

    assert most == mqtune.Resources(cpus=2, tags=["fast"])


def test_slots_of_this_machine_can_not_have_different_numbers_of_gpus() -> None:
    with pytest.raises(InsufficientResources, match=r"by by_width trials ask for .* all have the same number of GPUs"):
        _ = ResourcesByConfig(by_width, Space(WIDTHS)).most
