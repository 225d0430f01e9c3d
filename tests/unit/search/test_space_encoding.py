"""Configs as arrays: there and back again, for any space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mqtune
from mqtune import Space
from mqtune.core.errors import SpaceError
from mqtune.search import Encoding

SPACE = Space(
    {
        "opt": mqtune.choice(
            [
                {"name": "adam", "lr": mqtune.loguniform(1e-4, 1)},
                {"name": "sgd", "lr": mqtune.uniform(0, 2), "nesterov": mqtune.choice([False, True])},
            ]
        ),
        "layers": [mqtune.randint(1, 4), mqtune.choice(["relu", None, [1, 2]])],
        "depth": 3,
        "only": mqtune.choice(["one"]),
        "half": mqtune.sample_from(lambda config: config["layers"][0] / 2),
    }
)
NAN = math.nan


def test_a_config_is_a_row_with_a_column_for_each_number_and_each_value_of_a_choice() -> None:
    encoding = Encoding(SPACE)
    adam = {"opt": {"name": "adam", "lr": 0.01}, "layers": [1, None], "depth": 3, "only": "one", "half": 0.5}
    sgd = {
        "opt": {"name": "sgd", "lr": 0.5, "nesterov": True},
        "layers": [4, [1, 2]],
        "depth": 3,
        "only": "one",
        "half": 2.0,
    }

    columns = ["opt=0", "opt=1", "opt/0/lr", "opt/1/lr", "opt/1/nesterov=0", "opt/1/nesterov=1"]
    assert encoding.columns == [*columns, "layers/0", "layers/1=0", "layers/1=1", "layers/1=2"]
    np.testing.assert_allclose(
        encoding.encode([adam, sgd]),
        [[1, 0, 0.5, NAN, NAN, NAN, 0.125, 0, 1, 0], [0, 1, NAN, 0.25, 0, 1, 0.875, 0, 0, 1]],
    )
    assert all(map(alike, encoding.decode(encoding.encode([sgd, adam])), [sgd, adam]))


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[0.5]], "2 columns"),
        ([0.5, 0.5], "2 columns"),
        ([[0.5, 1.5]], r"y: \[1.5\] is not from 0 to 1"),
        ([[NAN, 0.5]], r"x: \[nan\] is not from 0 to 1"),
    ],
)
def test_what_is_no_row_is_refused(rows: Any, text: str) -> None:
    encoding = Encoding(Space({"x": mqtune.uniform(0, 1), "y": mqtune.normal(0, 1)}))

    with pytest.raises(SpaceError, match=text):
        encoding.decode(rows)


@pytest.mark.parametrize(("config", "text"), [({"x": 2.0}, "outside"), ({}, "lacks x"), ({"y": 1}, "not in the space")])
def test_what_is_no_config_is_refused(config: Any, text: str) -> None:
    with pytest.raises(SpaceError, match=text):
        Encoding(Space({"x": mqtune.uniform(0, 1)})).encode([config])


# Any space.

_bounds = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
_positive = st.tuples(st.floats(1e-6, 1e3), st.floats(1.5, 1e6)).map(lambda pair: (pair[0], pair[0] * pair[1]))
_whole = st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)).map(lambda pair: (pair[0], sum(pair)))
_values = st.lists(st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.floats(-9, 9)), min_size=1, max_size=4)
_leaves = st.one_of(
    _bounds.map(lambda pair: mqtune.uniform(*pair)),
    _positive.map(lambda pair: mqtune.loguniform(*pair)),
    st.floats(0, 0.99).map(lambda low: mqtune.reverseloguniform(low, 0.9999)),
    _whole.map(lambda pair: mqtune.randint(*pair)),
    _whole.map(lambda pair: mqtune.lograndint(*pair)),
    st.integers(1, 9).map(lambda steps: mqtune.quniform(-0.3, 0.1 * steps, 0.1)),
    st.integers(2, 99).map(lambda steps: mqtune.qloguniform(0.1, 0.1 * steps, 0.1)),
    _whole.map(lambda pair: mqtune.qlograndint(pair[0], sum(pair), pair[0])),
    _values.map(mqtune.choice),
    _values.map(mqtune.ordinal),
    st.just(3),
)


def _entry(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    dicts = st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3)
    return st.one_of(
        dicts, st.lists(inner, min_size=1, max_size=3), st.lists(inner, min_size=1, max_size=3).map(mqtune.choice)
    )


_spaces = st.dictionaries(st.sampled_from("xyz"), st.recursive(_leaves, _entry, max_leaves=8), min_size=1, max_size=3)
_quick = settings(suppress_health_check=[HealthCheck.too_slow])


def alike(left: Any, right: Any) -> bool:
    """Whether two configs are the same but for the rounding of floats that were not chosen of a list."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, float) or isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-6)
    return bool(left == right)


@_quick
@given(_spaces, st.integers(0, 2**32))
def test_every_point_of_the_cube_is_a_config_and_its_row(definition: dict[str, Any], seed: int) -> None:
    space = Space(definition)
    encoding, rng = Encoding(space), np.random.default_rng(seed)
    rows = rng.random((4, len(encoding.columns)))
    # Corners too.
    rows[1:] = np.where(rng.random(rows[1:].shape) < 0.5, rows[1:].round(), rows[1:])

    for config, again in zip(found := encoding.decode(rows), encoding.decode(encoding.encode(found)), strict=True):
        space.check(config, partial=False)
        assert alike(config, again)
