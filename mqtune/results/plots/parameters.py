"""Pictures of hyperparameters, with trials compared at the same time of the scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from mqtune.core.trial import Trial, TrialId, is_number
from mqtune.results.plots.base import MOST_DOTS, MOST_PANELS, PlotBase, cut_note, rows_axis
from mqtune.results.plots.compared import lines_apart
from mqtune.results.plots.data import (
    MOST_LINES,
    ParameterAxis,
    chosen,
    is_wide,
    joined,
    parameters_of,
    spread,
    time_attr_of,
    value_of,
)
from mqtune.results.plots.fanova import importances
from mqtune.results.plots.levels import BEST, CommonLevel, best_range, share_of
from mqtune.results.plots.panels import COMPLETED, STOPPED, TEXT, Axis, BestShare, Look, Panel, Series, label
from mqtune.results.plots.picture import Picture
from mqtune.results.plots.scales import height_on, in_tiers, names_on, scale_of

#: The fewest and the most trials for importances. With the most, they take some 0.4 s.
_FEWEST, _MOST_FITTED = 20, 1_000
#: Slices: trials worse than this percentile are drawn at the end of the axis, if there are at least _ENOUGH trials.
_PERCENTILE: Final = 93
_ENOUGH: Final = 20
#: Slices: the axis is cut there only if it becomes shorter than this share of its length.
_CUT: Final = 0.6
#: The width of a category's points and of its median, as shares of the distance between two categories.
_JITTER, _MEDIAN_WIDTH = 0.4, 0.56
#: A step that spreads any number of points evenly.
_GOLDEN: Final = 0.618


class ParameterPlots(PlotBase):
    """The pictures of hyperparameters. Arguments and errors are those of ``Plots``."""

    def slices(self, metric: str | None = None, at: float | None = None) -> Picture:
        """Return the value of each trial against its parameters, with a panel for each parameter.

        Values are compared at the same time of the scheduler, so trials that have not reached it are left out. The
        range of the best fifth of the trials is tinted. A panel lacks trials whose config has no such parameter.

        Args:
            metric: a metric of the experiment. The default is its first one.
            at: the scheduler's time, or infinity for each trial's best value. The default is the latest rung that 30
                trials have reached.

        Raises:
            ConfigurationError: the experiment has no such metric.
        """
        metric = self._metric(metric)
        level = self._common_level(metric, at)
        valued = [trial for trial in self._trials() if trial.id in level.values]
        trials = chosen(self._results, valued, MOST_DOTS // 2)
        parameters = parameters_of(self._results, trials)
        if not parameters:
            raise self._nothing("slices", "its trials have no parameter that differs")
        limits = self._limits([level.values[trial.id] for trial in valued], metric)
        panels = [
            self._slice(metric, trials, parameter, level.values, limits) for parameter in parameters[:MOST_PANELS]
        ]
        more = cut_note(len(parameters), len(panels), "parameters")
        drawn = self._picture(f"{metric} by parameter", panels, trials, level.words, more)
        return replace(drawn, levels=level.levels)

    def _common_level(self, metric: str, at: float | None) -> CommonLevel:
        bests = self._bests(metric)
        return CommonLevel(self._results, bests, lambda: self._curves_of(self._results, metric), at)

    def _bests(self, metric: str) -> dict[TrialId, float]:
        bests = {
            trial.id: value
            for trial in self._trials()
            if not (trial.is_abandoned or math.isnan(value := value_of(self._results, trial, metric)))
        }
        if not bests:
            raise self._no_value(metric)
        return bests

    def _limits(self, values: Sequence[float], metric: str) -> tuple[float, float] | None:
        """Return ends of the value axis if a few bad trials would flatten the others, else None."""
        if len(values) < _ENOUGH:
            return None
        is_min = self._mode(metric) == "min"
        low, high = min(values), max(values)
        limit = float(np.percentile(values, _PERCENTILE if is_min else 100 - _PERCENTILE))
        of = math.log if is_wide(values) else float
        kept = (of(limit) - of(low)) if is_min else (of(high) - of(limit))
        if low == high or not 0 < kept < _CUT * (of(high) - of(low)):
            return None
        return (low, limit) if is_min else (limit, high)

    def _slice(
        self,
        metric: str,
        trials: Sequence[Trial],
        parameter: ParameterAxis,
        values: Mapping[TrialId, float],
        limits: tuple[float, float] | None,
    ) -> Panel:
        place = dict(zip((trial.id for trial in trials), parameter.places, strict=True))
        placed = [trial for trial in trials if not math.isnan(place[trial.id])]
        spots = {trial.id: place[trial.id] + _jitter(number, parameter) for number, trial in enumerate(placed)}
        low, high = limits or (-math.inf, math.inf)
        inside = [trial for trial in placed if low <= values[trial.id] <= high]
        beyond = [trial for trial in placed if not low <= values[trial.id] <= high]
        series = self._by_status(inside, lambda trial: spots[trial.id], lambda trial: values[trial.id])
        if beyond:
            is_min = self._mode(metric) == "min"
            look = Look(STOPPED, marker="caret-up" if is_min else "caret-down", size=7, edge=1.2)
            edge = [high if is_min else low] * len(beyond)
            series.append(Series("beyond the axis", [spots[t.id] for t in beyond], edge, look, [t.id for t in beyond]))
        if parameter.names:
            series += _medians(parameter, [(place[trial.id], values[trial.id]) for trial in placed])
        best = self._experiment.best
        if best is not None and best.id in spots and low <= values[best.id] <= high:
            series += self._best_mark(lambda trial: spots[trial.id], lambda trial: values[trial.id])
        ends = (-0.5, len(parameter.names) - 0.5) if parameter.names else None
        x = Axis(label(parameter.name), parameter.is_log, parameter.ticks, ends)
        y = Axis(label(metric), is_wide([values[trial.id] for trial in inside]))
        of_trials, is_min = [values[trial.id] for trial in trials], self._mode(metric) == "min"
        band = None if parameter.names else best_range(parameter, of_trials, is_min=is_min)
        share = share_of(parameter, of_trials, None, is_min=is_min)
        return Panel(x, y, series, key=parameter.name, band=band, note=_range_note(share))

    def parallel(self, *, apart: bool = False, at: float | None = None, order: Sequence[str] = ()) -> Picture:
        """Return each trial as a line across its parameters and its values, the best trials darkest.

        Each parameter has its own axis, from the least to the greatest value of any trial.

        Args:
            apart: whether each trial has a colour and a name of its own, as in ``curves``.
            at: the scheduler's time at which trials are compared, as in ``slices``. With *apart* it is ignored, and
                trials are compared by their best values.
            order: names of parameters that come first, in this order.
        """
        metrics = self._experiment.objective.metrics
        level = None if apart else self._common_level(metrics[0], at)
        compared = self._bests(metrics[0]) if level is None else level.values
        trials = [trial for trial in self._trials() if trial.id in compared]
        every = sorted(
            parameters_of(self._results, trials),
            key=lambda parameter: order.index(parameter.name) if parameter.name in order else len(order),
        )
        parameters = every[:MOST_PANELS]
        for metric in metrics:
            is_compared = metric == metrics[0]
            values = [compared[t.id] if is_compared else value_of(self._results, t, metric) for t in trials]
            parameters.append(ParameterAxis(metric, values, is_wide(values)))
        kept = {trial.id for trial in chosen(self._results, trials, MOST_LINES)}
        places = np.asarray(parameters[-len(metrics)].places)
        ranks = np.empty(len(trials), dtype=int)
        ranks[np.argsort(places if self._mode(metrics[0]) == "min" else -places, kind="stable")] = range(len(trials))
        ranked_rows = sorted((int(ranks[number]), number) for number, t in enumerate(trials) if t.id in kept)
        scales = list(map(scale_of, parameters))
        axes = list(zip(scales, parameters, strict=True))
        xs = list(map(float, range(len(parameters))))
        lines = {
            n: (trials[n].id, xs, [height_on(scale, parameter.places[n]) for scale, parameter in axes])
            for _, n in ranked_rows
        }
        # The first trials are drawn over the others, like the best ones.
        if apart:
            series = lines_apart([lines[n] for n in sorted(lines)])[::-1]
        else:
            series = in_tiers([*lines.values()], [rank for rank, _ in ranked_rows], len(trials))
        texts = [(float(x), *text) for x, axis in enumerate(axes) for text in names_on(*axis)]
        ticks = [(float(x), label(parameter.name)) for x, parameter in enumerate(parameters)]
        x = Axis("", ticks=ticks, ends=(-0.2, len(parameters) - 0.4), has_grid=True)
        y = Axis("share of the range", ends=(-0.05, 1.05), ticks=[(0, "low"), (1, "high")])
        panel = Panel(x, y, series[::-1], texts=texts)
        more = cut_note(len(every), len(parameters) - len(metrics), "parameters")
        shown = [trials[number] for _, number in ranked_rows]
        drawn = self._picture("parallel coordinates", [panel], shown, "" if level is None else level.words, more)
        return replace(drawn, scales=scales, levels=None if level is None else level.levels)

    def importances(self, metric: str | None = None, at: float | None = None) -> Picture:
        """Return a bar for each parameter: its share of the variance between trials, by fANOVA.

        After Hutter, Hoos and Leyton-Brown, 2014. Values are compared at the same time of the scheduler, as in
        ``slices``. Of many trials, 1,000 evenly chosen ones count. If a trial lacks a number, the median of the other
        trials' numbers replaces it.

        Args:
            metric: a metric of the experiment. The default is its first one.
            at: the scheduler's time, as in ``slices``.

        Raises:
            ConfigurationError: scikit-learn is not installed, or the experiment has no such metric.
        """
        metric = self._metric(metric)
        level = self._common_level(metric, at)
        valued = [trial for trial in self._trials() if trial.id in level.values]
        # Trials are chosen evenly: the best ones alone would hide the causes of bad results.
        trials = [valued[place] for place in spread(len(valued), _MOST_FITTED)]
        parameters = parameters_of(self._results, trials)
        if len(trials) < _FEWEST:
            where = f" {level.words}".replace(" at each trial's best", "")
            has_bests = bool(where.strip()) and len(self._bests(metric)) >= _FEWEST
            way_out = "; to compare each trial's best value: importances(at=math.inf)" if has_bests else ""
            needs = f"it needs {_FEWEST} trials{where}, and there are {len(trials)}{way_out}"
            raise self._nothing("importances", needs)
        if not parameters:
            raise self._nothing("importances", "its trials have no parameter that differs")
        values = [level.values[trial.id] for trial in trials]
        if len(set(values)) == 1:
            raise self._nothing("importances", f"all values of {metric!r} are the same")
        # Best values differ mostly by how long trials ran. The length is fitted too, so that its effect is not
        # attributed to parameters.
        fitted = (
            [*parameters, *self._lengths(trials)]
            if level.levels is None or level.levels.shown.time == BEST
            else parameters
        )
        shares = importances(fitted, values)
        explained = sum(shares[: len(parameters)]) or 1.0
        is_min = self._mode(metric) == "min"
        # The length's share comes last, and is left out.
        sizes = {parameter.name: share / explained for share, parameter in zip(shares, parameters, strict=False)}
        described = [share_of(parameter, values, sizes[parameter.name], is_min=is_min) for parameter in parameters]
        described.sort(key=lambda described: sizes[described.name], reverse=True)
        panel = _bar_chart(f"share of the variance of {label(metric)}", sizes)
        drawn = self._picture(f"importance for {metric}", [panel], trials, level.words, rows=len(parameters))
        return replace(drawn, levels=level.levels, shares=described)

    def _lengths(self, trials: Sequence[Trial]) -> list[ParameterAxis]:
        """Return the trials' lengths in the scheduler's time as a parameter, or [] if all are equal."""
        time_attr = time_attr_of(self._results)
        lengths = [float(_number(trial.last_metrics.get(time_attr), trial.reports)) for trial in trials]
        return [ParameterAxis("", lengths)] if len(set(lengths)) > 1 else []

    def ranges(self, metric: str | None = None, at: float | None = None) -> Picture:
        """Return a picture without panels, whose ``shares`` have the ranges of the best trials."""
        metric = self._metric(metric)
        level = self._common_level(metric, at)
        trials = [trial for trial in self._trials() if trial.id in level.values]
        values, is_min = [level.values[trial.id] for trial in trials], self._mode(metric) == "min"
        shares = [
            share_of(parameter, values, None, is_min=is_min) for parameter in parameters_of(self._results, trials)
        ]
        return replace(self._picture("best ranges", [], trials, level.words), levels=level.levels, shares=shares)


def _jitter(number: int, parameter: ParameterAxis) -> float:
    """Return how far the n-th point is moved from its category's position, to keep points apart."""
    return (number * _GOLDEN % 1 - 0.5) * _JITTER if parameter.names else 0.0


