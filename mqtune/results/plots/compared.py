"""Pictures that compare several trials, or several experiments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final, NamedTuple

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
    is_wide_series,
    joined,
    parameters_of,
    spread,
    time_label_of,
    value_of,
)
from mqtune.results.plots.panels import (
    COMPLETED,
    PAUSED,
    RUNNING,
    STOPPED,
    TEXT,
    WARN,
    Axis,
    Look,
    Panel,
    Series,
    label,
)
from mqtune.results.plots.picture import Picture

#: In these pictures, colours stand for experiments or trials, not for states. With more of them, lines are dashed.
_COLORS: Final = (COMPLETED, WARN, RUNNING, PAUSED, TEXT, STOPPED)
MOST_COMPARED: Final = 10
_MOST_DOTS, _MOST_PANELS = 300, 12


class _Compared(NamedTuple):
    """An experiment, with the name and the look that it has in all pictures."""

    name: str
    results: Read
    look: Look


class Compared:
    """The pictures that compare several experiments by the first metric of each.

    Experiments share a panel if they have the same metric and mode. Each method raises NothingToDraw if no experiment
    has data for it.

    Args:
        results: the experiments by their names. The first ten are drawn.
        curves: returns each trial's curve of a metric, given the results and the metric. The default reads the journal.
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
        """Return each experiment's best value so far, over its number of begun trials."""
        return self._picture("best over time", self._panels("trials, in the order in which they began", self._run))

    def _run(self, compared: _Compared) -> Series | None:
        metric, trials = _metric(compared.results), list(compared.results.experiment.trials.values())
        places = [
            (place, value)
            for place, trial in enumerate(trials, 1)
            if not math.isnan(value := _ranked_value(compared.results, trial, metric))
        ]
        best = list(accumulate((value for _, value in places), _better(compared.results)))
        kept = spread(len(best), MOST_POINTS // MOST_COMPARED)
        xs, ys = [float(places[place][0]) for place in kept], [best[place] for place in kept]
        return Series(compared.name, xs, ys, compared.look) if kept else None

    def bests(self) -> Picture:
        """Return the learning curve of each experiment's best trial."""
        times = dict.fromkeys(map(time_label_of, self._results.values()))
        return self._picture("the best trial of each", self._panels(", ".join(times), self._best_curve))

    def _best_curve(self, compared: _Compared) -> Series | None:
        best = compared.results.experiment.best
        curve = None if best is None else self._curves_of(compared.results, _metric(compared.results)).get(best.id)
        if best is None or curve is None:
            return None
        kept = spread(len(curve.value), MOST_POINTS // MOST_COMPARED)
        xs, ys = [curve.time[place] for place in kept], [curve.value[place] for place in kept]
        return Series(compared.name, xs, ys, compared.look, [best.id] * len(kept))

    def _panels(self, x: str, series_of: Callable[[_Compared], Series | None]) -> list[Panel]:
        panels = []
        for title, group in self._groups().items():
            series = [one for one in map(series_of, group) if one is not None]
            if series:
                panels.append(Panel(Axis(x), _values_axis(group, series), series, title, key=title))
        return panels

    def parameters(self) -> Picture:
        """Return each trial's best value against each parameter that at least two experiments have.

        If experiments share no parameter, all parameters are drawn.
        """
        drawn = {
            name: chosen(results, list(results.experiment.trials.values()), _MOST_DOTS)
            for name, results in self._results.items()
        }
        axes = {
            name: {axis.name: axis for axis in parameters_of(self._results[name], trials)}
            for name, trials in drawn.items()
        }
        panels = []
        for title, group in self._groups().items():
            group_axes = [axes[compared.name] for compared in group]
            names = list(dict.fromkeys(name for parameters in group_axes for name in parameters))
            shared = [name for name in names if sum(name in parameters for parameters in group_axes) > 1] or names
            panels += [self._parameter(name, title, group, drawn, axes) for name in shared]
        return self._picture("parameters", panels[:_MOST_PANELS])

    def _parameter(
        self,
        parameter: str,
        title: str,
        group: Sequence[_Compared],
        drawn: Mapping[str, Sequence[Trial]],
        axes: Mapping[str, Mapping[str, ParameterAxis]],
    ) -> Panel:
        having = {one.name: axes[one.name][parameter] for one in group if parameter in axes[one.name]}
        # Numbers and categories can't share an axis. Experiments whose kind differs from the first one's are left out.
        has_names = bool(next(iter(having.values())).names)
        having = {name: axis for name, axis in having.items() if bool(axis.names) == has_names}
        every = list(dict.fromkeys(name for axis in having.values() for name in axis.names))
        series = []
        for compared in group:
            if compared.name in having:
                own = having[compared.name]
                places = [
                    place if math.isnan(place) or not own.names else float(every.index(own.names[int(place)]))
                    for place in own.places
                ]
                trials = drawn[compared.name]
                values = [value_of(compared.results, trial, _metric(compared.results)) for trial in trials]
                dots = Look(compared.look.color, marker="circle", size=6)
                series.append(Series(compared.name, places, values, dots, [trial.id for trial in trials]))
        ticks = [(float(place), label(name)) for place, name in enumerate(every)]
        x = Axis(label(parameter), all(axis.is_log for axis in having.values()), ticks)
        return Panel(x, _values_axis(group, series), series, f"{title} by {label(parameter)}", key=parameter)

    def _groups(self) -> dict[str, list[_Compared]]:
        """Return the experiments grouped by metric and mode, under names such as "loss ↓"."""
        groups: dict[str, list[_Compared]] = {}
        for place, (name, results) in enumerate(self._results.items()):
            objective = results.experiment.objective
            arrow = "↓" if objective.modes[0] == "min" else "↑"
            groups.setdefault(f"{label(objective.metrics[0])} {arrow}", []).append(
                _Compared(name, results, _look_of(place))
            )
        return groups

    def _picture(self, title: str, panels: Sequence[Panel]) -> Picture:
        if not any(series.y for panel in panels for series in panel.series):
            raise NothingToDraw(f"none of {', '.join(self._results)} has data for this picture")
        sizes = {name: len(results.experiment.trials) for name, results in self._results.items()}
        counts = [f"{name}: {counted(size, 'trial')}" for name, size in sizes.items()]
        return Picture(title, " · ".join(counts), panels)


def _look_of(place: int) -> Look:
    return Look(_COLORS[place % len(_COLORS)], width=2, is_dashed=place >= len(_COLORS))


def _values_axis(group: Sequence[_Compared], series: Sequence[Series]) -> Axis:
    return Axis(label(_metric(group[0].results)), is_wide_series(series))


def curves_apart(metric: str, x_axis: Axis, trials: Sequence[Trial], curves: Mapping[TrialId, PlottedCurve]) -> Panel:
    """Return a panel with the curves of a few trials, each in its own colour."""
    series = []
    for place, trial in enumerate(trials):
        curve, look = curves[trial.id], _look_of(place)
        kept = spread(len(curve.value), MOST_POINTS // len(trials))
        xs, ys = [curve.time[index] for index in kept], [curve.value[index] for index in kept]
        series.append(Series(f"trial {trial.id}", xs, ys, look, [trial.id] * len(kept)))
    return Panel(x_axis, Axis(label(metric), is_wide_series(series)), series, key=metric)


def lines_apart(lines: Sequence[tuple[str, Sequence[float], Sequence[float]]]) -> list[Series]:
    """Return a series for each trial, in the colours that trials have in ``curves_apart``.

    *lines* has each trial's id, x and y.
    """
    looks = [replace(_look_of(place), marker="circle", size=5) for place in range(len(lines))]
    return [joined(f"trial {line[0]}", look, [line]) for line, look in zip(lines, looks, strict=True)]


def _metric(results: Read) -> str:
    return results.experiment.objective.metrics[0]


def _better(results: Read) -> Callable[[float, float], float]:
    return min if results.experiment.objective.modes[0] == "min" else max


def _ranked_value(results: Read, trial: Trial, metric: str) -> float:
    """Return a trial's value, or NaN if it has none, was abandoned, or violates a constraint."""
    counts = not trial.is_abandoned and results.experiment.is_feasible(trial)
    return value_of(results, trial, metric) if counts else math.nan
