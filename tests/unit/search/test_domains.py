"""Domains: where a value lies in its domain, and those that have an order of their own."""

from __future__ import annotations

import math
import random
from collections import Counter
from statistics import NormalDist

import pytest
from hypothesis import given, strategies as st

import mqtune
from mqtune.core.errors import SpaceError
from mqtune.search.domains import domain_of
from mqtune.search.kinds import Choice, Domain, Interval, Multiples, Normal, Ordinal, RoundedNormal

DOMAINS = {
    "uniform": mqtune.uniform(-1, 3),
    "widest": mqtune.uniform(-1.7e308, 1.7e308),
    "loguniform": mqtune.loguniform(1e-9, 1e3),
    "reverseloguniform": mqtune.reverseloguniform(0, 0.9999),
    "quniform": mqtune.quniform(0.25, 1, 0.1),
    "qloguniform": mqtune.qloguniform(0.5, 100, 0.5),
    "normal": mqtune.normal(3, 0.5),
    "qrandn": mqtune.qrandn(3, 0.5, 0.1),
    "qrandn of few values": mqtune.qrandn(0, 1, 2),
    "randint": mqtune.randint(-4, 9),
    "qrandint": mqtune.qrandint(0, 100, 7),
    "lograndint": mqtune.lograndint(1, 100_000),
    "qlograndint": mqtune.qlograndint(8, 100_000, 8),
    "choice": mqtune.choice(["a", None, True, 1, [1, {"b": 2.0}]]),
    "ordinal": mqtune.ordinal([16, 8, "all"]),
    "finrange": mqtune.finrange(0.1, 1, 10),
    "grid_search": mqtune.grid_search([1, 2, 3]),
}


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS.keys())
@given(share=st.floats(0, 1, exclude_max=True))
def test_at_the_share_of_a_value_lies_that_value(domain: Domain, share: float) -> None:
    value = domain.at(share)

    again = domain.at(min(domain.share(value), math.nextafter(1, 0)))
    assert 0 <= domain.share(value) <= 1
    if isinstance(domain, RoundedNormal):
        # As far from the mean as shares tell multiples apart.
        assert again == value or abs(value - domain.mean) > 5 * domain.sd
    elif isinstance(domain, Multiples | Choice):
        assert again == value
    else:
        assert domain.share(value) == pytest.approx(share, abs=1e-6)
        # Far from a normal distribution's mean a share has so few digits that they don't tell the value.
        assert isinstance(domain, Normal) or again == pytest.approx(value, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS.keys())
def test_a_domain_is_made_again_from_its_description(domain: Domain) -> None:
    assert domain_of(domain.describe()) == domain


def test_a_value_that_is_none_of_the_options_has_no_place() -> None:
    domain = mqtune.choice([1, "1"])
    assert isinstance(domain, Choice)

    assert [domain.place(1), domain.place("1")] == [0, 1]
    with pytest.raises(SpaceError, match=r"True is not one of choice\(\[1, '1'\]\)"):
        domain.place(True)


def test_the_values_of_a_reverse_log_domain_crowd_at_its_upper_end() -> None:
    domain, rng = mqtune.reverseloguniform(0.9, 0.9999), random.Random(0)
    values = [domain.sample(rng) for _ in range(3000)]

    assert all(0.9 <= domain.check(value) <= 0.9999 for value in values)
    thirds = Counter(math.floor(-math.log10(1 - value) + 1e-9) for value in values)
    assert all(900 < thirds[digits] < 1100 for digits in (1, 2, 3))
    with pytest.raises(SpaceError, match="outside reverseloguniform"):
        domain.check(0.5)
    assert isinstance(domain, Interval)


