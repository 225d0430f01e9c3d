"""Configs that a user wants to be tried first."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mqtune.core.errors import ConfigurationError, SpaceError
from mqtune.core.objective import Objective
from mqtune.core.registry import Description, described
from mqtune.core.trial import Config, Trial, TrialId
from mqtune.search.base import (
    PastTrial,
    Searcher,
    Suggestion,
    Telling,
    check_arguments,
    fingerprint,
    is_searcher_name,
    searcher_named,
    searcher_names,
)
from mqtune.search.random import RandomSearcher
from mqtune.search.repeater import OTHER, Repeater
from mqtune.search.space import Space, space_of
from mqtune.search.values import copy_value


class PointsFirst(Telling):
    """Proposes given points in their order, and then the configs of another searcher.

    The points change nothing about that searcher's suggestions, except that a RandomSearcher over a small finite
    space counts them as proposed, and a GridSearcher passes over those of its own that are one of them.

    Args:
        points: configs, or parts of configs; what a point lacks is sampled, once.
        searcher: proposes the configs after the points, or its name, as for ``Tuner``; by default a RandomSearcher.
        space: what the points are checked against; by default the experiment's.
        seed: the same seed gives the same values for what is sampled; without *space* it is the experiment's.

    Raises:
        SpaceError: a point has an unknown key or a value outside its domain; the text names the point's index.
    """

    takes_several = True

    def __init__(
        self,
        points: Sequence[Mapping[str, object]],
        searcher: Searcher | str | None = None,
        *,
        space: Space | None = None,
        seed: int = 0,
    ) -> None:
        if isinstance(points, str | bytes) or not isinstance(points, Sequence):
            raise ConfigurationError(f"PointsFirst: points={points!r} is not a list of dicts")
        if isinstance(searcher, str) and is_searcher_name(searcher):
            searcher = searcher_named(searcher)
        if searcher is not None and not isinstance(searcher, Searcher):
            raise ConfigurationError(
                f"PointsFirst: searcher={searcher!r} is not a searcher, nor one of {', '.join(searcher_names())}"
            )
        self._given = list(points)
        self._after = searcher
        #: The space and the seed it was made or bound with.
        self._bound: tuple[Space, int] | None = None
        self._has_own = space is not None
        self.adaptive = searcher is not None and searcher.adaptive
        self.is_slow = searcher is not None and searcher.is_slow
        self.wants_whole_trials = searcher is not None and searcher.wants_whole_trials
        self._next = 0
        #: Points that were suggested and whose trial is not staged yet, and trials with configs that others have chosen, likewise.
        self._asked: list[str] = []
        self._added: set[TrialId] = set()
        self._abandoned: set[str] = set()
        if space is not None:
            check_arguments("PointsFirst", space, seed)
            self._complete_points(space, seed, searcher if searcher is not None else RandomSearcher(space, seed))

    @property
    def count(self) -> int | None:
        """The number of points; None if a searcher was given for what comes after them."""
        return len(self._given) if self._after is None else None

    def check_space(self, space: Space) -> None:
        """Check the points, and the other searcher.

        Raises:
            SpaceError: a point does not fit.
        """
        if not self._has_own:
            for index, point in enumerate(self._given):
                with _named(index):
                    space.check(point)
        if self._after is not None:
            self._after.check_space(space)

    def check_objective(self, objective: Objective) -> None:
        """Have the other searcher learn what is optimised."""
        super().check_objective(objective)
        if self._after is not None:
            self._after.check_objective(objective)

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        """Complete the points, and tell the other searcher of them.

        Raises:
            ConfigurationError: it is another experiment's.
        """
        if self._has_own:
            self._searcher.bind(space, seed, metric=metric, mode=mode)
            return
        if self._bound is not None and (self._bound[0] is not space or self._bound[1] != seed):
            raise ConfigurationError("this PointsFirst is another experiment's; make another one")
        searcher = self._after if self._after is not None else RandomSearcher(space, seed)
        searcher.bind(space, seed, metric=metric, mode=mode)
        if self._bound is None:
            self._complete_points(space, seed, searcher)

    def _complete_points(self, space: Space, seed: int, searcher: Searcher) -> None:
        self._bound, self._seed, self._searcher = (space, seed), seed, searcher
        # A stream of its own, apart from a searcher with the same seed.
        rng = random.Random(f"points {seed}")
        self._points: list[Config] = []
        for index, point in enumerate(self._given):
            with _named(index):
                self._points.append(space.complete(point, rng))
        for config in self._points:
            self._searcher.avoid(config)

    @property
    def can_learn(self) -> bool:
        """Whether the other searcher does."""
        return self._after is not None and self._after.can_learn

    def learn(self, trial: PastTrial) -> None:
        """Have the other searcher learn."""
        self._searcher.learn(trial)

    def suggest(self, trial: TrialId) -> Suggestion:
        """Return the next point, or the other searcher's next config."""
        point = self._point()
        if point is None:
            return self._searcher.suggest(trial)
        self._asked.append(fingerprint(point))
        return point

    def replay(self, trial: TrialId, config: Config) -> Config | None:
        """Return the next point, or have the other searcher replay."""
        point = self._point()
        if point is None:
            return self._searcher.replay(trial, config)
        self._searcher.adopt(trial, config)
        return point

    def _point(self) -> Config | None:
        while self._next < len(self._points):
            config: Config = copy_value(self._points[self._next])
            self._next += 1
            if fingerprint(config) not in self._abandoned:
                return config
        return None

    def adopt(self, trial: TrialId, config: Config) -> None:
        """Tell the other searcher."""
        self._added.add(trial)
        self._searcher.adopt(trial, config)

    def avoid(self, config: Config) -> None:
        self._searcher.avoid(config)

    def on_stage(self, trial: Trial) -> None:
        """Tell the other searcher; only now it is known which trial a point has become."""
        is_added = trial.id in self._added
        self._added.discard(trial.id)
        if self._asked and not is_added and trial.attempt.number == 1:
            point = fingerprint(trial.config)
            if point in self._asked:
                self._asked.remove(point)
                self._searcher.adopt(trial.id, copy_value(trial.config))
        super().on_stage(trial)

    def on_abandon(self, trial: Trial) -> None:
        """Leave out the points that are its config, and tell the other searcher."""
        self._abandoned.add(fingerprint(trial.config))
        super().on_abandon(trial)

    def describe(self) -> Description:
        """Return the other searcher's arguments, with the completed points and the seed that completed them."""
        return described(self._searcher) | {"points": copy_value(self._points), "points_seed": self._seed}


