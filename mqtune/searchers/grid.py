"""Grid search: each point of the grid once."""

from __future__ import annotations

import random
from typing import Any

from mqtune.errors import ConfigurationError
from mqtune.searchers.base import Searcher, check_arguments
from mqtune.space import Space
from mqtune.trial import Config

__all__ = ["GridSearcher"]


class GridSearcher(Searcher):
    """Walks the grid of the space's ``grid_search`` entries once, in the order of nested loops, and is exhausted then.

    What is not part of the grid is sampled anew for each point.

    Args:
        space: what to walk; it needs a ``grid_search`` entry.
        seed: the same seed gives the same values for what is sampled.
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        check_arguments("GridSearcher", space, seed)
        if not space.has_grid:
            raise ConfigurationError(
                "GridSearcher: the space has no grid_search entry; give one, or use RandomSearcher"
            )
        self._space = space
        self._seed = seed
        self._rng = random.Random(seed)
        self._points = space.grid_points()

    def suggest(self) -> Config | None:
        """Return the config for the grid's next point, or None after the last."""
        point = next(self._points, None)
        return None if point is None else self._space.sample(self._rng, point)

    def describe(self) -> dict[str, Any]:
        """Return its arguments, the space by its own description."""
        return {"searcher": "grid", "space": self._space.describe(), "seed": self._seed}
