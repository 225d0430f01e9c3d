"""Importances of parameters by functional ANOVA.

Hutter, Hoos and Leyton-Brown described the method in 2014. A random forest is fitted to the trials. Each tree divides
the space into boxes with one value each. So the variance of its prediction, and of its mean over all parameters but
one, are sums over boxes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from mqtune.core.errors import ConfigurationError
from mqtune.core.version import install_command
from mqtune.results.plots.data import ParameterAxis

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TREES: Final = 64
_SEED: Final = 0


class _Inputs(NamedTuple):
    """A parameter as columns of the forest's input: one for numbers, or one for each category.

    A trial has a 1 in its category's column, and a 0 in the others.
    """

    columns: slice
    is_category: bool


class _Tree:
    """The boxes of a fitted tree, which cover the space.

    Attributes:
        low, high: the ends of each box, by column.
        value: the tree's prediction in each box.
    """

    def __init__(self, tree: Any, low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
        lows, highs = np.tile(low, (tree.node_count, 1)), np.tile(high, (tree.node_count, 1))
        nodes = np.zeros(1, dtype=int)
        while len(nodes):
            inner = nodes[tree.children_left[nodes] >= 0]
            left, right = tree.children_left[inner], tree.children_right[inner]
            column, threshold = tree.feature[inner], tree.threshold[inner]
            for children in (left, right):
                lows[children], highs[children] = lows[inner], highs[inner]
            highs[left, column] = lows[right, column] = threshold
            nodes = np.concatenate([left, right])
        is_leaf = tree.children_left < 0
        self.low, self.high, self.value = lows[is_leaf], highs[is_leaf], tree.value[is_leaf, 0, 0]

    def shares(self, parameters: Sequence[_Inputs]) -> NDArray[np.float64]:
        """Return each parameter's share of the variance of the tree's prediction in the space."""
        space = self.high.max(axis=0) - self.low.min(axis=0)
        categories = {
            place: self._categories(parameter.columns)
            for place, parameter in enumerate(parameters)
            if parameter.is_category
        }
        sizes = np.column_stack(
            [
                categories[place].mean(axis=1)
                if place in categories
                else ((self.high - self.low) / space)[:, parameter.columns.start]
                for place, parameter in enumerate(parameters)
            ]
        )
        volume = sizes.prod(axis=1)
        mean = float(volume @ self.value)
        variance = float(volume @ self.value**2) - mean**2
        if variance <= 0:
            return np.zeros(len(parameters))
        variances = []
        for place, parameter in enumerate(parameters):
            # A box's part in the mean prediction over all other parameters, within the box's range of this one.
            parts = self.value * volume / sizes[:, place]
            if place in categories:
                predicted = parts @ categories[place]
                weights = np.full(len(predicted), 1 / len(predicted))
            else:
                predicted, weights = self._along(parameter.columns.start, parts)
            variances.append(max(0.0, float(weights @ predicted**2) - mean**2))
        return np.asarray(variances) / variance

    def _categories(self, columns: slice) -> NDArray[np.bool_]:
        """Return for each box and category whether the box contains it."""
        may_be_one, may_be_zero = self.high[:, columns] == 1, self.low[:, columns] == 0
        others = (~may_be_zero).sum(axis=1, keepdims=True) - ~may_be_zero
        contains: NDArray[np.bool_] = may_be_one & (others == 0)
        return contains

    def _along(self, column: int, parts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the sum of boxes' *parts* in each interval of a column, and its share of the range."""
        low, high = self.low[:, column], self.high[:, column]
        edges = np.unique(np.concatenate([low, high]))
        begin, end = (
            np.bincount(np.searchsorted(edges, ends), weights=parts, minlength=len(edges)) for ends in (low, high)
        )
        return np.cumsum(begin - end)[:-1], np.diff(edges) / (edges[-1] - edges[0])


def importances(parameters: Sequence[ParameterAxis], values: Sequence[float]) -> list[float]:
    """Return each parameter's share of the variance of *values*.

    The shares add up to 1, or are all 0. In a trial that lacks a parameter, the parameter's median counts, or an
    additional category.

    Raises:
        ConfigurationError: scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415 - it takes a second
    except ImportError as error:
        raise ConfigurationError(f"importances need scikit-learn: {install_command('plot')} ({error})") from None
    inputs: list[_Inputs] = []
    columns: list[NDArray[np.float64]] = []
    for parameter in parameters:
        encoded = _encoded(parameter)
        inputs.append(_Inputs(slice(len(columns), len(columns) + len(encoded)), bool(parameter.names)))
        columns += encoded
    table = np.column_stack(columns)
    low, high = table.min(axis=0), table.max(axis=0)
    forest = RandomForestRegressor(_TREES, random_state=_SEED).fit(table, np.asarray(values))
    trees = [_Tree(estimator.tree_, low, high).shares(inputs) for estimator in forest.estimators_]
    shares = np.mean(trees, axis=0)
    total = float(shares.sum())
    return (shares / total).tolist() if total else [0.0] * len(parameters)


def _encoded(parameter: ParameterAxis) -> list[NDArray[np.float64]]:
    """Return a parameter's columns. Positions of numbers on a logarithmic axis become logarithms."""
    places = parameter.places
    if parameter.names:
        filled = [len(parameter.names) if math.isnan(place) else place for place in places]
        return [np.asarray([float(place == category) for place in filled]) for category in sorted(set(filled))]
    missing = median(place for place in places if not math.isnan(place))
    numbers = np.asarray([missing if math.isnan(place) else place for place in places])
    return [np.log(numbers) if parameter.is_log else numbers]
