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

#: Spaces of at most this size are searched without repeats. In larger ones repeats are rare, and listing all configs
#: would block the driver.
MAX_COUNTED: Final = 10_000

#: Samples to find a new config, before all configs are listed.
SAMPLES_BEFORE_COUNTING: Final = 20
#: Samples to find a config that was not abandoned, in a larger space.
_MOST_SAMPLES: Final = 1000


class RandomSearcher(Searcher):
    """Samples each config from the space, independently of the others and of every report.

    It is exhausted only when each config was abandoned. An abandoned config is never proposed again.

    With ``grid_search`` entries it walks the grid again and again, and samples the other values for each point, so
    ``max_trials`` alone limits the number of trials.

    A space of at most 10,000 different configs is sampled without repeats until each config was proposed, for each
    point of the grid. Then it starts again.

    Args:
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
        #: By grid point: remaining configs in random order, once sampling finds no new ones.
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
        """Count *config* as proposed, in place of the present suggestion, and return it.

        The two differ if an earlier version, which sampled differently, began the experiment.
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
            config = self._drawn(point)
            if config is not None and (not without or fingerprint(config) not in without):
                return config
        return None

    def _drawn(self, point: dict[str, object]) -> Config | None:
        """Return a sample, or None if configs are counted and the constraint refuses it."""
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
    """Return a random number generator that depends on *seed* alone, which may be negative."""
    import numpy as np  # noqa: PLC0415  - a driver starts its worker first, which then starts in parallel

    return np.random.default_rng(seed if seed >= 0 else [-seed, 1])
