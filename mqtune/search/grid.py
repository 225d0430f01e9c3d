"""Grid search: proposes each point of the grid once."""

from __future__ import annotations

from typing import Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import Config, Trial, TrialId
from mqtune.search.base import Searcher, check_arguments, fingerprint
from mqtune.search.random import generator
from mqtune.search.space import Space

#: Largest number of samples at a point, to find a config that need not be skipped.
_SAMPLES: Final = 20


class GridSearcher(Searcher):
    """Proposes each point of the space's ``grid_search`` entries once, in nested-loop order.

    Other values are sampled for each point. Configs of abandoned trials, and of trials that a user has added, are
    skipped.

    Args:
        space: the search space, with at least one ``grid_search`` entry.
        seed: the same seed gives the same sampled values.
    """

    kind = "grid"
    takes_several = True

    def __init__(self, space: Space, seed: int = 0) -> None:
        check_arguments("GridSearcher", space, seed)
        if not space.has_grid:
            raise ConfigurationError(
                "GridSearcher: the space has no grid_search entry; give one, or use RandomSearcher"
            )
        self._space = space
        self._seed = seed
        self._draws = space.draws(generator(seed))
        self._points = space.grid_points()
        self._avoided: set[str] = set()

    def suggest(self, trial: TrialId) -> Config | None:
        """Return the next point's config, or None after the last."""
        for point in self._points:
            for _ in range(_SAMPLES):
                config = self._space.draw(self._draws, point)
                if fingerprint(config) not in self._avoided:
                    return config
        return None

    def replay(self, trial: TrialId, config: Config) -> Config | None:
        """Advance to the next point.

        Return *config* if it belongs to that point, else the point's config. Its sampled values may differ from those
        of now, if another version of mqtune began the experiment.
        """
        suggested = self.suggest(trial)
        is_point = suggested is not None and self._space.grid_point(suggested) == self._space.grid_point(config)
        return config if is_point else suggested

    def avoid(self, config: Config) -> None:
        self._avoided.add(fingerprint(config))

    def on_abandon(self, trial: Trial) -> None:
        self.avoid(trial.config)
