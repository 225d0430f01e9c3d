"""The queues of attempts, and a backend's texts about its fleet, with a fake broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest
from brokers import LARGE, SMALL, World, backend_of, keys, names, publish
from hypothesis import given, strategies as st

from mqtune.backends import CeleryBackend, Offer, celery as module, queues
from mqtune.core.resources import Resources, queue_name
from mqtune.core.trial import Attempt, TrialId
from mqtune.core.version import __version__
from mqtune.core.worker_info import busy_as
from mqtune.trainable import ACCEPTS_TAG


def test_of_attempts_whose_publication_fails_none_counts(world: World) -> None:
    world.join(SMALL, 3)
    backend = backend_of(SMALL)
    world.fails_at = "0002"

    with pytest.raises(ValueError, match="0002"):
        backend.publish_all([Offer(TrialId(name), 1, {}) for name in names(1, 2, 3)])

    assert backend.free(SMALL) == 3


@pytest.mark.parametrize(
    ("scarce", "plain"),
    [
        (Resources(gpus=1, cpus=1, tags=["nvlink"]), Resources(gpus=1, cpus=16, gpu_memory_gb=80)),
        (Resources(gpus=1, cpus=1, gpu_memory_gb=80), Resources(gpus=1, cpus=16, gpu_memory_gb=24)),
        (Resources(gpus=1, cpus=16), Resources(gpus=1, cpus=4)),
    ],
)
def test_what_is_scarce_is_left_to_those_who_ask_for_it(world: World, scarce: Resources, plain: Resources) -> None:
    world.join(scarce, 1)
    world.join(plain, 1)
    backend = backend_of(Resources(gpus=1))

    publish(backend, 1)

    assert (world.waiting(plain), world.waiting(scarce)) == (names(1), [])


def test_each_attempt_goes_where_what_it_asks_for_by_its_config_is_offered(world: World) -> None:
    one, two = Resources(gpus=1), Resources(gpus=2)
    world.join(SMALL, 5)
    world.join(one, 2)
    world.join(two, 1)
    backend = backend_of(one)
    assert backend.slots == 2

    backend.expect(two)
    assert (backend.slots, backend.pool().queues) == (3, [queue_name(one), queue_name(two)])
    for trial, asked in zip(names(1, 2, 3), (two, one, two), strict=True):
        backend.asks(TrialId(trial), 1, asked)
    backend.publish_all([Offer(TrialId(name), 1, {}) for name in names(1, 2, 3)])

    assert (world.waiting(one), world.waiting(two)) == (names(2), names(1, 3))
    # It can't use a free slot of the other kind.
    assert backend.queued() == keys(1, 2, 3)


@given(slots=st.lists(st.integers(1, 4), min_size=1, max_size=4), ends=st.lists(st.integers(0, 30), max_size=30))
def test_no_slot_idles_while_attempts_are_published_for_all_of_them(slots: list[int], ends: list[int]) -> None:
    world = World()
    shapes = [Resources(cpus=2 * size) for size in range(1, len(slots) + 1)]
    for shape, number in zip(shapes, slots, strict=True):
        world.join(shape, number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "Fleet", world.fleet)
        patch.setattr(module, "Celery", world.celery)
        backend = backend_of(Resources())
    last = 0
    running: dict[TrialId, Resources] = {}

    def fill() -> None:
        nonlocal last
        while len(running) < sum(slots):
            last += 1
            publish(backend, last)
            taken = [(world.take(shape), shape) for shape in shapes if world.waiting(shape)]
            running.update(taken)

    fill()
    for end in ends:
        trial = sorted(running)[end % len(running)]
        backend.ended(trial, 1)
        del running[trial]
        fill()
        assert [sum(at == shape for at in running.values()) for shape in shapes] == slots


def test_attempts_that_wait_are_found_in_every_queue(world: World) -> None:
    world.join(SMALL, 1)
    world.join(LARGE, 1)
    backend = backend_of(Resources())
    publish(backend, 1, 2, 3)
    world.queues[queue_name(SMALL)].append("other/0009/1")

    assert backend.queued() == keys(1, 2, 3)
    world.take(LARGE)
    assert backend.queued() == keys(1, 3)
    world.too_long = queue_name(LARGE)
    assert backend.queued() is None, "it is too long to look through"
    # This Celery has no events, and that disturbs nothing.
    backend.lost(TrialId("0001"), Attempt(number=1, queued_at=0.0, worker="gpu@a"))


def test_a_fleet_is_described_by_its_shapes_largest_first(world: World) -> None:
    backend = backend_of(SMALL)
    assert (backend.resource_string(), backend.has_gpus()) == ("no worker", None)
    world.join(replace(LARGE, tags=["b", "a"]), 1)
    backend.refresh()
    assert (backend.resource_string(), backend.has_gpus()) == ("1 worker: 1 × 8 CPUs, tags a+b", False)
    world.workers.clear()
    gpu = Resources(gpus=1, cpus=4, gpu_memory_gb=24)
    for offer in (Resources(cpus=8), gpu, gpu):
        world.join(offer, 2)
    backend.refresh()

    assert backend.resource_string() == "3 workers: 4 × 1 GPU (24 GB), 4 CPUs; 2 × 8 CPUs"
    assert backend.has_gpus() is True


def test_a_slot_that_another_experiment_has_is_not_free(world: World) -> None:
    world.join(Resources(gpus=1), 3, busy={busy_as("another"): 2, busy_as("x"): 3, "odd": "many"})
    backend = backend_of(Resources(gpus=1))

    assert (backend.offered(Resources(gpus=1)), backend.free(Resources(gpus=1))) == (3, 1)


def test_workers_of_another_version_offer_nothing_and_warn_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.join(Resources(gpus=1), 1, version="99.1.0")
    backend = backend_of(Resources(gpus=1))
    backend.refresh()

    assert (backend.slots, backend.offered(Resources(gpus=1)), backend.has_gpus()) == (0, 0, None)
    assert backend.resource_string() == "no worker"
    assert f"mqtune 99.1.0. This driver is mqtune {__version__}." in backend.why_no_slot()
    (warning,) = [record.getMessage() for record in caplog.records if "99.1.0" in record.getMessage()]
    assert f"takes no trial of this driver, which has {__version__}" in warning
    assert "docs/installation.md#upgrade-a-fleet" in warning


def test_a_worker_whose_description_makes_no_sense_is_left_out(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.workers.append(replace(world.join(SMALL, 1), name="odd@h", tags=["A 100"]))

    backend = backend_of(SMALL)

    assert backend.slots == 1
    assert "worker odd@h is ignored" in caplog.text
    assert "'A 100'" in caplog.text


@pytest.fixture
def bare(world: World) -> Iterator[CeleryBackend]:
    backend = backend_of(Resources(gpus=1, gpu_memory_gb=40, tags=["nvlink"]))
    yield backend
    backend.close()


def test_what_nobody_offers_is_said_with_what_there_is(world: World, bare: CeleryBackend) -> None:
    asked = r"no worker offers a slot with 1 GPU \(40 GB\), 1 CPU, tag nvlink"
    assert re.match(rf"{asked}: no worker is connected; start one with `mqtune worker", bare.why_no_slot())

    world.join(Resources(gpus=1, gpu_memory_gb=24), 4, name="a@h")
    bare.refresh()
    assert bare.slots == 0
    assert re.match(rf"{asked}; connected: a@h: 4 × 1 GPU \(24 GB\), 1 CPU, mqtune", bare.why_no_slot())
    assert bare.why_no_slot().endswith(f"mqtune {__version__}.")
    for _ in range(8):
        world.join(SMALL, 1)
    bare.refresh()
    assert bare.why_no_slot().count("@h") == 5
    assert "and 4 more" in bare.why_no_slot()


def test_a_driver_that_brings_code_says_which_workers_take_it(world: World) -> None:
    backend = backend_of(Resources(cpus=2, tags=[ACCEPTS_TAG]))
    assert "`mqtune worker --accept-code --broker" in backend.why_no_slot()
    world.join(Resources(cpus=2), 1)
    backend.refresh()
    assert "Only workers started with --accept-code take it" in backend.why_no_slot()
    world.join(Resources(cpus=1, tags=[ACCEPTS_TAG]), 1)
    backend.refresh()
    assert "--accept-code" not in backend.why_no_slot()


def test_the_account_of_a_team_publishes_to_workers_of_the_team_alone(world: World) -> None:
    world.barred = {queue_name(SMALL), queue_name(LARGE)}
    world.join(SMALL, 1, name="everybodys@h")
    backend = backend_of(SMALL)

    publish(backend, 1)

    assert world.sent == [], "others would read its config there"
    assert backend.slots == 0
    assert "worker everybodys@h serves all experiments, but this account belongs to one team" in backend.why_no_slot()
    world.join(LARGE, 1, experiments="x*")
    backend.refresh()
    publish(backend, 1)
    assert [sent["queue"] for sent in world.sent] == [queue_name(LARGE, "x*")]


def test_a_pool_has_the_slots_of_all_workers(world: World) -> None:
    world.join(SMALL, slots=2)
    world.join(LARGE, slots=4)
    world.join(Resources(cpus=1), slots=8, experiments="team-a-*")
    backend = backend_of(SMALL)

    pool = backend.pool()

    assert list(pool.queues) == [queue_name(SMALL), queue_name(LARGE)]
    assert pool.slots == {queue_name(SMALL): 2, queue_name(LARGE): 4, queue_name(Resources(cpus=1), "team-a-*"): 8}


PACKED: Final = Resources(gpu_memory_gb=80)


def test_where_trials_share_gpus_by_memory_there_are_as_many_slots_as_their_memory_has_room_for(world: World) -> None:
    world.join(PACKED, 16, devices=["0"] * 8 + ["1"] * 8)
    world.join(Resources(gpus=1, gpu_memory_gb=80), 4)
    world.join(SMALL, 4)
    backend = backend_of(Resources(gpu_memory_gb=30))

    assert backend.slots == 4, "two on each of two GPUs"
    assert backend.pool().slots[queue_name(PACKED)] == 4
    asked = {gb: backend.offered(Resources(gpu_memory_gb=gb)) for gb in (1, 10, 11, 41, 80, 81)}
    assert asked == {1: 16, 10: 16, 11: 14, 41: 2, 80: 2, 81: 0}
    publish(backend, 1)
    assert backend.free(Resources(gpu_memory_gb=30)) == 3
    backend.expect(Resources(gpu_memory_gb=10))
    assert backend.slots == 16, "as many as the smallest may have"
    assert backend.has_gpus()


def test_without_a_worker_that_shares_its_gpus_by_memory_it_is_said_how_one_does(world: World) -> None:
    world.join(Resources(gpus=1, gpu_memory_gb=80), 4)

    backend = backend_of(Resources(gpu_memory_gb=30))

    why = "no worker offers a slot with 30 GB of a GPU, 1 CPU (a worker shares its GPUs by memory with `--pack-gpus 8`)"
    assert why in backend.why_no_slot()
