"""Searchers that propose an experiment's recorded configs, to simulate another search."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from mqtune.core.objective import Objective
from mqtune.core.registry import Description, described
from mqtune.core.trial import Config, TrialId
from mqtune.search.base import WAIT, Searcher, Suggestion, Telling, fingerprint
from mqtune.search.encoding import Encoding
from mqtune.search.space import Space
from mqtune.search.values import copy_value


class InRecordedOrder(Searcher):
    """Proposes each recorded config once, in the recorded or in a shuffled order.

    Args:
        configs: the configs, in the recorded order.
        shuffle: the seed of a shuffled order. None keeps the recorded order.
    """

    takes_several = True

    def __init__(self, configs: Sequence[Config], shuffle: int | None = None) -> None:
        self._left = list(configs)
        if shuffle is not None:
            random.Random(shuffle).shuffle(self._left)
        self._left.reverse()

    def describe(self) -> Description:
        return {self.role: "recorded"}

    def suggest(self, trial: TrialId) -> Config | None:
        config: Config | None = copy_value(self._left.pop()) if self._left else None
        return config


class NearestRecorded(Telling):
    """Proposes the remaining recorded config that is nearest to another searcher's suggestion.

    The other searcher is told that the proposed config is tried instead of its suggestion. The distance is that of
    ``Encoding`` rows. A value that only one of two configs has counts as a difference of 1, the width of a domain.

    Args:
        searcher: the other searcher, for *space*.
        configs: the recorded configs.
        space: the search space.

    Raises:
        SpaceError: a recorded config is not in the space.
    """

    takes_several = True

    def __init__(self, searcher: Searcher, configs: Sequence[Config], space: Space) -> None:
        self._searcher = searcher
        self._left = list(configs)
        self._encoding = Encoding(space)
        self._rows = self._encoding.encode(configs)
        self.adaptive, self.is_slow = searcher.adaptive, searcher.is_slow
        self.wants_whole_trials = searcher.wants_whole_trials

    def describe(self) -> Description:
        return {self.role: "recorded", "nearest_to": described(self._searcher)}

    def check_space(self, space: Space) -> None:
        self._searcher.check_space(space)

    def check_objective(self, objective: Objective) -> None:
        super().check_objective(objective)
        self._searcher.check_objective(objective)

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        self._searcher.bind(space, seed, metric=metric, mode=mode)

    def suggest(self, trial: TrialId) -> Suggestion:
        if not self._left:
            return None
        wanted = self._searcher.suggest(trial)
        if wanted is None or wanted is WAIT:
            return wanted
        config = self._take_nearest(wanted)
        if fingerprint(config) != fingerprint(wanted):
            self._searcher.adopt(trial, config)
        return config

    def _take_nearest(self, wanted: Config) -> Config:
        away = self._rows - self._encoding.encode([wanted])
        # A value that a config lacks is NaN in its row.
        here, theirs = np.isnan(self._rows), np.isnan(self._encoding.encode([wanted]))
        away[here & theirs] = 0.0
        away[here ^ theirs] = 1.0
        nearest = int((away**2).sum(axis=1).argmin())
        self._rows = np.delete(self._rows, nearest, axis=0)
        config: Config = copy_value(self._left.pop(nearest))
        return config
