"""Two searchers: one walks along a hyperparameter, and one has a name that scripts give."""

from __future__ import annotations

from typing import Any

import numpy as np

from mqtune import Space
from mqtune.extend import Config, Trial, TrialId
from mqtune.search import Encoding, Searcher


class Line(Searcher):
    """Suggests *count* values of one hyperparameter, evenly spaced from *low* to *high*.

    The other hyperparameters come from *rest*.
    """

    def __init__(self, name: str, low: float, high: float, count: int, rest: Config | None = None) -> None:
        self._arguments = {"name": name, "low": low, "high": high, "count": count, "rest": dict(rest or {})}
        step = (high - low) / max(1, count - 1)
        self._left = [{**(rest or {}), name: low + step * index} for index in range(count)]

    def suggest(self, trial: TrialId) -> Config | None:
        return self._left.pop(0) if self._left else None

    def avoid(self, config: Config) -> None:
        self._left = [each for each in self._left if each != config]

    def on_abandon(self, trial: Trial) -> None:
        self.avoid(trial.config)

    def describe(self) -> dict[str, Any]:
        return {"searcher": "line", **self._arguments}


class Middle(Searcher):
    """Suggests the middle of the space, and then configs around it: ``searcher="middle"``.

    Args:
        width: the part of each range that is searched, around its middle.
    """

    # The entry point in pyproject.toml has the same name.
    kind = "middle"

    def __init__(self, width: float = 0.5) -> None:
        # Each argument is kept under its name, for descriptions.
        self._width = width

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        self._space, self._encoding = space, Encoding(space)
        self._numbers = np.random.default_rng(seed)
        self._has_begun = False

    def suggest(self, trial: TrialId) -> Config | None:
        while True:
            offsets = self._numbers.random(len(self._encoding.columns)) - 0.5
            row = 0.5 + self._width * offsets * self._has_begun
            self._has_begun = True
            (config,) = self._encoding.decode([row])
            if self._space.allows(config):
                return config
