"""Resources: what is refused, which slot fits, and where a trial queues."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import ConfigurationError
from mqtune.core.priorities import lists_of
from mqtune.core.resources import MOST_TASKS, Resources, checked_patterns, queue_name, queues_of
from mqtune.core.version import __version__


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("gpus", [-1, -0.5, 1.5, 2.25], "is impossible; give 0, a share below 1"),
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
    for shape in (asked, offered):
        assert shape.fits(shape)
        assert Resources.decode(decode_value(encode_value(shape.encode()))) == shape


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
    ("asked", "says"),
    [
        ({"machines": 2, "seats": 4}, "machines=2 and seats=4 are both given"),
        ({"seats": MOST_TASKS + 1}, f"at most {MOST_TASKS} seats"),
        ({"machines": 0}, "machines"),
        ({"seats": 1.5}, "seats"),
    ],
)
def test_seats_that_can_not_be_had_are_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        Resources(**asked)


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


@pytest.mark.parametrize("experiments", ["", "team-a-*,", "team a", "team-a-*;team-b-*"])
def test_what_is_no_pattern_is_refused(experiments: str) -> None:
    with pytest.raises(ConfigurationError, match="can't be names of experiments"):
        checked_patterns(experiments)
