"""Trials ask for seats, or for resources by config, and this machine has slots for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulation import tuner_on

import mqtune
from mqtune import Space
from mqtune.core.errors import ConfigurationError, InsufficientResources
from mqtune.core.resources import Resources
from mqtune.core.trial import Config, TrialId, TrialStatus
from mqtune.driver import ResourcesByConfig, slot_settings
from mqtune.services.settings import worker_settings

PAIR = Resources(machines=2)


def play_once(config: Config) -> Iterator[tuple[float, dict[str, float]]]:
    yield 1.0, {"loss": 1.0}


def trainable(config: Config) -> None:
    """It is named, and never called."""


def gangs(resources: Any, backend: Any) -> mqtune.Tuner:
    space = {"width": mqtune.grid_search([1, 2, 3, 4])}
    return tuner_on(backend, trainable, space, name="x", resources=resources)


def test_a_gang_is_lost_with_any_of_its_workers_and_runs_again_as_a_whole(mqtune_home: Path) -> None:
    lives = iter([10.0, 0.5])
    backend = mqtune.Simulated(play_once, slots=2, life_s=lambda _: next(lives, 1e6), away_s=3.0)

    results = gangs(PAIR, backend).run()

    first = results.experiment.trials[TrialId("0001")]
    assert [attempt.end.value for attempt in first.attempts if attempt.end] == ["lost", "completed"]
    assert all(result.status is TrialStatus.COMPLETED for result in results)


class Plain:
    """Somebody's backend without gangs, which gives all trials the same resources."""

    def open(self, experiment: str, resources: Resources) -> Any:
        return SimpleNamespace(close=lambda: None)


def test_a_backend_that_knows_no_gangs_and_gives_all_trials_the_same_refuses_others(mqtune_home: Path) -> None:
    with pytest.raises(ConfigurationError, match="2 seats, and this backend, SimpleNamespace, runs each trial in one"):
        gangs(Resources(seats=2), Plain()).run()
    with pytest.raises(ConfigurationError, match=r"SimpleNamespace, all get the same: give mqtune.Resources"):
        tuner(backend=Plain()).run()


def test_a_run_on_this_machine_alone_refuses_several_machines_before_it_starts_anything(mqtune_home: Path) -> None:
    said = "machines=2, and this machine alone is one worker: give seats=2 to have 2 slots here, or a broker with several workers"

    with pytest.raises(ConfigurationError, match=said):
        gangs(PAIR, mqtune.Local()).run()
    assert not mqtune_home.exists()


def test_by_their_configs_all_trials_ask_for_the_same_number_of_seats() -> None:
    space = Space({"width": mqtune.choice([1, 2])})
    with pytest.raises(ConfigurationError, match=r"seats_by_width asks for \d seats? for .*, and for \d before"):
        ResourcesByConfig(seats_by_width, space)
    asks = ResourcesByConfig(same_seats, space)
    assert asks.most_needed() == Resources(cpus=2, machines=2)
    with pytest.raises(ConfigurationError, match=r"same_seats asks for 1 seat for .*, and for 2 before"):
        asks({"width": 3})


def seats_by_width(config: Config) -> Resources:
    return Resources(seats=config["width"])


def same_seats(config: Config) -> Resources:
    width = config["width"]
    return Resources() if width > 2 else Resources(cpus=width, seats=2) if width > 1 else PAIR


SMALL = mqtune.Resources(gpus=1)

LARGE = mqtune.Resources(gpus=2)


def by_width(config: Config) -> mqtune.Resources:
    return LARGE if config["width"] > 512 else SMALL


def play(config: Config) -> list[tuple[float, dict[str, float]]]:
    return [(1.0, {"loss": 1 / config["width"]})]


def tuner(**options: Any) -> mqtune.Tuner:
    space = {"width": mqtune.grid_search([256, 1024, 512, 2048])}
    usual = {"name": "x", "resources": by_width, "backend": mqtune.Simulated(play, slots=2), "space": space}
    return tuner_on(trainable=trainable, **{**usual, **options})


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


def test_a_trial_that_no_slot_can_ever_take_fails_and_says_why_and_the_others_run(mqtune_home: Any) -> None:
    tuned = tuner(backend=mqtune.Simulated(play, slots=2, offer=SMALL))

    tuned.run()

    ended = {trial.config["width"]: (trial.status, trial.reason) for trial in tuned.get_trials()}
    why = "no worker offers a slot with 2 GPUs, 1 CPU; there are 2 of 2 simulated workers: each 1 GPU, 1 CPU"
    refused = (TrialStatus.FAILED, why)
    assert ended == {256: (TrialStatus.COMPLETED, ""), 1024: refused, 512: (TrialStatus.COMPLETED, ""), 2048: refused}
    # They were never offered to the slots.
    assert tuned.has_resources(SMALL)


def _fails(config: Config) -> mqtune.Resources:
    return mqtune.Resources(gpus=config["depth"])


def _returns_a_number(config: Config) -> Any:
    return 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"resources": _fails}, "resources: _fails raised KeyError: 'depth', for {'width': "),
        ({"resources": _returns_a_number}, "_returns_a_number returned 2 for {'width': .*return mqtune.Resources"),
        ({"resources": lambda config: mqtune.Resources(gpus=1.5)}, "<lambda> raised ConfigurationError: .*gpus=1.5"),
        ({"space": None}, "by_width: without a space"),
    ],
)
def test_a_function_that_makes_no_resources_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        tuner(**options)


