"""Importances: each parameter's share of the variance, on functions with known shares."""

from __future__ import annotations

import math
import random

import pytest

from mqtune.results import ParameterAxis, importances

COUNT = 600


@pytest.fixture
def noise() -> random.Random:
    return random.Random(1)


def test_shares_are_those_of_an_additive_function(noise: random.Random):
    """The variances are 16/12, 4/12 and 2/9."""
    rate = [10 ** noise.uniform(-4, 0) for _ in range(COUNT)]
    width = [noise.uniform(0, 2) for _ in range(COUNT)]
    kind = [float(noise.randrange(3)) for _ in range(COUNT)]
    unused = [noise.random() for _ in range(COUNT)]
    parameters = [
        ParameterAxis("rate", rate, is_log=True),
        ParameterAxis("width", width),
        ParameterAxis("kind", kind, names=("a", "b", "c")),
        ParameterAxis("unused", unused),
    ]
    values = [math.log10(x) + y + (z == 1) for x, y, z in zip(rate, width, kind, strict=True)]

    found = importances(parameters, values)

    variances = [16 / 12, 4 / 12, 2 / 9, 0.0]
    assert found == pytest.approx([variance / sum(variances) for variance in variances], abs=0.05)
    assert sum(found) == pytest.approx(1)
    # The forest has a seed.
    assert importances(parameters, values) == found


def test_a_missing_value_is_a_category_of_its_own_or_the_median(noise: random.Random):
    has_kind = [noise.random() < 0.5 for _ in range(COUNT)]
    kind = [float(noise.randrange(2)) if has else math.nan for has in has_kind]
    momentum = [noise.random() if has else math.nan for has in has_kind]
    parameters = [ParameterAxis("kind", kind, names=("a", "b")), ParameterAxis("momentum", momentum)]

    by_presence = importances(parameters, [float(has) for has in has_kind])
    by_momentum = importances(parameters, [0.5 if math.isnan(place) else place for place in momentum])

    assert by_presence[0] > 0.95
    assert by_momentum[1] > 0.95


def test_without_variance_all_shares_are_zero():
    parameters = [ParameterAxis("rate", [1.0, 2.0, 3.0]), ParameterAxis("width", [3.0, 1.0, 2.0])]

    assert importances(parameters, [1.0, 1.0, 1.0]) == [0.0, 0.0]
