"""Domains as Optuna's distributions, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Final

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from mqtune import Space
from mqtune.extend import (
    Choice,
    ConfigurationError,
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

#: Bounds of a normal distribution, in standard deviations, as Optuna needs bounds.
_BOUND_SDS: Final = 40.0
#: Relative rounding error of Optuna's arithmetic.
_ROUNDED: Final = 1e-9
#: The most steps of a float. Optuna tolerates rounding errors up to 1e-8 of a step.
_MOST_STEPS: Final = 10**6


@dataclass(frozen=True, slots=True)
class Shown:
    """A domain in the form that a study has.

    Attributes:
        distribution: Optuna's distribution.
        to_param: converts a value of the domain to Optuna's.
        to_value: converts Optuna's value to the domain's.
    """

    distribution: BaseDistribution
    to_param: Callable[[Any], object]
    to_value: Callable[[Any], object] = lambda param: param


def shown_by_value(domain: Domain) -> Shown:
    """Return a domain in a form with its own values, for people and for samplers with given values.

    Raises:
        SpaceError: it is a user-defined domain.
    """
    match domain:
        case ReverseInterval():
            return Shown(FloatDistribution(domain.low, domain.high), float)
        case Interval():
            return Shown(FloatDistribution(domain.low, domain.high, log=domain.log), float)
        case Multiples(whole=True):
            low, high = int(domain.value(domain.first)), int(domain.value(domain.last))
            return Shown(IntDistribution(low, high, log=domain.log, step=1 if domain.log else int(domain.q)), int)
        case Multiples():
            low_q, high_q = domain.value(domain.first), domain.value(domain.last)
            return Shown(FloatDistribution(low_q, high_q, log=domain.log), float, partial(_multiple, domain))
        case Normal():
            reach = _BOUND_SDS * domain.sd
            return Shown(FloatDistribution(domain.mean - reach, domain.mean + reach), float)
        case Entries():
            return Shown(
                CategoricalDistribution(domain.names),
                lambda index: domain.names[index],
                partial(_index_of, domain.names),
            )
        case Choice():
            return _shown_categories(domain)
        case _:
            raise SpaceError(f"{domain} is a domain that Optuna has nothing like")


def shown_to_sampler(domain: Domain, *, is_named: bool) -> Shown:
    """Return a domain in the form that a sampler gets.

    It has the domain's own values if Optuna has an equal distribution. Otherwise it has a form suited to learning:
    positions, numbers of steps, or shares.

    Args:
        is_named: whether the sampler was given some of the domain's values. Then the form has these values.

    Raises:
        ConfigurationError: it is a user-defined domain.
    """
    match domain:
        case Multiples(log=False) if _has_steps(domain):
            return _shown_steps(domain)
        case Choice() if not isinstance(domain, Ordinal) and _are_different(domain):
            return _shown_categories(domain)
        case Interval() | Multiples() | Normal() | Choice() if is_named:
            return shown_by_value(domain)
    known = parameter("OptunaSearcher", "Optuna", domain)
    if known.kind is Kind.INTERVAL:
        return Shown(FloatDistribution(known.low, known.high, log=known.log), known.to_param, known.to_value)
    if known.kind is Kind.UNORDERED:
        return Shown(CategoricalDistribution(range(known.high + 1)), known.to_param, known.to_value)
    return Shown(IntDistribution(known.low, known.high, log=known.log), known.to_param, known.to_value)


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    """Return the distributions that a sampler gets, by path.

    Samplers such as OptunaHub's SMAC need them: ``SMACSampler(distributions_of(space))``.

    Raises:
        ConfigurationError: the space has a user-defined domain.
    """
    return {path: shown_to_sampler(domain, is_named=False).distribution for path, domain in space.domains.items()}


def suggested(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    """Return a trial's suggestion for a parameter with this distribution."""
    match distribution:
        case FloatDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_float(name, low, high, step=step, log=log)
        case IntDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_int(name, low, high, step=step, log=log)
        case CategoricalDistribution(choices=choices):
            return trial.suggest_categorical(name, choices)
    raise ConfigurationError(f"{distribution} is a distribution that mqtune does not know")


def is_in(distribution: BaseDistribution, param: object) -> bool:
    """Return whether a sampler's value is in its distribution, within rounding."""
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
            return any(is_same(param, choice) for choice in distribution.choices)
    return True


def _has_steps(domain: Multiples) -> bool:
    if domain.whole:
        return True
    low, high, step = (
        Fraction(str(bound)) for bound in (domain.value(domain.first), domain.value(domain.last), domain.q)
    )
    return domain.size <= _MOST_STEPS and (high - low) % step == 0


def _shown_steps(domain: Multiples) -> Shown:
    low, high = domain.value(domain.first), domain.value(domain.last)
    if domain.whole:
        return Shown(IntDistribution(int(low), int(high), step=int(domain.q)), int, int)
    return Shown(
        FloatDistribution(low, high, step=float(domain.q)), float, lambda param: domain.value(domain.steps(param))
    )


def _shown_categories(domain: Choice) -> Shown:
    categories = [_category(option) for option in domain.options]
    return Shown(
        CategoricalDistribution(list(dict.fromkeys(categories))),
        _category,
        lambda param: domain.options[_index_of(categories, param)],
    )


def _are_different(domain: Choice) -> bool:
    """Return whether all options are different for Optuna. 1, 1.0 and True are not."""
    categories = [_category(option) for option in domain.options]
    has_nan = any(isinstance(category, float) and math.isnan(category) for category in categories)
    return not has_nan and len(set(categories)) == len(categories)


def _multiple(domain: Multiples, param: float) -> float:
    """Return the nearest multiple if it differs only by rounding, or else the value itself."""
    near = domain.value(domain.steps(param))
    return near if math.isclose(near, param, rel_tol=_ROUNDED) else param


def _index_of(known: Sequence[object], param: object) -> int:
    place = next((index for index, value in enumerate(known) if is_same(value, param)), None)
    if place is None:
        raise SpaceError(f"the value {param!r} is not one of {', '.join(map(repr, known))}")
    return place


def _category(value: object) -> bool | int | float | str | None:
    """Return a value as an Optuna category, converted to text if needed."""
    return value if isinstance(value, bool | int | float | str | None) else repr(value)
