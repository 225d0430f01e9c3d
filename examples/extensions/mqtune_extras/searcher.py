"""A searcher: walks along one hyperparameter."""

from __future__ import annotations

from typing import Any

from mqtune.core.trial import Config, Trial, TrialId
from mqtune.search import Searcher


class Line(Searcher):
    """Suggests *count* values of one hyperparameter, evenly spaced from *low* to *high*; the others are as in *rest*."""

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