def test_a_finite_range_has_both_bounds_and_even_steps_or_integers() -> None:
    steps, logs = mqtune.finrange(0.1, 1, 10), mqtune.logfinrange(1, 1000, 4)
    assert isinstance(steps, Ordinal)
    assert isinstance(logs, Ordinal)

    assert steps.options == pytest.approx([0.1 * k for k in range(1, 11)])
    assert (steps.options[0], steps.options[-1]) == (0.1, 1.0)
    assert logs.options == pytest.approx([1, 10, 100, 1000])
    assert (logs.options[0], logs.options[-1]) == (1.0, 1000.0)
    # One of integers is rounded.
    assert mqtune.logfinrange(8, 300, 7, cast_int=True) == mqtune.ordinal([8, 15, 27, 49, 90, 164, 300])
    assert mqtune.finrange(1, 10, 4, cast_int=True) == mqtune.ordinal([1, 4, 7, 10])
    assert all(type(option) is int for option in mqtune.finrange(1, 10, 4, cast_int=True).options)  # type: ignore[attr-defined]


def test_what_is_rounded_of_a_normal_distribution_is_as_likely_as_all_that_is_rounded_to_it() -> None:
    domain, rng = mqtune.qrandn(1, 0.1, 0.1), random.Random(0)
    counts = Counter(domain.sample(rng) for _ in range(10_000))
    drawn = Counter(domain.at((number + 0.5) / 10_000) for number in range(10_000))

    within = NormalDist(1, 0.1)
    for value in (0.8, 0.9, 1.0, 1.1, 1.2):
        likely = within.cdf(value + 0.05) - within.cdf(value - 0.05)
        assert drawn[value] / 10_000 == pytest.approx(likely, abs=1e-3)
        assert counts[value] / 10_000 == pytest.approx(likely, abs=0.02)
    assert domain.share(1.0) == pytest.approx(0.5)
    assert domain.check(0.3) == 0.3
    with pytest.raises(
        SpaceError, match=r"0.35 is not a multiple of q=0.1 in qrandn\(1.0, 0.1, 0.1\); the nearest is 0.4"
    ):
        domain.check(0.35)


def test_the_multiples_of_a_log_scale_of_integers_are_as_likely_as_their_stretches() -> None:
    domain, rng = mqtune.qlograndint(10, 1000, 10), random.Random(0)
    values = [domain.sample(rng) for _ in range(6000)]

    assert all(type(value) is int and domain.check(value) == value and value % 10 == 0 for value in values)
    assert {10, 1000} <= set(values)
    # From half a step below the first to half a step above the last.
    likely = (math.log(9.5) - math.log(0.5)) / (math.log(100.5) - math.log(0.5))
    assert sum(value < 95 for value in values) / 6000 == pytest.approx(likely, abs=0.03)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mqtune.finrange(1, 3, 4, cast_int=True), "finrange: size=4 gives 3 different integers"),
        (lambda: mqtune.logfinrange(1, 10, 20, cast_int=True), "logfinrange: size=20 gives 10 different integers"),
        (lambda: mqtune.finrange(1, 0, 3), "low=1 must be below high=0"),
        (lambda: mqtune.finrange(0, 1, 1), "finrange: size=1 must be at least 2"),
        (lambda: mqtune.finrange(0, 1, 2.0), "size=2.0"),
        (lambda: mqtune.finrange(0, 1, 10**9), "is more than 10,000; use quniform or uniform"),
        (lambda: mqtune.logfinrange(0, 1, 3), "low=0.0 must be above 0"),
        (lambda: mqtune.qrandn(0, 0, 1), "qrandn: sd=0 must be above 0"),
        (lambda: mqtune.qrandn(0, 1, 0), "qrandn: q=0 must be above 0"),
        (lambda: mqtune.qrandn(1e20, 1, 1), "qrandn: q=1 is too small for floats around .*; use normal"),
        (lambda: mqtune.qlograndint(0, 8, 2), "qlograndint: low=0 must be above 0"),
        (lambda: mqtune.qlograndint(8, 16, 2.5), "q=2.5 is not a whole number"),
        (lambda: mqtune.ordinal([]), "is empty"),
        (lambda: mqtune.ordinal("abc"), "not a list"),
        (lambda: mqtune.reverseloguniform(0.9, math.nan), "high=nan"),
        (lambda: mqtune.reverseloguniform(-0.1, 0.5), "must lie from 0 up to, and without, 1"),
        (lambda: mqtune.reverseloguniform(0.5, 1), "must lie from 0 up to, and without, 1"),
    ],
)
def test_bounds_that_can_not_be_meant_are_named(make: object, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        make()  # type: ignore[operator]
