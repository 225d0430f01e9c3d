"""Domains as Optuna's distributions, and the way back; needs the extra ``optuna``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Final

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from mqtune import Space
from mqtune.extend import (
    Choice,
    Domain,
    Entries,
    Interval,
    Kind,
    Multiples,
    Normal,
    Ordinal,
    ReverseInterval,
    SpaceError,
    is_same,
    parameter,
)

#: The bounds of a normal distribution, in standard deviations from its mean: Optuna's have some, and no value lies beyond.
_BOUND_SDS: Final = 40.0
#: How far, in proportion, Optuna's arithmetic may move a multiple.
_ROUNDED: Final = 1e-9
#: The most steps of a float that Optuna tells from the numbers between them: it allows 1e-8 of a step for rounding.
_MOST_STEPS: Final = 10**6


@dataclass(frozen=True, slots=True)
class Shown:
    """A domain as a study shows it.

    Attributes:
        distribution: Optuna's distribution of its values.
        to_param: returns Optuna's value for a value of the space.
        to_value: returns the value of the space for one of Optuna's.
    """

    distribution: BaseDistribution
    to_param: Callable[[Any], object]
    to_value: Callable[[Any], object] = lambda param: param


def shown_by_value(domain: Domain) -> Shown:
    """Return a domain as its own values, for people and for samplers that name values.

    Raises:
        SpaceError: it is a domain of the user's own.
    """
    match domain:
        case ReverseInterval():
            return Shown(FloatDistribution(domain.low, domain.high), float)
        case Interval():
            return Shown(FloatDistribution(domain.low, domain.high, log=domain.log), float)
        case Multiples(whole=True):
            low, high = int(domain.value(domain.first)), int(domain.value(domain.last))
            # Optuna's logarithmic integers have no steps.
            return Shown(IntDistribution(low, high, log=domain.log, step=1 if domain.log else int(domain.q)), int)
        case Multiples():
            low_q, high_q = domain.value(domain.first), domain.value(domain.last)
            return Shown(FloatDistribution(low_q, high_q, log=domain.log), float, partial(_multiple, domain))
        case Normal():
            reach = _BOUND_SDS * domain.sd
            return Shown(FloatDistribution(domain.mean - reach, domain.mean + reach), float)
        case Entries():
            return Shown(
                CategoricalDistribution(domain.names), lambda index: domain.names[index], partial(_index, domain.names)
            )
        case Choice():
            return _categories(domain)
        case _:
            raise SpaceError(f"{domain} is a domain that Optuna has nothing like")


def shown_to_sampler(domain: Domain, *, is_named: bool) -> Shown:
    """Return a domain as a sampler is to see it.

    That is by its own values, so far as Optuna has a distribution that is as the domain. Others have another form, in which a
    sampler can learn: places in a list, numbers of steps, or shares. Such a form is of no use where values are named.

    Args:
        domain: the domain.
        is_named: whether the sampler was given values of it.

    Raises:
        ConfigurationError: it is a domain of the user's own.
    """
    match domain:
        case Multiples(log=False) if _has_steps(domain):
            return _steps(domain)
        case Choice() if not isinstance(domain, Ordinal) and _are_different(domain):
            return _categories(domain)
        case Interval() | Multiples() | Normal() | Choice() if is_named:
            return shown_by_value(domain)
    known = parameter("OptunaSearcher", "Optuna", domain)
    if known.kind is Kind.INTERVAL:
        return Shown(FloatDistribution(known.low, known.high, log=known.log), known.to_param, known.to_value)
    if known.kind is Kind.UNORDERED:
        return Shown(CategoricalDistribution(range(known.high + 1)), known.to_param, known.to_value)
    return Shown(IntDistribution(known.low, known.high, log=known.log), known.to_param, known.to_value)


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    """Return the distributions that a sampler sees, by the paths that parameters have there.

    It is for samplers that want them when they are made, such as OptunaHub's SMAC: ``SMACSampler(distributions_of(space))``.

    Raises:
        ConfigurationError: the space has a domain of the user's own.
    """
    return {path: shown_to_sampler(each, is_named=False).distribution for path, each in space.domains.items()}


def is_in(distribution: BaseDistribution, param: object) -> bool:
    """Return whether a sampler's value is in its distribution, give or take rounding."""
    match distribution:
        case FloatDistribution() | IntDistribution():
            if isinstance(param, bool) or not isinstance(param, int | float):
                return False
            low, high, step = distribution.low, distribution.high, distribution.step
            spare = _ROUNDED * (high - low)
            if not low - spare <= param <= high + spare:
                return False
            return step is None or math.isclose(steps := (param - low) / step, round(steps), abs_tol=1e-6)
        case CategoricalDistribution():
            return any(is_same(param, each) for each in distribution.choices)
    return True


def _has_steps(domain: Multiples) -> bool:
    """Return whether Optuna can step through all values, which as floats are rounded."""
    if domain.whole:
        return True
    low, high, step = (
        Fraction(str(each)) for each in (domain.value(domain.first), domain.value(domain.last), domain.q)
    )
    return domain.size <= _MOST_STEPS and (high - low) % step == 0


def _steps(domain: Multiples) -> Shown:
    low, high = domain.value(domain.first), domain.value(domain.last)
    if domain.whole:
        return Shown(IntDistribution(int(low), int(high), step=int(domain.q)), int, int)
    return Shown(
        FloatDistribution(low, high, step=float(domain.q)), float, lambda param: domain.value(domain.steps(param))
    )


def _categories(domain: Choice) -> Shown:
    categories = [_category(option) for option in domain.options]
    return Shown(
        CategoricalDistribution(list(dict.fromkeys(categories))),
        _category,
        lambda param: domain.options[_index(categories, param)],
    )


def _are_different(domain: Choice) -> bool:
    """Return whether Optuna tells all values of a choice apart; 1, 1.0 and True are the same to it."""
    categories = [_category(option) for option in domain.options]
    has_nan = any(isinstance(each, float) and math.isnan(each) for each in categories)
    return not has_nan and len(set(categories)) == len(categories)


def _multiple(domain: Multiples, param: float) -> float:
    """Return the multiple that Optuna's own steps have rounded, or another parameter as it is."""
    near = domain.value(domain.steps(param))
    return near if math.isclose(near, param, rel_tol=_ROUNDED) else param


def _index(known: Sequence[object], param: object) -> int:
    found = next((index for index, each in enumerate(known) if is_same(each, param)), None)
    if found is None:
        raise SpaceError(f"{param!r} is none of {', '.join(map(repr, known))}")
    return found


def _category(value: object) -> bool | int | float | str | None:
    """Return a value that Optuna can have as a category: another one as text."""
    return value if isinstance(value, bool | int | float | str | None) else repr(value)
