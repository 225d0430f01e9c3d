"""Resources: what is refused, which slot fits, and where a trial queues."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import MOST_SEATS, Resources, checked_patterns, gpus_in, queue_name, queues_of, serves
from mqtune.core.shares import lists_of
from mqtune.core.version import __version__
from mqtune.journal import Assignment

#: A busy machine is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

shapes = st.builds(
    Resources,
    gpus=st.one_of(st.integers(0, 16), st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0, 2.0])),
    cpus=st.integers(1, 256),
    tags=st.sets(st.sampled_from(["a100", "nvlink", "mem24", "gpu1", "a", "b_1", "a-b"])),
) | st.builds(
    Resources,
    gpus=st.integers(0, 4),
    cpus=st.integers(1, 2),
    gpu_memory_gb=st.integers(0, 3_000).map(lambda tenths: tenths / 10),
    tags=st.sets(st.sampled_from(["a100", "nvlink"])),
)


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("gpus", [-1, -0.5, 1.5, 2.25], "can't be had; give 0, a share below 1"),
        ("gpus", [True, None, "1", math.nan, math.inf, [1]], "is not a finite number"),
        ("cpus", [0, -1, 1.5, 2.0, True, None, "4", math.nan], "is not a whole number of at least 1"),
        ("gpu_memory_gb", [True, None, "24GB", math.nan, math.inf, [24]], "is not a finite number"),
        ("gpu_memory_gb", [-1], "must not be below 0"),
        ("tags", ["a100", b"a100", 7, None, True], r"is not a list of names; give a list such as \['a100'"),
    ],
)
def test_what_can_not_be_had_is_refused_by_value(name: str, values: list[Any], says: str) -> None:
    for value in values:
        with pytest.raises(ConfigurationError, match=f"{name}={re.escape(repr(value))} {says}"):
            Resources(**{name: value})


@pytest.mark.parametrize("tag", ["A100", "", "a b", "a,b", "a.b", "a+b", "ü", "a\n", 7, None, b"a"])
def test_a_tag_that_is_no_name_is_refused_by_value(tag: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"tag .* is not a name; use small letters, digits") as error:
        Resources(tags=["ok", tag])

    assert repr(tag) in str(error.value)


@pytest.mark.parametrize(
    "tags", [["b", "a", "b"], ("a", "b"), {"a", "b"}, frozenset("ab"), iter("ab"), {"a": 1, "b": 2}]
)
def test_tags_can_be_any_collection_of_names_and_have_no_order(tags: Any) -> None:
    shape = Resources(tags=tags)

    assert shape.tags == frozenset("ab")
    assert shape == Resources(tags=["b", "a"])
    assert hash(shape) == hash(Resources(tags=["b", "a"]))


@pytest.mark.parametrize(
    ("asked", "offered", "fits"),
    [
        (Resources(gpus=1, cpus=2), Resources(gpus=1, cpus=4), True),
        (Resources(gpus=1, cpus=8), Resources(gpus=1, cpus=4), False),
        (Resources(gpus=1), Resources(gpus=2), False),
        (Resources(gpus=0.5), Resources(gpus=1), False),
        (Resources(gpus=1 / 3), Resources(gpus=0.3333333333), True),
        (Resources(gpus=1, gpu_memory_gb=24), Resources(gpus=1, gpu_memory_gb=80), True),
        (Resources(gpus=1, gpu_memory_gb=24.1), Resources(gpus=1, gpu_memory_gb=24), False),
        (Resources(gpus=1, gpu_memory_gb=24), Resources(gpus=1), False),
        (Resources(gpus=1), Resources(gpus=1, gpu_memory_gb=24), True),
        (Resources(gpu_memory_gb=6), Resources(gpu_memory_gb=80), True),
        (Resources(gpu_memory_gb=81), Resources(gpu_memory_gb=80), False),
        (Resources(gpu_memory_gb=6), Resources(gpus=1, gpu_memory_gb=80), False),
        (Resources(gpus=1, gpu_memory_gb=6), Resources(gpu_memory_gb=80), False),
        (Resources(), Resources(gpu_memory_gb=80), False),
        (Resources(gpu_memory_gb=6), Resources(), False),
        (Resources(tags=["a"]), Resources(tags=["a", "b"]), True),
        (Resources(tags=["a", "b"]), Resources(tags=["a"]), False),
        (Resources(), Resources(tags=["a"]), True),
    ],
)
def test_gpus_must_match_and_the_rest_may_be_more(asked: Resources, offered: Resources, fits: bool) -> None:
    assert asked.fits(offered) is fits


@patient
@given(shape=shapes)
def test_every_shape_fits_itself_and_survives_the_wire(shape: Resources) -> None:
    assert shape.fits(shape)
    assert Resources.decode(msgpack.unpackb(msgpack.packb(shape.encode()))) == shape


def test_what_fits_an_offer_fits_every_offer_that_it_fits_into() -> None:
    some = [
        Resources(gpus=gpus, cpus=cpus, gpu_memory_gb=memory_gb, tags=tags)
        for gpus, cpus, memory_gb, tags in itertools.product(
            (0, 1), (1, 2, 3), (0, 10, 16, 24), ([], ["a"], ["a", "b"])
        )
    ]
    fits = [{number for number, offer in enumerate(some) if ask.fits(offer)} for ask in some]

    for offers in fits:
        assert set().union(*(fits[offer] for offer in offers)) == offers


def test_resources_of_another_version_are_read_as_far_as_they_are_known() -> None:
    assert Resources.decode({"cpus": 2, "colour": "red"}) == Resources(cpus=2)
    with pytest.raises(ConfigurationError, match="cpus=0"):
        Resources.decode({"cpus": 0})


@patient
@given(left=shapes, right=shapes)
def test_two_shapes_share_a_queue_exactly_if_they_are_equal(left: Resources, right: Resources) -> None:
    assert (queue_name(left) == queue_name(right)) == (left == right)


def test_a_queue_name_carries_the_shape_and_the_minor_version() -> None:
    major, minor = __version__.split(".")[:2]

    assert queue_name(Resources(gpus=1, cpus=4)) == f"mqtune-{major}-{minor}.gpu1.cpu4"
    assert queue_name(Resources(gpus=1.0, cpus=4)) == queue_name(Resources(gpus=1, cpus=4))
    assert queue_name(Resources(gpus=0.5)) == f"mqtune-{major}-{minor}.gpu0.5.cpu1"
    offer = Resources(gpus=1, cpus=4, gpu_memory_gb=24.5, tags=["nvlink", "a100"])
    assert queue_name(offer) == f"mqtune-{major}-{minor}.gpu1.cpu4.mem24.5+a100+nvlink"
    assert queue_name(Resources(tags=["a"])) == f"mqtune-{major}-{minor}.gpu0.cpu1+a"


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (Resources(), "1 CPU"),
        (Resources(gpus=2), "2 GPUs, 1 CPU"),
        (Resources(gpus=0.5), "0.5 GPU, 1 CPU"),
        (Resources(gpus=1, cpus=4, gpu_memory_gb=24), "1 GPU (24 GB), 4 CPUs"),
        (Resources(gpus=2, gpu_memory_gb=25.7, tags=["nvlink", "a100"]), "2 GPUs (25.7 GB), 1 CPU, tags a100+nvlink"),
        (Resources(gpu_memory_gb=6, cpus=2), "6 GB of a GPU, 2 CPUs"),
        (Resources(tags=["fast"]), "1 CPU, tag fast"),
        (Resources(gpus=8, cpus=4, machines=2), "2 machines with 8 GPUs, 4 CPUs each"),
        (Resources(gpus=1, seats=4), "4 slots with 1 GPU, 1 CPU each"),
    ],
)
def test_resources_read_well(shape: Resources, text: str) -> None:
    assert str(shape) == text


@pytest.mark.parametrize(
    ("asked", "offer", "gpus"),
    [
        (Resources(gpus=2, gpu_memory_gb=20), Resources(gpus=2, gpu_memory_gb=80), 2),
        (Resources(gpus=0.5), Resources(gpus=0.5), 0.5),
        (Resources(), Resources(cpus=4), 0),
        (Resources(gpu_memory_gb=20), Resources(gpu_memory_gb=80, tags=["a100"]), 0.25),
        (Resources(gpu_memory_gb=0.5), Resources(gpu_memory_gb=10.5), 0.5 / 10.5),
    ],
)
def test_a_part_of_a_gpu_by_memory_counts_as_its_share(asked: Resources, offer: Resources, gpus: float) -> None:
    for experiments in ("*", "team.mem1-*"):
        assert gpus_in(queue_name(offer, experiments), asked) == pytest.approx(gpus)


def test_a_gang_is_said_by_its_number_of_seats_where_they_may_be_and_what_each_asks_for() -> None:
    apart, anywhere = Resources(gpus=8, machines=2), Resources(cpus=2, seats=3)

    assert (apart.seats, anywhere.machines, Resources().gang) == (2, 1, "")
    assert (apart.gang, anywhere.gang) == ("2:apart:8 GPUs, 1 CPU", "3:any:2 CPUs")
    assert [Assignment({}, gang=each.gang).seats for each in (apart, anywhere, Resources())] == [2, 3, 1]
    for asked in (apart, anywhere):
        assert Resources.decode(asked.encode()) == asked
        assert asked.fits(asked.of_seat)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"machines": 2, "seats": 4}, "machines=2 and seats=4 are given"),
        ({"seats": MOST_SEATS + 1}, f"no more than {MOST_SEATS} seats"),
        ({"machines": 0}, "machines"),
        ({"seats": 1.5}, "seats"),
    ],
)
def test_seats_that_can_not_be_had_are_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        Resources(**asked)


# Slots that several teams share have one name, and a queue for each team.

SHAPE = queue_name(Resources(gpus=1))


def test_the_slots_of_several_patterns_have_a_queue_for_each_and_one_for_all_experiments() -> None:
    shared = queue_name(Resources(gpus=1), checked_patterns("team-b-*, *,team-a-*,team-b-*"))

    assert shared == f"{SHAPE}@*,team-a-*,team-b-*"
    assert queues_of(shared) == [SHAPE, f"{SHAPE}@team-a-*", f"{SHAPE}@team-b-*"]
    for one in (SHAPE, f"{SHAPE}@team-a-*"):
        assert queues_of(one) == [one]


def test_what_waits_for_them_is_taken_by_priority_before_it_is_by_team() -> None:
    lists = lists_of(f"{SHAPE}@team-a-*,team-b-*")

    first, second = lists[:2]
    assert (first[:-1], second[:-1]) == (f"{SHAPE}@team-a-*\x06\x16", f"{SHAPE}@team-b-*\x06\x16")
    assert first[-1] == second[-1]
    assert lists == [*dict.fromkeys(lists)]


def test_a_worker_serves_what_fits_one_of_its_patterns() -> None:
    assert [serves("team-a-*,team-b-*", name) for name in ("team-a-1", "team-b-1", "team-c-1")] == [True, True, False]


@pytest.mark.parametrize("experiments", ["", "team-a-*,", "team a", "team-a-*;team-b-*"])
def test_what_is_no_pattern_is_refused(experiments: str) -> None:
    with pytest.raises(ConfigurationError, match="can't be names of experiments"):
        checked_patterns(experiments)
