"""Exploration of population-based training: variations of a good config."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final

from mqtune.core.checks import number
from mqtune.core.errors import ConfigurationError
from mqtune.core.registry import Description
from mqtune.core.trial import Config
from mqtune.schedulers.timed import exact
from mqtune.search.domains import choice
from mqtune.search.kinds import Choice, Domain, Interval, Multiples, Normal, RoundedNormal, has_domain
from mqtune.search.space import Space
from mqtune.search.values import copy_value, is_same, plain_value

#: Attempts to find a config that the space's constraint allows.
_EXPLORATIONS: Final = 100

Explore = Callable[[Config], Config]

_Path = tuple[str, ...]


class Exploration:
    """Makes variations of a good config.

    With *resample_probability*, a value is sampled from its domain. Otherwise a number is multiplied by one of
    *factors* and kept within its bounds. Integers and multiples of a step are rounded, and move by at least one step
    within the bounds. A value from a list is replaced by one of its two neighbours in the list; at an end of the list
    it may stay. Other values are sampled. Names that the config lacks are skipped.

    Args:
        mutations: the values that may change: domains, or lists of values, by the names in a config.
        resample_probability: probability of sampling a value, from 0 to 1.
        factors: factors for numbers, each above 0 and equally likely.
        explore: gets a copy of the resulting config, and returns the final one. It must be deterministic.
    """

    def __init__(
        self,
        mutations: Mapping[str, object] | None,
        *,
        resample_probability: float,
        factors: Sequence[float],
        explore: Explore | None,
    ) -> None:
        self._domains = dict(_domains({} if mutations is None else mutations, ()))
        self._resample_probability = number("PBT", "resample_probability", resample_probability)
        if not 0 <= self._resample_probability <= 1:
            raise ConfigurationError(f"PBT: resample_probability={resample_probability!r} is not from 0 to 1")
        if isinstance(factors, str) or not isinstance(factors, Sequence) or not factors:
            raise ConfigurationError(
                f"PBT: perturbation_factors={factors!r} is not a list of numbers, such as (1.2, 0.8)"
            )
        self._factors = [number("PBT", "perturbation_factors", factor) for factor in factors]
        if min(self._factors) <= 0:
            raise ConfigurationError(f"PBT: perturbation_factors={factors!r} must be above 0, such as (1.2, 0.8)")
        if explore is not None and not callable(explore):
            raise ConfigurationError(f"PBT: explore={explore!r} is not a function that takes a config and returns one")
        if not self._domains and explore is None:
            raise ConfigurationError(
                "PBT: nothing would change; give hyperparam_mutations={'lr': mqtune.loguniform(1e-4, 1e-1)}, or explore"
            )
        self._explore = explore
        self._space: Space | None = None

    def check_space(self, space: Space) -> None:
        """Check that *space* has all names in *mutations*.

        From now on explored configs satisfy its constraint.

        Raises:
            ConfigurationError: the space lacks a name.
        """
        self._space = space
        known = dict.fromkeys(space.places.values())
        for path in self._domains:
            if "/".join(path) not in known:
                listed = ", ".join(map(repr, known)) or "nothing"
                raise ConfigurationError(
                    f"PBT: hyperparam_mutations has {'/'.join(path)!r}, which is not in the space; that has {listed}"
                )

    def __call__(self, config: Config, rng: random.Random) -> Config:
        """Return a variation of *config*.

        If the space's constraint refuses 100 variations, return a copy of *config*.

        Raises:
            ConfigurationError: the *explore* function fails, or doesn't return a config.
        """
        for _ in range(_EXPLORATIONS):
            explored = self._explore_once(config, rng)
            if self._space is None or self._space.allows(explored):
                return explored
        unchanged: Config = copy_value(config)
        return unchanged

    def _explore_once(self, config: Config, rng: random.Random) -> Config:
        explored: Config = copy_value(config)
        for path, domain in self._domains.items():
            branch: object = explored
            for key in path[:-1]:
                branch = branch.get(key) if isinstance(branch, dict) else None
            if isinstance(branch, dict) and path[-1] in branch:
                branch[path[-1]] = self._mutate(domain, branch[path[-1]], rng)
        return explored if self._explore is None else _call_explore(self._explore, explored)

    def describe(self) -> Description:
        return {
            "hyperparam_mutations": {"/".join(path): domain.describe() for path, domain in self._domains.items()},
            "resample_probability": self._resample_probability,
            "perturbation_factors": self._factors,
            "explore": None if self._explore is None else _name_of(self._explore),
        }

    def _mutate(self, domain: Domain, value: object, rng: random.Random) -> object:
        if rng.random() < self._resample_probability:
            return domain.sample(rng)
        if isinstance(domain, Choice):
            return _neighbour(domain, value, rng)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return domain.sample(rng)
        factor = rng.choice(self._factors)
        if isinstance(domain, Interval):
            return min(max(float(value * factor), domain.low), domain.high)
        if isinstance(domain, Multiples | RoundedNormal):
            return _scale_multiple(domain, value, factor)
        return float(value * factor)


def _domains(mutations: object, prefix: _Path) -> Iterator[tuple[_Path, Domain]]:
    if not isinstance(mutations, Mapping):
        raise ConfigurationError(f"PBT: hyperparam_mutations={mutations!r} is not a dict of names and domains")
    for key, value in mutations.items():
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"PBT: hyperparam_mutations has the key {key!r}, which is not a name")
        path = (*prefix, key)
        if isinstance(value, Mapping):
            yield from _domains(value, path)
        elif isinstance(value, Choice | Interval | Multiples | Normal):
            yield path, value
        elif isinstance(value, list | tuple) and not has_domain(value):
            yield path, choice(value)
        else:
            raise ConfigurationError(
                f"PBT: hyperparam_mutations[{'/'.join(path)!r}]={value!s} is nothing to draw from; "
                "give a domain such as mqtune.uniform(0, 1), or a list of values; where the entries of a choice have "
                "domains, name those: {'optimizer': {'lr': mqtune.uniform(0, 1)}}"
            )


def _neighbour(domain: Choice, value: object, rng: random.Random) -> object:
    step = rng.choice((-1, 1))
    for index, option in enumerate(domain.options):
        if is_same(value, option):
            return copy_value(domain.options[min(max(index + step, 0), len(domain.options) - 1)])
    return domain.sample(rng)


def _scale_multiple(domain: Multiples | RoundedNormal, value: float, factor: float) -> float:
    step = exact(domain.q)
    before = exact(value) / step
    after: Fraction | int = round(before * exact(factor))
    if after == before and factor != 1:
        after += 1 if (factor > 1) == (value >= 0) else -1
    if isinstance(domain, RoundedNormal):
        return float(after * step)
    lowest, highest = math.ceil(exact(domain.low) / step), math.floor(exact(domain.high) / step)
    nearest = min(max(after, lowest), highest) * step
    return int(nearest) if domain.whole else float(nearest)


def _call_explore(explore: Explore, config: Config) -> Config:
    try:
        explored = explore(config)
    except Exception as error:
        raise ConfigurationError(f"PBT: explore={_name_of(explore)} raised {type(error).__name__}: {error}") from error
    if not isinstance(explored, dict):
        raise ConfigurationError(
            f"PBT: explore={_name_of(explore)} returned {explored!r}, which is not a config (a dict)"
        )
    plain: Config = plain_value(explored, f"PBT: what explore={_name_of(explore)} returned")
    return plain


def _name_of(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
