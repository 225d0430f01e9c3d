"""Searchers: determinism, grids, repeats and points to evaluate first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mqtune import (
    GridSearcher,
    InitialPoints,
    RandomSearcher,
    Space,
    choice,
    grid_search,
    lograndint,
    loguniform,
    normal,
    randint,
    sample_from,
    uniform,
)
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import Config, TrialId
from mqtune.search import Searcher

#: A busy machine is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def take(searcher: Searcher, count: int) -> list[Config]:
    """Return the next *count* suggestions, none of which may be missing."""
    configs = []
    for _ in range(count):
        config = searcher.suggest(TrialId("0001"))
        assert config is not None
        configs.append(config)
    return configs


def different(configs: list[Config]) -> int:
    return len({repr(config) for config in configs})


@pytest.fixture
def space() -> Space:
    return Space({"lr": loguniform(1e-4, 0.1), "model": {"width": randint(8, 64)}, "noise": normal(0, 1)})


@pytest.fixture
def grid() -> Space:
    return Space({"a": grid_search([1, 2]), "x": uniform(0, 1), "b": grid_search(["p", "q", "r"])})


@pytest.mark.parametrize(
    "definition",
    [
        {"a": choice([1, 2, 3]), "b": {"c": randint(0, 4)}},
        {"a": lograndint(1, 500)},
        {"a": choice(["often"] * 50 + ["rare"])},
        {"a": choice([1, 2]), "b": sample_from(lambda config: config["a"] + 1), "c": 3},
        {"a": choice([[1], {"x": 1}, {"x": 2}, 1.5, 1, True, None])},
        {"only": "constants"},
        {},
    ],
    ids=["nested", "log", "uneven", "computed", "all types", "constant", "empty"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_small_finite_space_is_proposed_without_repeats(definition: dict[str, Any], seed: int) -> None:
    space = Space(definition)
    assert space.size is not None
    searcher = RandomSearcher(space, seed)

    passes = [take(searcher, space.size) for _ in range(3)]

    assert [different(configs) for configs in passes] == [space.size] * 3


def test_what_sampling_hardly_ever_finds_comes_in_an_order_of_its_own_for_each_seed() -> None:
    space = Space({"x": choice([*["often"] * 5000, *range(20)])})

    orders = {str([config["x"] for config in take(RandomSearcher(space, seed), 21)[1:]]) for seed in range(5)}

    assert len(orders) == 5


@pytest.mark.parametrize("seed", range(3))
def test_a_small_space_with_a_constraint_is_covered_without_repeats_and_then_all_over(seed: int) -> None:
    space = Space({"a": randint(1, 30), "b": randint(1, 30)}, constraint=lambda config: config["a"] * config["b"] == 24)
    searcher = RandomSearcher(space, seed)

    passes = [take(searcher, 8) for _ in range(3)]

    assert [{config["a"] for config in configs} for configs in passes] == [{1, 2, 3, 4, 6, 8, 12, 24}] * 3


@patient
@given(points=st.lists(st.integers(1, 6), max_size=8), late=st.integers(1, 6), seed=st.integers(0, 99))
def test_a_finite_space_is_covered_whatever_is_avoided(points: list[int], late: int, seed: int) -> None:
    space = Space({"x": randint(1, 6)})
    searcher = InitialPoints([{"x": x} for x in points], RandomSearcher(space, seed), space=space)

    proposed = {config["x"] for config in take(searcher, len(points))}
    fresh = [config["x"] for config in take(searcher, 6 - len(proposed))]
    searcher.avoid({"x": late})

    assert sorted([*proposed, *fresh]) == [1, 2, 3, 4, 5, 6]
    assert 1 <= take(searcher, 1)[0]["x"] <= 6


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([{"model": {"widht": 8}}], r"points\[0\]: model/widht is not in the space, which has width there"),
        ([{}, {}, "lr"], r"points\[2\]: the config: 'lr' is not a dict"),
        ({"lr": 3}, "points={'lr': 3} is not a list of dicts"),
        ("lr", "points='lr' is not a list"),
    ],
)
def test_a_bad_point_is_refused_at_once_by_index_key_and_value(space: Space, points: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        InitialPoints(points, RandomSearcher(space), space=space)


@patient
@given(seed=st.integers(0, 99), count=st.integers(0, 12), began=st.randoms(use_true_random=False))
def test_a_finite_space_is_covered_also_if_the_journal_has_other_configs(seed: int, count: int, began: Any) -> None:
    """As an earlier version drew other ones from the same seed."""
    space = Space({"x": randint(1, 6), "y": choice(["p", "q"])})
    tried = began.sample([{"x": x, "y": y} for x in range(1, 7) for y in "pq"], count)
    searcher = RandomSearcher(space, seed)

    replayed = [searcher.replay(TrialId("0001"), config) for config in tried]

    assert replayed == tried
    assert different(tried + take(searcher, 12 - count)) == 12
    assert different(take(searcher, 12)) == 12


def test_points_come_before_what_the_other_searcher_replays() -> None:
    space = Space({"x": randint(1, 6)})
    searcher = InitialPoints([{"x": 3}], RandomSearcher(space), space=space)

    assert searcher.replay(TrialId("0001"), {"x": 3}) == {"x": 3}
    assert searcher.replay(TrialId("0001"), {"x": 5}) == {"x": 5}
    assert {config["x"] for config in take(searcher, 4)} == {1, 2, 4, 6}


@pytest.mark.parametrize("seed", [-3, 0, 2**70])
def test_any_whole_number_is_a_seed(seed: int, space: Space) -> None:
    assert take(RandomSearcher(space, seed), 2) == take(RandomSearcher(space, seed), 2)
    assert take(RandomSearcher(space, seed), 2) != take(RandomSearcher(space, seed + 1), 2)


@pytest.mark.parametrize(
    "make", [RandomSearcher, GridSearcher, lambda space, seed=0: InitialPoints([], "random", space=space, seed=seed)]
)
def test_a_searcher_refuses_a_space_or_a_seed_that_is_none(make: Any, grid: Space) -> None:
    with pytest.raises(ConfigurationError, match=r"space={'x': 1} is not a Space"):
        make({"x": 1}, 0)
    with pytest.raises(ConfigurationError, match=r"seed=1.5 is not a whole number"):
        make(grid, 1.5)
    with pytest.raises(ConfigurationError, match="no grid_search entry; give one, or use RandomSearcher"):
        GridSearcher(Space({"x": 1}))


def test_points_come_before_the_configs_of_a_searcher_that_is_named_as_a_tuner_names_it() -> None:
    tpe = InitialPoints([{"x": 0.5}], "tpe")

    assert tpe.count is None
    assert tpe.can_learn
    assert InitialPoints([{"x": 0.5}], "random").count == 1
    with pytest.raises(ConfigurationError, match="searcher='best' is not a searcher, nor one of random, tpe, auto, ax"):
        InitialPoints([{"x": 0.5}], "best")


def test_a_bad_point_for_the_tuners_space_is_refused_before_the_first_trial() -> None:
    with pytest.raises(ConfigurationError, match=r"points\[1\]: y is not in the space"):
        InitialPoints([{}, {"y": 1}]).check_space(Space({"x": uniform(0, 1)}))
