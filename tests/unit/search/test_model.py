"""Domains as models know them: within bounds, and the same values on the way back."""

from __future__ import annotations

import random
from typing import Final

import pytest

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.search.kinds import Domain, Interval
from mqtune.search.model import Kind, parameter, shares

DOMAINS: Final[dict[str, tuple[Domain, Kind]]] = {
    "uniform": (mqtune.uniform(-2, 3), Kind.INTERVAL),
    "loguniform": (mqtune.loguniform(1e-5, 1), Kind.INTERVAL),
    "reverseloguniform": (mqtune.reverseloguniform(0.9, 0.999), Kind.INTERVAL),
    "normal": (mqtune.normal(1, 2), Kind.INTERVAL),
    "quniform": (mqtune.quniform(0, 1, 0.05), Kind.STEPS),
    "lograndint": (mqtune.lograndint(8, 512), Kind.STEPS),
    "ordinal": (mqtune.ordinal([1, 2, 4]), Kind.ORDERED),
    "choice": (mqtune.choice(["relu", None, [1, 2]]), Kind.UNORDERED),
    "entries": (mqtune.choice([{"a": mqtune.uniform(0, 1)}, {"b": 1}]), Kind.UNORDERED),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_a_value_is_within_the_models_bounds_and_comes_back(name: str) -> None:
    domain, kind = DOMAINS[name]
    known, rng = parameter("Mine", "Theirs", domain), random.Random(3)

    assert known.kind is kind
    for _ in range(50):
        value = domain.sample(rng)
        param = known.to_param(value)
        assert known.low <= param <= known.high
        back = known.to_value(param)
        assert back == (pytest.approx(value, rel=1e-6) if kind is Kind.INTERVAL else value)


@pytest.mark.parametrize("name", DOMAINS)
def test_what_a_model_proposes_at_its_bounds_is_in_the_domain(name: str) -> None:
    domain, _ = DOMAINS[name]
    known = parameter("Mine", "Theirs", domain)

    for param in (known.low, known.high):
        domain.check(known.to_value(param))


def test_an_interval_may_be_known_by_shares_of_what_is_sampled() -> None:
    domain = mqtune.loguniform(1e-4, 1)
    assert isinstance(domain, Interval)
    known = shares(domain)

    assert (known.low, known.high, known.log) == (0, 1, False)
    assert known.to_value(0.5) == pytest.approx(1e-2)
    assert known.to_param(1e-2) == pytest.approx(0.5)


def test_a_domain_of_the_users_own_is_refused_by_name() -> None:
    unknown = mqtune.sample_from(lambda _: 1)

    with pytest.raises(ConfigurationError, match=r"Mine: .* is a domain that Theirs has nothing like"):
        parameter("Mine", "Theirs", unknown)