@contextmanager
def _named(index: int) -> Iterator[None]:
    try:
        yield
    except SpaceError as error:
        raise SpaceError(f"PointsFirst: points[{index}]: {error}") from None


class Nobody(Searcher):
    """Proposes nothing: whoever drives the experiment adds its trials."""

    kind = "nobody"
    takes_several = True

    def suggest(self, trial: TrialId) -> None:
        return None


def searcher_of(description: Description, space: Space) -> Searcher:
    """Return the searcher that a definition describes, in its initial state.

    Args:
        description: what it said of itself.
        space: the experiment's, which it searches unless it had one of its own.

    Raises:
        ConfigurationError: its class, or a function in a space of its own, stands in the user's code alone.
    """
    inner = dict(description)
    points, points_seed = inner.pop("points", None), inner.pop("points_seed", 0)
    own, repeated = inner.get("space"), inner.pop(OTHER, None)
    if isinstance(own, dict):
        inner["space"] = space if own == space.describe() else space_of(own)
    searcher = Searcher.rebuild(inner)
    if isinstance(searcher, Repeater) and repeated is not None:
        searcher = Repeater(inner["over"], searcher_of(repeated, searcher.rest(space)))
    return searcher if points is None else PointsFirst(points, searcher, space=space, seed=points_seed)