def _medians(parameter: ParameterAxis, points: Sequence[tuple[float, float]]) -> list[Series]:
    """Return a series with a short line at the median of each category."""
    lines = []
    for place, name in enumerate(parameter.names):
        if values := [value for spot, value in points if spot == place]:
            middle, half = float(np.median(values)), _MEDIAN_WIDTH / 2
            lines.append((name, [place - half, place + half], [middle, middle]))
    return [joined("median", Look(TEXT, width=2), lines)] if lines else []


def _range_note(share: BestShare) -> str:
    edge = ", at the edge of the range" if share.is_at_edge else ""
    return f"best 20 %: {share.best}{edge}" if share.best else ""


def _number(value: object, otherwise: float) -> float:
    return value if is_number(value) and math.isfinite(value) else otherwise


def _bar_chart(title: str, shares: Mapping[str, float]) -> Panel:
    names = sorted(shares, key=lambda name: shares[name])
    rows, sizes = list(map(float, range(len(names)))), [shares[name] for name in names]
    texts = [f"{size:.0%}" for size in sizes]
    bars = Series("", sizes, rows, Look(COMPLETED, is_bar=True), texts)
    x = Axis(title, ends=(0, max(0.1, sizes[-1] * 1.1)))
    return Panel(x, rows_axis(names), [bars], texts=list(zip(sizes, rows, texts, strict=True)))
