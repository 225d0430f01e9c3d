"""Tries a user's configs first, before those of another searcher."""

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


class InitialPoints(Telling):
    """Proposes given configs (points) in order, then the configs of another searcher.

    The points don't change the other searcher's suggestions, with two exceptions. A RandomSearcher over a small finite
    space counts them as proposed, and a GridSearcher skips them.

    Args:
        points: configs, or parts of configs. Missing values are sampled once.
        searcher: the other searcher, or its name as for ``Tuner``. The default is a RandomSearcher.
        space: the space of the points. The default is the experiment's space.
        seed: seed of the sampled values. Without *space* the experiment's seed is used.

    Raises:
        SpaceError: a point has an unknown key, or a value outside its domain. The message has the point's index.
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
            raise ConfigurationError(f"InitialPoints: points={points!r} is not a list of dicts")
        if isinstance(searcher, str) and is_searcher_name(searcher):
            searcher = searcher_named(searcher)
        if searcher is not None and not isinstance(searcher, Searcher):
            raise ConfigurationError(
                f"InitialPoints: searcher={searcher!r} is not a searcher, nor one of {', '.join(searcher_names())}"
            )
        self._given = list(points)
        #: The user's other searcher. None for a RandomSearcher.
        self._after = searcher
        self._bound: tuple[Space, int] | None = None
        #: Whether the user has given the space.
        self._has_own = space is not None
        self.adaptive = searcher is not None and searcher.adaptive
        self.is_slow = searcher is not None and searcher.is_slow
        self.wants_whole_trials = searcher is not None and searcher.wants_whole_trials
        #: Index of the next point.
        self._next = 0
        #: Fingerprints of suggested points whose trial is not queued yet.
        self._asked: list[str] = []
        #: Trials that a user has added, and that are not queued yet.
        self._added: set[TrialId] = set()
        #: Fingerprints of abandoned configs.
        self._abandoned: set[str] = set()
        if space is not None:
            check_arguments("InitialPoints", space, seed)
            self._complete_points(space, seed, searcher if searcher is not None else RandomSearcher(space, seed))

    @property
    def count(self) -> int | None:
        """Number of points. None if another searcher was given, which has further configs."""
        return len(self._given) if self._after is None else None

    def check_space(self, space: Space) -> None:
        """Check that the points are in the space, and that the other searcher can use it."""
        if not self._has_own:
            for index, point in enumerate(self._given):
                with _named(index):
                    space.check(point)
        if self._after is not None:
            self._after.check_space(space)

    def check_objective(self, objective: Objective) -> None:
        super().check_objective(objective)
        if self._after is not None:
            self._after.check_objective(objective)

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        """Complete the points, and tell the other searcher not to suggest them."""
        if self._has_own:
            self._searcher.bind(space, seed, metric=metric, mode=mode)
            return
        if self._bound is not None and (self._bound[0] is not space or self._bound[1] != seed):
            raise ConfigurationError("this InitialPoints is another experiment's; make another one")
        searcher = self._after if self._after is not None else RandomSearcher(space, seed)
        searcher.bind(space, seed, metric=metric, mode=mode)
        if self._bound is None:
            self._complete_points(space, seed, searcher)

    def _complete_points(self, space: Space, seed: int, searcher: Searcher) -> None:
        self._bound, self._seed, self._searcher = (space, seed), seed, searcher
        # The prefix makes a different random stream than that of a searcher with the same seed.
        rng = random.Random(f"points {seed}")
        self._points: list[Config] = []
        for index, point in enumerate(self._given):
            with _named(index):
                self._points.append(space.complete(point, rng))
        for config in self._points:
            self._searcher.avoid(config)

    @property
    def can_learn(self) -> bool:
        return self._after is not None and self._after.can_learn

    def learn(self, trial: PastTrial) -> None:
        self._searcher.learn(trial)

    def suggest(self, trial: TrialId) -> Suggestion:
        point = self._next_point()
        if point is None:
            return self._searcher.suggest(trial)
        self._asked.append(fingerprint(point))
        return point

    def replay(self, trial: TrialId, config: Config) -> Config | None:
        point = self._next_point()
        if point is None:
            return self._searcher.replay(trial, config)
        self._searcher.adopt(trial, config)
        return point

    def _next_point(self) -> Config | None:
        while self._next < len(self._points):
            config: Config = copy_value(self._points[self._next])
            self._next += 1
            if fingerprint(config) not in self._abandoned:
                return config
        return None

    def adopt(self, trial: TrialId, config: Config) -> None:
        self._added.add(trial)
        self._searcher.adopt(trial, config)

    def avoid(self, config: Config) -> None:
        self._searcher.avoid(config)

    def on_queue(self, trial: Trial) -> None:
        """Notify the other searcher.

        If the trial has a suggested point, let the other searcher adopt it first.
        """
        is_added = trial.id in self._added
        self._added.discard(trial.id)
        if self._asked and not is_added and trial.attempt.number == 1:
            point = fingerprint(trial.config)
            if point in self._asked:
                self._asked.remove(point)
                self._searcher.adopt(trial.id, copy_value(trial.config))
        super().on_queue(trial)

    def on_abandon(self, trial: Trial) -> None:
        """Skip points with the trial's config from now on."""
        self._abandoned.add(fingerprint(trial.config))
        super().on_abandon(trial)

    def describe(self) -> Description:
        """Return the other searcher's description, with the completed points and their seed."""
        return described(self._searcher) | {"points": copy_value(self._points), "points_seed": self._seed}


@contextmanager
def _named(index: int) -> Iterator[None]:
    try:
        yield
    except SpaceError as error:
        raise SpaceError(f"InitialPoints: points[{index}]: {error}") from None


class Nobody(Searcher):
    """Proposes nothing: a user's program adds the trials."""

    kind = "nobody"
    takes_several = True

    def suggest(self, trial: TrialId) -> None:
        return None


def searcher_of(description: Description, space: Space) -> Searcher:
    """Rebuild a searcher, in its initial state, from its description in a definition.

    Raises:
        ConfigurationError: the searcher's class, or a function in its own space, exists only in the user's code.
    """
    inner = dict(description)
    points, points_seed = inner.pop("points", None), inner.pop("points_seed", 0)
    own, repeated = inner.get("space"), inner.pop(OTHER, None)
    if isinstance(own, dict):
        inner["space"] = space if own == space.describe() else space_of(own)
    searcher = Searcher.rebuild(inner)
    if isinstance(searcher, Repeater) and repeated is not None:
        searcher = Repeater(inner["over"], searcher_of(repeated, searcher.rest(space)))
    return searcher if points is None else InitialPoints(points, searcher, space=space, seed=points_seed)
