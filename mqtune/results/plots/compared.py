"""Pictures of several trials, or several experiments, beside each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from mqtune.core.errors import ConfigurationError, NothingToDraw
from mqtune.core.text import counted
from mqtune.core.trial import Trial, TrialId
from mqtune.results.plots.data import (
    MOST_POINTS,
    ParameterAxis,
    PlottedCurve,
    Read,
    chosen,
    curves_of,
    is_wide,
    joined,
    parameters_of,
    spread,
    time_attr_of,
    value_of,
)
from mqtune.results.plots.panels import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Axis,
    Look,
    Panel,
    Series,
    label,
)
from mqtune.results.plots.picture import Picture

_COLORS: Final = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY)
MOST_COMPARED: Final = 10
_MOST_DOTS, _MOST_PANELS = 300, 12


class Compared:
    """The pictures of several experiments beside each other, by the first metric of each.

    Each method raises NothingToDraw if no experiment has data for it.

    Args:
        results: by the experiments' names.
        curves: returns the reports of each trial with a metric. The default reads the journal.
    """

    def __init__(
        self, results: Mapping[str, Read], curves: Callable[[Read, str], Mapping[TrialId, PlottedCurve]] = curves_of
    ) -> None:
        self._results = dict(list(results.items())[:MOST_COMPARED])
        self._curves_of = curves

    def draw(self, kind: str) -> Picture:
        """Return the picture of this name: "runs", "bests" or "parameters".

        Raises:
            ConfigurationError: the name is unknown.
        """
        if kind not in ("runs", "bests", "parameters"):
            raise ConfigurationError(f"there is no picture {kind!r} of several experiments")
        picture: Picture = getattr(self, kind)()
        return picture

    def runs(self) -> Picture:
        """Return the best value so far of each experiment, by the number of begun trials."""
        series = []
        for name, results, look in self._each():
            metric, trials = _metric(results), list(results.experiment.trials.values())
            places = [
                (place, value)
                for place, trial in enumerate(trials, 1)
                if not math.isnan(value := _counted(results, trial, metric))
            ]
            best = list(accumulate((value for _, value in places), _better(results)))
            kept = spread(len(best), MOST_POINTS // MOST_COMPARED)
            if kept:
                series.append(
                    Series(name, [float(places[index][0]) for index in kept], [best[index] for index in kept], look)
                )
        return self._picture("best so far", [self._panel("trials, in the order in which they began", series)])

    def bests(self) -> Picture:
        """Return the learning curve of the best trial of each experiment."""
        series, times = [], []
        for name, results, look in self._each():
            best = results.experiment.best
            curve = None if best is None else self._curves_of(results, _metric(results)).get(best.id)
            if best is None or curve is None:
                continue
            kept = spread(len(curve.value), MOST_POINTS // MOST_COMPARED)
            xs, ys = [curve.time[index] for index in kept], [curve.value[index] for index in kept]
            series.append(Series(name, xs, ys, look, [best.id] * len(kept)))
            times.append(time_attr_of(results))
        return self._picture("the best trial of each", [self._panel(label(", ".join(dict.fromkeys(times))), series)])

    def parameters(self) -> Picture:
        """Return the best value of each trial against shared parameters, or all if none is shared."""
        drawn = {
            name: chosen(results, list(results.experiment.trials.values()), _MOST_DOTS)
            for name, results in self._results.items()
        }
        by_name = {
            name: {parameter.name: parameter for parameter in parameters_of(self._results[name], trials)}
            for name, trials in drawn.items()
        }
        names = list(dict.fromkeys(parameter for parameters in by_name.values() for parameter in parameters))
        shared = [
            parameter for parameter in names if sum(parameter in parameters for parameters in by_name.values()) > 1
        ] or names
        panels = [self._parameter(parameter, drawn, by_name) for parameter in shared[:_MOST_PANELS]]
        return self._picture("parameters", panels)

    def _parameter(
        self, parameter: str, drawn: Mapping[str, Sequence[Trial]], by_name: Mapping[str, Mapping[str, ParameterAxis]]
    ) -> Panel:
        those = {name: parameters[parameter] for name, parameters in by_name.items() if parameter in parameters}
        # Numbers and texts have no axis in common: the first experiment's counts.
        has_names = bool(next(iter(those.values())).names)
        those = {name: axis for name, axis in those.items() if bool(axis.names) == has_names}
        every = list(dict.fromkeys(text for parameter_ in those.values() for text in parameter_.names))
        series = []
        for name, results, look in self._each():
            if name in those:
                mine = those[name]
                places = [
                    place if math.isnan(place) or not mine.names else float(every.index(mine.names[int(place)]))
                    for place in mine.places
                ]
                values = [value_of(results, trial, _metric(results)) for trial in drawn[name]]
                dots = Look(look.color, marker="circle", size=5, opacity=0.7)
                series.append(Series(name, places, values, dots, [trial.id for trial in drawn[name]]))
        ticks = [(float(place), label(text)) for place, text in enumerate(every)]
        x = Axis(label(parameter), all(axis.is_log for axis in those.values()), ticks)
        return Panel(x, self._values_axis(series), series)

    def _panel(self, x: str, series: Sequence[Series]) -> Panel:
        return Panel(Axis(x), self._values_axis(series), series)

    def _values_axis(self, series: Sequence[Series]) -> Axis:
        metrics = dict.fromkeys(_metric(results) for results in self._results.values())
        return Axis(label(", ".join(metrics)), is_wide([value for line in series for value in line.y]))

    def _each(self) -> list[tuple[str, Read, Look]]:
        return [
            (name, results, Look(_COLORS[place % len(_COLORS)], width=2))
            for place, (name, results) in enumerate(self._results.items())
        ]

    def _picture(self, title: str, panels: Sequence[Panel]) -> Picture:
        if not any(line.y for panel in panels for line in panel.series):
            raise NothingToDraw(f"none of {', '.join(self._results)} has anything to draw for that")
        sizes = {name: len(results.experiment.trials) for name, results in self._results.items()}
        counts = [f"{name}: {counted(size, 'trial')}" for name, size in sizes.items()]
        return Picture(title, " · ".join(counts), panels)


def curves_apart(metric: str, x_axis: Axis, trials: Sequence[Trial], curves: Mapping[TrialId, PlottedCurve]) -> Panel:
    """Return the curves of few trials, each in its own colour."""
    series = []
    for place, trial in enumerate(trials):
        curve, look = curves[trial.id], Look(_COLORS[place % len(_COLORS)], width=2)
        kept = spread(len(curve.value), MOST_POINTS // len(trials))
        xs, ys = [curve.time[index] for index in kept], [curve.value[index] for index in kept]
        series.append(Series(f"trial {trial.id}", xs, ys, look, [trial.id] * len(kept)))
    return Panel(x_axis, Axis(label(metric), is_wide([value for line in series for value in line.y])), series)


def lines_apart(lines: Sequence[tuple[str, Sequence[float], Sequence[float]]]) -> list[Series]:
    """Return lines of few trials, each with its trial's id, in the colours of ``curves_apart``."""
    looks = [Look(_COLORS[place % len(_COLORS)], width=2, marker="circle", size=4) for place in range(len(lines))]
    return [joined(f"trial {line[0]}", look, [line]) for line, look in zip(lines, looks, strict=True)]


def _metric(results: Read) -> str:
    return results.experiment.objective.metrics[0]


def _better(results: Read) -> Callable[[float, float], float]:
    return min if results.experiment.objective.modes[0] == "min" else max


def _counted(results: Read, trial: Trial, metric: str) -> float:
    """Return a trial's value. NaN if it is missing, abandoned or violates a constraint."""
    counts = not trial.is_abandoned and results.experiment.is_feasible(trial)
    return value_of(results, trial, metric) if counts else math.nan
