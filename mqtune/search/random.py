"""Random search, with a grid if the space has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mqtune.core.trial import Config, Trial, TrialId
from mqtune.search.base import Searcher, check_arguments, fingerprint
from mqtune.search.space import Space
from mqtune.search.values import copy_value

if TYPE_CHECKING:
    from numpy.random import Generator

#: Largest space that is searched without repeats. In larger ones repeats are rare, and listing all configs would block
#: the driver.
MAX_COUNTED: Final = 10_000

#: Largest number of samples to find a new config. After that, all configs are listed.
SAMPLES_BEFORE_COUNTING: Final = 20
#: Largest number of samples to find a config that was not abandoned, in a larger space.
_MOST_SAMPLES: Final = 1000


class RandomSearcher(Searcher):
    """Samples each config from the space, independently of other configs and of reports.

    An abandoned config is never proposed again. The searcher has no more configs only when all were abandoned.

    With ``grid_search`` entries, the points of the grid are tried in turn, again and again, and the other values are
    sampled for each. So only ``max_trials`` limits the number of trials.

    A space of at most 10,000 different configs is sampled without repeats, for each point of the grid, until each
    config was proposed. Then it starts again.

    Args:
        space: the search space.
        seed: the same seed gives the same configs in the same order.
    """

    kind = "random"
    takes_several = True

    def __init__(self, space: Space, seed: int = 0) -> None:
        check_arguments("RandomSearcher", space, seed)
        self._space = space
        self._seed = seed
        self._rng = generator(seed)
        self._draws = space.draws(self._rng)
        self._points = self._walk_grid()
        size = space.size
        self._counts = size is not None and size <= MAX_COUNTED
        self._seen: set[str] = set()
        self._abandoned: set[str] = set()
        #: By fingerprint of a grid point, the remaining configs in random order. Filled when sampling finds no new one.
        self._left: dict[str, list[Config]] = {}

    def suggest(self, trial: TrialId) -> Config | None:
        for _ in range(self._space.grid_size):
            point = next(self._points)
            if not self._counts:
                config = self._sample(point, _MOST_SAMPLES, self._abandoned)
            else:
                config = self._sample_new(point) or self._take_left(point)
            if config is not None:
                self.avoid(config)
                return config
        return None

    def replay(self, trial: TrialId, config: Config) -> Config:
        """Draw the next suggestion, count *config* as proposed instead, and return *config*.

        The two differ if another version of mqtune, which sampled differently, began the experiment.
        """
        suggested = self.suggest(trial)
        if self._counts and suggested is not None and fingerprint(suggested) != fingerprint(config):
            self._seen.discard(fingerprint(suggested))
            self.avoid(config)
        return config

    def avoid(self, config: Config) -> None:
        if self._counts:
            self._seen.add(fingerprint(config))

    def on_abandon(self, trial: Trial) -> None:
        self._abandoned.add(fingerprint(trial.config))
        self.avoid(trial.config)

    def _walk_grid(self) -> Iterator[dict[str, object]]:
        while True:
            yield from self._space.grid_points()

    def _sample(self, point: dict[str, object], samples: int, without: set[str]) -> Config | None:
        for _ in range(samples):
            config = self._draw(point)
            if config is not None and (not without or fingerprint(config) not in without):
                return config
        return None

    def _draw(self, point: dict[str, object]) -> Config | None:
        """Return a sample at a grid point.

        In a small space, return None if the constraint refuses it.
        """
        if not self._counts:
            return self._space.draw(self._draws, point)
        config = self._space.config(next(self._draws) | point)
        return config if self._space.allows(config) else None

    def _sample_new(self, point: dict[str, object]) -> Config | None:
        return None if fingerprint(point) in self._left else self._sample(point, SAMPLES_BEFORE_COUNTING, self._seen)

    def _take_left(self, point: dict[str, object]) -> Config | None:
        key = fingerprint(point)
        if key not in self._left:
            configs = list(self._space.configs(point))
            self._left[key] = [configs[index] for index in self._rng.permutation(len(configs))]
        left = self._left[key]
        while left and fingerprint(left[-1]) in self._seen:
            left.pop()
        if left:
            taken: Config = copy_value(left[-1])
            return taken
        del self._left[key]
        configs = list(self._space.configs(point))
        self._seen.difference_update(map(fingerprint, configs))
        self._seen |= self._abandoned
        config = self._sample(point, 1, self._abandoned)
        if config is not None:
            return config
        allowed = [one for one in configs if fingerprint(one) not in self._abandoned]
        return allowed[self._rng.integers(len(allowed))] if allowed else None


def generator(seed: int) -> Generator:
    """Return a random number generator that depends only on *seed*, which may be negative."""
    import numpy as np  # noqa: PLC0415  - slow; the driver starts its worker before this

    return np.random.default_rng(seed if seed >= 0 else [-seed, 1])
