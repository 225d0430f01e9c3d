"""Random search, with a grid where the space has one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

from mqtune.searchers.base import Searcher, check_arguments
from mqtune.space import Space
from mqtune.trial import Config

__all__ = ["RandomSearcher"]

#: Spaces with at most this many configs are searched without repeats. In larger ones a repeat is rare, and to look
#: through all of them for what is left would hold the driver up.
MAX_COUNTED: Final = 10_000

#: Samples taken in the hope of a new config, before all configs are looked through for what is left.
SAMPLES_BEFORE_COUNTING: Final = 20


class RandomSearcher(Searcher):
    """Samples each config from the space, independently of the others and of every report. Never exhausted.

    With ``grid_search`` entries it walks the grid and samples the rest anew for each point; when the grid is
    finished it starts another pass, so ``max_trials`` alone says how many trials there are.

    A space of at most 10,000 different configs is sampled without repeats until each config was proposed (for each
    point of the grid, if there is one); then it starts over, so a ``max_trials`` above the size of the space is
    honoured with repeats. ``choice`` weights and log scales shape the order in which the configs come.

    Args:
        space: what to sample from.
        seed: the same seed gives the same configs in the same order.
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        check_arguments("RandomSearcher", space, seed)
        self._space = space
        self._seed = seed
        self._rng = random.Random(seed)
        self._points = self._walk_grid()
        size = space.size
        self._counts = size is not None and size <= MAX_COUNTED
        self._seen: set[str] = set()
        #: By grid point, the configs to look through since sampling no longer finds new ones, in random order.
        self._left: dict[str, list[Config]] = {}

    def suggest(self) -> Config:
        """Return the next config."""
        point = next(self._points)
        if not self._counts:
            return self._space.sample(self._rng, point)
        config = self._sample_new(point)
        if config is None:
            config = self._take_left(point)
        self._seen.add(_fingerprint(config))
        return config

    def avoid(self, config: Config) -> None:
        """Count *config* as proposed."""
        if self._counts:
            self._seen.add(_fingerprint(config))

    def describe(self) -> dict[str, Any]:
        """Return its arguments, the space by its own description."""
        return {"searcher": "random", "space": self._space.describe(), "seed": self._seed}

    def _walk_grid(self) -> Iterator[dict[str, Any]]:
        while True:
            yield from self._space.grid_points()

    def _sample_new(self, point: dict[str, Any]) -> Config | None:
        if _fingerprint(point) in self._left:
            return None
        for _ in range(SAMPLES_BEFORE_COUNTING):
            config = self._space.sample(self._rng, point)
            if _fingerprint(config) not in self._seen:
                return config
        return None

    def _take_left(self, point: dict[str, Any]) -> Config:
        key = _fingerprint(point)
        if key not in self._left:
            self._left[key] = list(self._space.configs(point))
            self._rng.shuffle(self._left[key])
        while self._left[key]:
            config = self._left[key].pop()
            if _fingerprint(config) not in self._seen:
                return config
        del self._left[key]
        self._seen.difference_update(map(_fingerprint, self._space.configs(point)))
        return self._space.sample(self._rng, point)


def _fingerprint(value: Any) -> str:
    """Return a text that two configs share exactly if they are equal."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{_fingerprint(value[key])}" for key in sorted(value)) + "}"
    return repr(value)