def test_slots_of_this_machine_can_not_have_different_numbers_of_gpus() -> None:
    with pytest.raises(InsufficientResources, match=r"by_width returns .* all have the same number of GPUs"):
        _ = ResourcesByConfig(by_width, Space({"width": mqtune.choice([256, 1024])})).most_needed()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a machine with a number of cores and GPUs."""

    def make(cores: int, gpus: tuple[str, ...] = (), memory_mb: int = 0) -> None:
        here = "mqtune.driver.setup.local_slots"
        monkeypatch.setattr(f"{here}.usable_cpus", lambda: cores)
        monkeypatch.setattr(f"{here}.find_gpus", lambda asked: gpus)
        for module in (here, "mqtune.worker.loop.settings", "mqtune.services.packing.settings"):
            monkeypatch.setattr(f"{module}.find_gpu_memory", lambda asked, found, *_: memory_mb if found else 0)

    return make


def offered(settings: dict[str, Any]) -> tuple[Resources, int]:
    """Return what a worker with these settings offers, and its slots."""
    plan = worker_settings({"broker": "redis://x", **settings}).plan()
    return plan.offer, len(plan.devices)


@pytest.mark.parametrize(
    ("asked", "slots", "number"),
    [
        (Resources(), None, 8),
        (Resources(), 20, 20),
        (Resources(cpus=3), None, 2),
        (Resources(tags=["fast", "ssd"]), 2, 2),
        (Resources(gpus=1), 3, 3),
        (Resources(gpus=0.5), None, 8),
        (Resources(gpus=3), None, 1),
        (Resources(gpus=1, cpus=4), None, 2),
        (Resources(gpus=0.5, cpus=2), None, 4),
        (Resources(gpus=0.5, gpu_memory_gb=12, tags=["a100"]), None, 8),
        (Resources(gpu_memory_gb=24), None, 4),
        (Resources(gpu_memory_gb=10), None, 8),
        # By memory each GPU has room for twelve, and there are two cores for each.
        (Resources(gpu_memory_gb=2), None, 8),
        (Resources(gpu_memory_gb=2), 40, 40),
        (Resources(gpu_memory_gb=2, cpus=2), None, 4),
    ],
    ids=str,
)
def test_local_slots_fit_the_trials(machine: Any, asked: Resources, slots: int | None, number: int) -> None:
    machine(8, ("0", "1", "2", "3"), 25_000)

    offer, found = offered(slot_settings(asked, slots))

    assert asked.fits(offer)
    assert found == number


TWO, FOUR = ("0", "1"), ("0", "1", "2", "3")
UNSHARED = "Local\\(slots={}\\) does not go with 2 GPUs .* room for 12 such trials"


@pytest.mark.parametrize(
    ("asked", "slots", "gpus", "memory_mb", "what"),
    [
        (Resources(cpus=9), None, (), 0, "asks for 9 CPUs, which this machine can't give: it has 8"),
        (Resources(cpus=3), 3, (), 0, "with 3 slots they need 9, and it has 8"),
        (Resources(gpus=1), None, (), 0, "asks for 1 GPU, 1 CPU, which this machine can't give: it sees none"),
        (Resources(gpus=2), None, ("3",), 0, r"it sees 1: 3 \(by CUDA_VISIBLE_DEVICES, or nvidia-smi\)"),
        (Resources(gpus=1), 3, TWO, 0, "room for 2 such trials"),
        (Resources(gpus=0.5, cpus=5), None, TWO, 0, "room for 1 such trials"),
        (Resources(gpus=0.5), 3, TWO, 0, r"give a multiple of 2, and RunOptions\(max_concurrent=3"),
        (Resources(gpus=0.3), None, ("0",), 0, "give gpus=1/3"),
        (Resources(gpus=1, gpu_memory_gb=80), None, ("0",), 25_000, "its GPUs have 25 GB for each"),
        (Resources(gpu_memory_gb=26), None, ("0",), 25_000, "asks for 26 GB of a GPU, .*: its GPUs have 25 GB each"),
        (Resources(gpu_memory_gb=6), None, (), 25_000, "it sees no GPU"),
        (Resources(gpus=1, gpu_memory_gb=8), None, ("0",), 0, "an amount that nvidia-smi does not say"),
        (Resources(gpu_memory_gb=8), None, ("0",), 0, "an amount that nvidia-smi does not say"),
        *((Resources(gpu_memory_gb=2), slots, TWO, 24_000, UNSHARED.format(slots)) for slots in (0, 3, 50)),
        (Resources(seats=3), 2, (), 0, r"Local\(slots=2\): a trial takes 3 slots; give at least 3"),
        (Resources(cpus=4, seats=3), None, (), 0, "with 3 slots they need 12, and it has 8"),
        (Resources(gpus=2, seats=3), None, FOUR, 0, "room for 2 such slots"),
        (Resources(gpu_memory_gb=20, seats=5), None, FOUR, 24_576, "its 4 GPUs have room for 1 such slots each"),
    ],
    ids=str,
)
def test_what_this_machine_can_not_give_is_an_error_with_what_it_has(
    machine: Any, asked: Resources, slots: int | None, gpus: tuple[str, ...], memory_mb: int, what: str
) -> None:
    machine(8, gpus, memory_mb)

    with pytest.raises((ConfigurationError, InsufficientResources), match=what):
        slot_settings(asked, slots)
