from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from waiting import eventually

from mqtune.backends.local import worker as local
from mqtune.cli.worker import command
from mqtune.core.errors import ConfigurationError, InsufficientResources
from mqtune.core.resources import Resources
from mqtune.driver import local_slots, slot_settings
from mqtune.worker import WorkerSettings


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a machine of so many cores and GPUs."""

    def make(cores: int, gpus: tuple[str, ...] = (), memory_mb: int = 0) -> None:
        monkeypatch.setattr(local_slots, "usable_cpus", lambda: cores)
        for module in (local_slots, __import__("mqtune.worker.settings", fromlist=["x"])):
            monkeypatch.setattr(module, "find_gpu_memory", lambda asked, found, *_: memory_mb if found else 0)
        monkeypatch.setattr(local_slots, "find_gpus", lambda asked: gpus)

    return make


def offered(settings: dict[str, Any]) -> tuple[Resources, int]:
    """Return what a worker with these settings offers, and its slots."""
    plan = WorkerSettings(broker="redis://x", **settings).plan()
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
def test_the_slots_of_this_machine_take_the_shape_that_is_asked_for(
    machine: Any, asked: Resources, slots: int | None, number: int
) -> None:
    machine(8, ("0", "1", "2", "3"), 25_000)

    offer, found = offered(slot_settings(asked, slots))

    assert asked.fits(offer)
    assert found == number


@pytest.mark.parametrize(
    ("asked", "slots", "gpus", "what"),
    [
        (Resources(cpus=9), None, (), "asks for 9 CPUs, which this machine can't give: it has 8"),
        (Resources(cpus=3), 3, (), "with 3 slots they need 9, and it has 8"),
        (Resources(gpus=1), None, (), "asks for 1 GPU, 1 CPU, which this machine can't give: it sees none"),
        (Resources(gpus=2), None, ("3",), r"it sees 1: 3 \(by CUDA_VISIBLE_DEVICES, or nvidia-smi\)"),
        (Resources(gpus=1), 3, ("0", "1"), "room for 2 such trials"),
        (Resources(gpus=0.5, cpus=5), None, ("0", "1"), "room for 1 such trials"),
        (Resources(gpus=0.3), None, ("0",), "give gpus=1/3"),
        (Resources(gpus=1, gpu_memory_gb=80), None, ("0",), "its GPUs have 25 GB for each"),
        (Resources(gpu_memory_gb=26), None, ("0",), "asks for 26 GB of a GPU, .*: its GPUs have 25 GB each"),
        (Resources(gpu_memory_gb=6), None, (), "it sees no GPU"),
    ],
    ids=str,
)
def test_what_this_machine_can_not_give_is_an_error_with_what_it_has(
    machine: Any, asked: Resources, slots: int | None, gpus: tuple[str, ...], what: str
) -> None:
    machine(8, gpus, 25_000)

    with pytest.raises(InsufficientResources, match=what):
        slot_settings(asked, slots)


def test_memory_that_nobody_knows_is_not_promised(machine: Any) -> None:
    machine(8, ("0",), 0)

    with pytest.raises(InsufficientResources, match="an amount that nvidia-smi does not say"):
        slot_settings(Resources(gpus=1, gpu_memory_gb=8), None)
    with pytest.raises(InsufficientResources, match="an amount that nvidia-smi does not say"):
        slot_settings(Resources(gpu_memory_gb=8), None)


def test_where_trials_ask_for_different_amounts_of_memory_there_are_slots_for_as_many_of_the_smallest(
    machine: Any,
) -> None:
    machine(64, ("0", "1"), 80_000)

    assert offered(slot_settings(Resources(gpu_memory_gb=40), None, 5_000_000_000))[1] == 2 * 16
    assert offered(slot_settings(Resources(gpu_memory_gb=40), None))[1] == 2 * 2


@pytest.mark.parametrize("slots", [0, 3, 50])
def test_slots_that_do_not_go_with_the_memory_of_the_gpus_are_refused(machine: Any, slots: int) -> None:
    machine(8, ("0", "1"), 24_000)

    with pytest.raises(
        ConfigurationError, match=rf"Local\(slots={slots}\) does not go with 2 GPUs .* room for 12 such trials"
    ):
        slot_settings(Resources(gpu_memory_gb=2), slots)


def test_a_gpu_is_not_shared_by_some_of_those_who_may(machine: Any) -> None:
    machine(8, ("0", "1"))

    with pytest.raises(ConfigurationError, match=r"give a multiple of 2, and RunOptions\(max_concurrent=3"):
        slot_settings(Resources(gpus=0.5), 3)


def test_a_setting_for_an_operators_workers_is_not_passed_on_to_a_local_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [each for each in command.params if isinstance(each, click.Option) and each.allow_from_autoenv]
    of_workers = {
        str(each.envvar) if isinstance(each.envvar, str) else f"MQTUNE_{each.name}".upper() for each in settings
    }
    elsewhere = {"MQTUNE_BROKER", "MQTUNE_CODE_ROOT", "MQTUNE_LOG_ROOT", "MQTUNE_OWNER_FD"}

    assert of_workers - elsewhere == local._OF_OPERATORS
    for name in local._OF_OPERATORS:
        monkeypatch.setenv(name, "1")
    worker = local.WorkerProcess(tmp_path / "log", ["-c", "import os; print(*os.environ)"])
    eventually(lambda: "PATH" in (tmp_path / "log").read_text().split())
    worker.kill()
    assert local._OF_OPERATORS.isdisjoint((tmp_path / "log").read_text().split())


@pytest.mark.parametrize(
    ("asked", "slots", "number"),
    [
        (Resources(seats=3), None, 6),
        (Resources(seats=20), None, 20),
        (Resources(seats=3), 5, 5),
        (Resources(cpus=2, seats=3), None, 3),
        (Resources(gpus=1, seats=3), None, 4),
        (Resources(gpu_memory_gb=2, seats=10), None, 12),
    ],
    ids=str,
)
def test_there_are_slots_for_all_seats_of_a_trial(
    machine: Any, asked: Resources, slots: int | None, number: int
) -> None:
    machine(8, ("0", "1", "2", "3"), memory_mb=24_576)

    assert offered(slot_settings(asked, slots))[1] == number


@pytest.mark.parametrize(
    ("asked", "slots", "error"),
    [
        (Resources(seats=3), 2, r"Local\(slots=2\): a trial takes 3 slots; give at least so many"),
        (Resources(cpus=4, seats=3), None, "with 3 slots they need 12, and it has 8"),
        (Resources(gpus=2, seats=3), None, "room for 2 such slots"),
        (Resources(gpu_memory_gb=20, seats=5), None, "its 4 GPUs have room for 1 such slots each"),
    ],
    ids=str,
)
def test_a_machine_without_room_for_all_seats_of_a_trial_is_refused(
    machine: Any, asked: Resources, slots: int | None, error: str
) -> None:
    machine(8, ("0", "1", "2", "3"), memory_mb=24_576)

    with pytest.raises((ConfigurationError, InsufficientResources), match=error):
        slot_settings(asked, slots)
