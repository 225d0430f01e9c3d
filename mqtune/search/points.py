"""Configs that a person wants tried before a searcher takes over."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from mqtune.core.errors import ConfigurationError, SpaceError
from mqtune.core.registry import described
from mqtune.core.trial import Config, Report, Trial
from mqtune.search.base import Searcher, check_arguments, fingerprint
from mqtune.search.domains import copy_value
from mqtune.search.space import Space, space_of

__all__ = ["PointsFirst", "searcher_of"]


class PointsFirst(Searcher):
    """Proposes given points in their order, and then whatever another searcher proposes.

    The points change nothing about that searcher's suggestions, except that a RandomSearcher over a small finite
    space counts them as proposed, and a GridSearcher passes over those of its own that are one of them.

    Args:
        searcher: proposes the configs after the points.
        space: what the points are checked against.
        points: configs, or parts of configs; what a point lacks is sampled, here and once.
        seed: the same seed gives the same values for what is sampled.

    Raises:
        SpaceError: a point has an unknown key or a value outside its domain; the text names the point's index.
    """

    def __init__(self, searcher: Searcher, space: Space, points: Sequence[Mapping[str, Any]], seed: int = 0) -> None:
        check_arguments("PointsFirst", space, seed)
        if isinstance(points, str | bytes) or not isinstance(points, Sequence):
            raise ConfigurationError(f"points to evaluate: {points!r} is not a list of dicts")
        self._searcher = searcher
        self._seed = seed
        self.adaptive = searcher.adaptive
        # A stream of its own, apart from a searcher with the same seed.
        rng = random.Random(f"points {seed}")
        self._points = [_complete(space, index, point, rng) for index, point in enumerate(points)]
        self._next = 0
        self._abandoned: set[str] = set()
        for config in self._points:
            searcher.avoid(config)

    def suggest(self) -> Config | None:
        """Return the next point, or the other searcher's next config."""
        while self._next < len(self._points):
            config: Config = copy_value(self._points[self._next])
            self._next += 1
            if fingerprint(config) not in self._abandoned:
                return config
        return self._searcher.suggest()

    def avoid(self, config: Config) -> None:
        """Tell the other searcher."""
        self._searcher.avoid(config)

    def on_report(self, trial: Trial, report: Report) -> None:
        """Tell the other searcher."""
        self._searcher.on_report(trial, report)

    def on_abandon(self, trial: Trial) -> None:
        """Leave out the points that are its config, and tell the other searcher."""
        self._abandoned.add(fingerprint(trial.config))
        self._searcher.on_abandon(trial)

    def on_trial_end(self, trial: Trial) -> None:
        """Tell the other searcher."""
        self._searcher.on_trial_end(trial)

    def describe(self) -> dict[str, Any]:
        """Return the other searcher's arguments, with the completed points and the seed that completed them."""
        return described(self._searcher) | {"points": copy_value(self._points), "points_seed": self._seed}


def _complete(space: Space, index: int, point: Mapping[str, Any], rng: random.Random) -> Config:
    try:
        return space.complete(point, rng)
    except SpaceError as error:
        raise SpaceError(f"point {index} to evaluate: {error}") from None


def searcher_of(description: Mapping[str, Any], space: Space) -> Searcher:
    """Return a searcher that describes itself so, at its beginning.

    Args:
        description: what it said of itself.
        space: the experiment's, which it searches unless it had one of its own.

    Raises:
        ConfigurationError: its class, or a function in a space of its own, stands in the user's code alone.
    """
    inner = dict(description)
    points, points_seed = inner.pop("points", None), inner.pop("points_seed", 0)
    own = inner.get("space")
    if isinstance(own, dict):
        inner["space"] = space if own == space.describe() else space_of(own)
    searcher = Searcher.rebuild(inner)
    return searcher if points is None else PointsFirst(searcher, space, points, points_seed)
