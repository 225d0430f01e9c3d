"""A model as a searcher: it proposes the best of 200 random configs by a kernel regression over all trials."""

import numpy as np

import mqtune


class KernelSearcher(mqtune.search.Searcher):
    """Proposes the config for which the regression, and the doubt about it, promise the most."""

    adaptive = True

    def __init__(self, width=0.1, hope=0.25):
        self._width, self._hope = width, hope
        self._rows, self._losses = {}, {}

    def bind(self, space, seed, *, metric, mode):
        self._metric, self._sign = metric, 1 if mode == "min" else -1
        self._space, self._encoding = space, mqtune.search.Encoding(space)
        self._numbers = np.random.default_rng(seed)

    def _encoded(self, configs):
        return np.nan_to_num(self._encoding.encode(configs), nan=0.5)

    def suggest(self, trial):
        configs = self._encoding.decode(self._numbers.random((200, len(self._encoding.columns))))
        configs = [config for config in configs if self._space.allows(config)]
        if not self._losses:
            return configs[0]
        known, losses = np.array([self._rows[key] for key in self._losses]), np.array([*self._losses.values()])
        distances = ((self._encoded(configs)[:, None] - known) ** 2).sum(axis=2)
        weights = np.exp(-distances / (2 * self._width**2)) + 1e-12
        mean = weights @ losses / weights.sum(axis=1)
        doubt = losses.std() * (1 - weights.max(axis=1))
        return configs[np.argmin(mean - self._hope * doubt)]

    def learn(self, trial):
        self._note(f"learnt {len(self._rows)}", trial.config, trial.value)

    def on_report(self, trial, report):
        self._note(trial.id, trial.config, report.metrics.get(self._metric))

    def _note(self, key, config, value):
        if isinstance(value, float) and np.isfinite(value):
            self._rows[key], self._losses[key] = self._encoded([config])[0], self._sign * value
