"""Domains: where a value lies in its domain, and those that have an order of their own."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

import mqtune
from mqtune.core.errors import ConfigurationError, SpaceError
from mqtune.search import Choice, Domain, Kind, Multiples, Normal, Ordinal, RoundedNormal, domain_of, parameter

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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mqtune.uniform(1, 0), "uniform: low=1.0 must be below high=0.0"),
        (lambda: mqtune.uniform("0", 1), "uniform: low='0' is not a finite number"),
        (lambda: mqtune.uniform(0, None), "high=None is not a finite number"),
        (lambda: mqtune.loguniform(0, 1), "loguniform: low=0.0 must be above 0"),
        (lambda: mqtune.qloguniform(0, 1, 0.1), "qloguniform: low=0 must be above 0"),
        (lambda: mqtune.quniform(0, 1, 0), "quniform: q=0 must be above 0"),
        (lambda: mqtune.quniform(0, 1, 2), "q=2 is larger than the range from 0 to 1"),
        (lambda: mqtune.quniform(0, 1e6, 1e-12), "q=1e-12 is too small"),
        (lambda: mqtune.qrandint(0, 10, 2.5), "qrandint: q=2.5 is not a whole number"),
        (lambda: mqtune.randint(0, 10.0), "randint: high=10.0 is not a whole number"),
        (lambda: mqtune.randint(5, 5), "randint: low=5 must be below high=5"),
        (lambda: mqtune.randint(0, 2**64), "high: 18446744073709551616 does not fit in 64 bits"),
        (lambda: mqtune.lograndint(0, 10), "lograndint: low=0 must be above 0"),
        (lambda: mqtune.qlograndint(0, 8, 2), "qlograndint: low=0 must be above 0"),
        (lambda: mqtune.qlograndint(8, 16, 2.5), "q=2.5 is not a whole number"),
        (lambda: mqtune.normal(0, 0), "normal: sd=0 must be above 0"),
        (lambda: mqtune.qrandn(0, 0, 1), "qrandn: sd=0 must be above 0"),
        (lambda: mqtune.qrandn(0, 1, 0), "qrandn: q=0 must be above 0"),
        (lambda: mqtune.qrandn(1e20, 1, 1), "qrandn: q=1 is too small for floats around .*; use normal"),
        (lambda: mqtune.reverseloguniform(0.9, math.nan), "high=nan"),
        (lambda: mqtune.reverseloguniform(-0.1, 0.5), "must lie from 0 up to, and without, 1"),
        (lambda: mqtune.reverseloguniform(0.5, 1), "must lie from 0 up to, and without, 1"),
        (lambda: mqtune.finrange(1, 3, 4, cast_int=True), "finrange: size=4 gives 3 different integers"),
        (lambda: mqtune.logfinrange(1, 10, 20, cast_int=True), "logfinrange: size=20 gives 10 different integers"),
        (lambda: mqtune.finrange(1, 0, 3), "low=1 must be below high=0"),
        (lambda: mqtune.finrange(0, 1, 1), "finrange: size=1 must be at least 2"),
        (lambda: mqtune.finrange(0, 1, 2.0), "size=2.0"),
        (lambda: mqtune.finrange(0, 1, 10**9), "is more than 10,000; use quniform or uniform"),
        (lambda: mqtune.logfinrange(0, 1, 3), "low=0.0 must be above 0"),
        (lambda: mqtune.ordinal([]), "is empty"),
        (lambda: mqtune.ordinal("abc"), "not a list"),
        (lambda: mqtune.ordinal([1, mqtune.uniform(0, 1)]), r"ordinal: \[1, uniform\(0.0, 1.0\)\] holds a domain, .*; use choice"),
        (lambda: mqtune.choice([]), r"choice: the list \[\] is empty"),
        (lambda: mqtune.choice("adam"), "choice: 'adam' is not a list"),
        (lambda: mqtune.choice([1, object]), "choice: value 1: <class 'object'> is of type type, which can't be sent"),
        (lambda: mqtune.choice([{"lr": mqtune.uniform(0, 1), "act": print}]), "choice: value 0/act: <built-in .* can't be sent to a worker"),
        (lambda: mqtune.choice([{"lr": mqtune.uniform(0, 1), 3: 1}]), "choice: value 0: the key 3 is not a string"),
        (lambda: mqtune.grid_search([]), r"grid_search: the list \[\] is empty"),
        (lambda: mqtune.grid_search([{1, 2}]), r"grid_search: value 0: \{1, 2\} is of type set"),
        (lambda: mqtune.sample_from(3), "sample_from: 3 is not a function"),
    ],
)  # fmt: skip
def test_a_domain_that_makes_no_sense_is_refused_by_name_and_value(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SpaceError, match=message) as refused:
        make()
    assert isinstance(refused.value, ConfigurationError | ValueError)


MODELLED: dict[str, tuple[Domain, Kind]] = {
    **{name: (DOMAINS[name], Kind.INTERVAL) for name in ("uniform", "loguniform", "reverseloguniform", "normal")},
    **{name: (DOMAINS[name], Kind.STEPS) for name in ("quniform", "lograndint")},
    "ordinal": (DOMAINS["ordinal"], Kind.ORDERED),
    "choice": (DOMAINS["choice"], Kind.UNORDERED),
    "entries": (mqtune.choice([{"a": mqtune.uniform(0, 1)}, {"b": 1}]), Kind.UNORDERED),
}


@pytest.mark.parametrize(("domain", "kind"), MODELLED.values(), ids=MODELLED)
def test_a_value_is_within_the_models_bounds_and_comes_back(domain: Domain, kind: Kind) -> None:
    known, rng = parameter("Mine", "Theirs", domain), random.Random(3)

    for _ in range(50):
        value = domain.sample(rng)
        param = known.to_param(value)
        assert known.low <= param <= known.high
        back = known.to_value(param)
        assert back == (pytest.approx(value, rel=1e-6) if kind is Kind.INTERVAL else value)


@pytest.mark.parametrize("make", [mqtune.choice, mqtune.ordinal, mqtune.grid_search])
@pytest.mark.parametrize(
    ("values", "named"), [([2, 1, 1.0], "1 and 1.0"), ([0.0, -0.0], "0.0 and -0.0"), ([{"a": [1]}, {"a": [True]}], "are equal")]
)  # fmt: skip
def test_equal_values_of_different_types_are_refused(
    make: Callable[[list[object]], Domain], values: list[object], named: str
) -> None:
    with pytest.raises(SpaceError, match=f"{make.__name__}: .*{named}.* leave one out, or give both as texts"):
        make(values)


def test_repeated_values_and_flags_beside_numbers_can_be_told_apart() -> None:
    repeated = mqtune.choice([1, 1, True, "1", math.nan, math.nan])

    assert [repeated.check(value) for value in (1, True, "1")] == [1, True, "1"]
    assert repr([*repeated.values()]) == "[1, True, '1', nan]"


def test_a_stored_space_may_have_equal_values() -> None:
    stored = {"domain": "choice", "values": [1, 1.0]}

    assert domain_of(stored).describe() == stored


def test_a_domain_of_the_users_own_is_refused_by_name() -> None:
    unknown = mqtune.sample_from(lambda _: 1)

    with pytest.raises(ConfigurationError, match=r"Mine: .* is a domain that Theirs has nothing like"):
        parameter("Mine", "Theirs", unknown)
