"""The pictures of an experiment."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np

from mqtune.core.entry_points import EXPORTERS, load_point
from mqtune.core.errors import ConfigurationError, NothingToDraw
from mqtune.core.text import counted
from mqtune.core.trial import Trial, TrialId, TrialStatus, is_number
from mqtune.results.display import ranked, short_value
from mqtune.results.plots.compared import curves_apart, lines_apart
from mqtune.results.plots.data import (
    MOST_LINES,
    MOST_POINTS,
    ParameterAxis,
    PlottedCurve,
    Read,
    chosen,
    copies_of,
    curves_of,
    is_wide,
    joined,
    parameters_of,
    spread,
    time_attr_of,
    time_label_of,
    value_of,
)
from mqtune.results.plots.levels import (
    BEST,
    CommonLevel,
    best_range,
    rungs_of,
    share_of,
)
from mqtune.results.plots.panels import (
    COMPLETED,
    FAILED,
    PAUSED,
    RUNNING,
    STOPPED,
    TEXT,
    Axis,
    BestShare,
    Look,
    Panel,
    Series,
    label,
)
from mqtune.results.plots.picture import Picture
from mqtune.results.plots.scales import heights_of, in_tiers, names_on, scale_of
from mqtune.results.plots.timeline import Bar, TimelineBar, bars, in_numbers, slot_names, slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")

_MOST_DOTS: Final = 2_000
#: Readable rows of a timeline or a lineage, a row's height and that around them, in pixels.
_MOST_ROWS: Final = 60
_ROW_PX, _AROUND_PX = 22, 90
_MOST_PANELS: Final = 12
#: Trials for importances: the fewest, and the most, for which the forest takes about 5 s.
_FEWEST, _MOST_FITTED = 20, 500
#: Trials on the worse side of this percentile are beyond the axis of slices, if there are enough trials.
_PERCENTILE: Final = 93
_ENOUGH: Final = 20
#: The axis is cut only if it would shrink to this share of its length.
_CUT: Final = 0.6
#: The width of a category's points and of its median, as shares of the distance between two categories.
_JITTER, _MEDIAN_WIDTH = 0.4, 0.56
#: A step that spreads any number of points evenly.
_GOLDEN: Final = 0.618

_LOOKS: Final[Mapping[TrialStatus, Look]] = {
    TrialStatus.EARLY_STOPPED: Look(STOPPED, marker="x", size=5, edge=1.2),
    TrialStatus.COMPLETED: Look(COMPLETED, marker="circle", size=7),
    TrialStatus.FAILED: Look(FAILED, marker="triangle-up", size=7),
    TrialStatus.PAUSED: Look(PAUSED, marker="square-open", size=7, edge=1.4),
    TrialStatus.RUNNING: Look(RUNNING, marker="diamond-open", size=8, edge=1.4),
}
#: The lines of learning curves.
_LINES: Final[Mapping[TrialStatus, Look]] = {
    TrialStatus.EARLY_STOPPED: Look(STOPPED, width=1, opacity=0.45),
    TrialStatus.COMPLETED: Look(COMPLETED, width=1.1, opacity=0.75),
    TrialStatus.FAILED: Look(FAILED, width=1, opacity=0.6),
    TrialStatus.PAUSED: Look(PAUSED, width=1.1, opacity=0.75),
    TrialStatus.RUNNING: Look(RUNNING, width=1.3),
}
_OTHER: Final = Look(STOPPED, marker="circle", size=5)
_OTHER_LINE: Final = Look(STOPPED, width=1, opacity=0.45)
_INFEASIBLE: Final = Look(STOPPED, marker="diamond", size=6)
_BEST: Final = Look(TEXT, width=2.2)
_BEST_MARK: Final = Look(TEXT, marker="best", size=13, edge=1.6)
#: Later ones are drawn over earlier ones.
_DRAWN: Final = (*_LOOKS, *(status for status in TrialStatus if status not in _LOOKS))


class _Unit(NamedTuple):
    name: str
    seconds: float


def _unit_of(span_s: float) -> _Unit:
    units = (_Unit("seconds", 1), _Unit("minutes", 60), _Unit("hours", 3_600), _Unit("days", 86_400))
    return max((unit for unit in units if unit.seconds * 3 <= max(3, span_s)), key=lambda unit: unit.seconds)


class Plots:
    """The pictures of an experiment as it is now, as data for Matplotlib or Plotly.

    Values that are NaN or infinite are left out. Of many trials and reports some are drawn, the best ones among them,
    so a picture has a few thousand points. Its note says so.

    Each method raises NothingToDraw if the experiment has no data for it, and CopyIncomplete as ``Results.reports``.
    All but ``pareto`` and ``timeline`` read all reports.

    Args:
        curves: returns the reports of each trial with a metric. The default reads the journal.

    """

    def __init__(
        self, results: Read, curves: Callable[[Read, str], Mapping[TrialId, PlottedCurve]] = curves_of
    ) -> None:
        self._results = results
        self._curves_of = curves
        self._experiment = results.experiment

    def draw(self, kind: str, **choices: object) -> Picture:
        """Return the picture of this name, such as "curves", with *choices* as arguments.

        Raises:
            ConfigurationError: the name is unknown.
            NothingToDraw: as the method of this name.
        """
        if kind not in KINDS:
            raise ConfigurationError(f"there is no plot {kind!r}; there are {', '.join(KINDS)}")
        picture: Picture = getattr(self, kind)(**choices)
        return picture

    def history(self, by: str = "time") -> Picture:
        """Return the best value so far, and each trial's best when it was reported.

        It has a panel for each metric.

        Args:
            by: "time", or "trial" for the trials' numbers in the order of their begins.
        """
        of = self._history_by_trial if by == "trial" else self._history_of
        return self._picture("best so far", list(map(of, self._experiment.objective.metrics)), self._trials())

    def _history_by_trial(self, metric: str) -> Panel:
        begun = {trial.id: float(place) for place, trial in enumerate(self._trials(), 1)}
        valued = [trial for trial in self._valued(metric) if not self._given_up(trial.id)]
        counting = [trial for trial in valued if self._experiment.is_feasible(trial)]
        x = np.asarray([begun[trial.id] for trial in counting])
        value = np.asarray([value_of(self._results, trial, metric) for trial in counting])
        dots = chosen(self._results, valued, _MOST_DOTS)
        series = self._by_status(dots, lambda t: begun[t.id], lambda t: value_of(self._results, t, metric), valued)
        if len(x):
            series.append(Series("best", *_steps(x, value, is_min=self._mode(metric) == "min"), _BEST))
        series += self._best_mark(lambda t: begun[t.id], lambda t: value_of(self._results, t, metric))
        is_log = is_wide([each for one in series for each in one.y])
        x_axis = Axis("trials, in the order in which they began")
        return Panel(x_axis, Axis(self._value_label(metric), is_log), series, key=metric)

    def _history_of(self, metric: str) -> Panel:
        curves = {
            id_: curve
            for id_, curve in self._curves(metric).items()
            if not self._given_up(id_) and self._best_place(curve.value, metric) is not None
        }
        if not curves:
            raise NothingToDraw(
                f"no trial of {self._experiment.name} has a number for {metric!r}, but those that were abandoned"
            )
        at = np.concatenate([np.frombuffer(curve.at) for curve in curves.values()])
        value = np.concatenate([np.frombuffer(curve.value) for curve in curves.values()])
        start = self._start(at.min())
        unit = _unit_of(at.max() - start)
        dots = chosen(self._results, [self._experiment.trials[id_] for id_ in curves], _MOST_DOTS)
        places = {trial.id: self._counted_place(trial, curves[trial.id].value, metric) for trial in dots}

        def x_of(trial: Trial) -> float:
            return (curves[trial.id].at[places[trial.id] or 0] - start) / unit.seconds

        def y_of(trial: Trial) -> float:
            return curves[trial.id].value[places[trial.id] or 0]

        series = self._by_status(dots, x_of, y_of, [self._experiment.trials[id_] for id_ in curves])
        if self._experiment.objective.constraints:
            at, value = self._feasible(curves, metric)
        line = []
        if len(at):
            x, y = _steps(at, value, is_min=self._mode(metric) == "min")
            line = [Series("best", [(each - start) / unit.seconds for each in x], y, _BEST)]
        best = self._experiment.best
        mark = [] if best is None or best.id not in places else self._best_mark(x_of, y_of)
        is_log = is_wide([each for one in (*series, *line) for each in one.y])
        x_axis = Axis(f"{unit.name} since the start")
        return Panel(x_axis, Axis(self._value_label(metric), is_log), [*series, *line, *mark], key=metric)

    def _best_mark(self, x: Callable[[Trial], float], y: Callable[[Trial], float]) -> list[Series]:
        """Return the mark of the best trial; an empty list without one."""
        best = self._experiment.best
        if best is None or best.id not in self._experiment.trials:
            return []
        return [Series("best", [x(best)], [y(best)], _BEST_MARK, [best.id])]

    def _feasible(
        self, curves: Mapping[TrialId, PlottedCurve], metric: str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the times and values of feasible trials' counted reports.

        It is not known whether their other reports meet the constraints.
        """
        at, value = [], []
        for id_, curve in curves.items():
            trial = self._experiment.trials[id_]
            place = self._counted_place(trial, curve.value, metric) if self._experiment.is_feasible(trial) else None
            if place is not None:
                at.append(curve.at[place])
                value.append(curve.value[place])
        return np.asarray(at), np.asarray(value)

    def _counted_place(self, trial: Trial, values: Sequence[float], metric: str) -> int | None:
        """Return the index of a trial's best value, or with constraints of its counted one."""
        if not self._experiment.objective.constraints:
            return self._best_place(values, metric)
        best = value_of(self._results, trial, metric)
        return next((place for place, value in enumerate(values) if value == best), None)

    def _best_place(self, values: Sequence[float], metric: str) -> int | None:
        if all(map(math.isnan, values)):
            return None
        return int((np.nanargmin if self._mode(metric) == "min" else np.nanargmax)(np.asarray(values)))

    def curves(self, metric: str = "", by: str = "", *, apart: bool = False) -> Picture:
        """Return the learning curve of each trial, with marks at early stops and failures.

        It has a panel for each metric. A curve goes back if its trial continued from an older checkpoint.

        Args:
            metric: a key of reports. The default is all metrics of the experiment.
            by: "time" for the seconds since the trial's first report, instead of the scheduler's time.
            apart: whether each trial has a colour and a name of its own.
        """
        panels, trials = [], self._trials()
        for name in (metric,) if metric else self._experiment.objective.metrics:
            curves = self._curves(name)
            trials = chosen(self._results, [self._experiment.trials[id_] for id_ in curves], MOST_LINES)
            if by == "time":
                curves = {trial.id: curves[trial.id].by_seconds() for trial in trials}
            panels.append((curves_apart if apart else self._curves_panel)(name, self._time_axis(by), trials, curves))
        return self._picture("learning curves", panels, trials)

    def _curves_panel(
        self, metric: str, x_axis: Axis, trials: Sequence[Trial], curves: Mapping[TrialId, PlottedCurve]
    ) -> Panel:
        most = max(2, MOST_POINTS // len(trials) // len(self._experiment.objective.metrics))
        lines = {trial.id: self._thinned(curves[trial.id], metric, most) for trial in trials}
        totals = Counter(self._experiment.trials[id_].status for id_ in curves)
        series = []
        for status in _DRAWN:
            group = [trial for trial in trials if trial.status is status and trial.id in lines]
            if not group:
                continue
            drawn = [(trial.id, *lines[trial.id]) for trial in group]
            series.append(joined(_in_words(status), _LINES.get(status, _OTHER_LINE), drawn))
            if status is TrialStatus.COMPLETED:
                series[-1] = replace(series[-1], count=totals[status])
                continue
            ends = [(trial.id, x[-1], y[-1]) for trial in group for x, y in [lines[trial.id]] if x]
            names, x, y = map(list, zip(*ends, strict=True)) if ends else ([], [], [])
            series.append(Series(_in_words(status), x, y, _LOOKS.get(status, _OTHER), names, totals[status]))
        best = self._experiment.best
        if best is not None and best.id in lines and metric in self._experiment.objective.metrics:
            x, y = lines[best.id]
            series.append(Series("best", x, y, _BEST, [best.id] * len(x)))
            if (place := self._best_place(y, metric)) is not None:
                series.append(Series("best", [x[place]], [y[place]], _BEST_MARK, [best.id]))
        is_log = is_wide([each for one in series for each in one.y])
        return Panel(x_axis, Axis(label(metric), is_log), series, key=metric)

    def _time_axis(self, by: str) -> Axis:
        """Return the axis of the scheduler's time, with lines at its rungs, or of seconds."""
        if by == "time":
            return Axis("seconds since the first report")
        ticks = [(float(rung), f"{rung:g}") for rung in rungs_of(self._results)]
        return Axis(time_label_of(self._results), ticks=ticks, has_grid=bool(ticks))

    def _thinned(self, curve: PlottedCurve, metric: str, most: int) -> tuple[list[float], list[float]]:
        """Return some points of a curve, with the first, last and best, and NaN where it goes back."""
        there = [place for place, value in enumerate(curve.value) if not math.isnan(value)]
        kept = {there[place] for place in spread(len(there), most)}
        if (best := self._best_place(curve.value, metric)) is not None:
            kept.add(best)
        x: list[float] = []
        y: list[float] = []
        for place in sorted(kept):
            if x and curve.time[place] < x[-1]:
                x.append(math.nan)
                y.append(math.nan)
            x.append(curve.time[place])
            y.append(curve.value[place])
        return x, y

    def slices(self, metric: str | None = None, at: float | None = None) -> Picture:
        """Return the value of each trial against its parameters, with a panel for each.

        Values are compared at one time of the scheduler, so trials that have not reached it are left out. The range of
        the best fifth is tinted. A panel lacks trials without its parameter, as in another entry of a choice.

        Args:
            metric: one of the experiment's. The default is its first.
            at: the scheduler's time, or infinity for each trial's best value. The default is the latest rung that 30
                trials have reached.

        Raises:
            ConfigurationError: the experiment has no such metric.
        """
        metric = self._metric(metric)
        level = self._common(metric, at)
        there = [trial for trial in self._trials() if trial.id in level.values]
        trials = chosen(self._results, there, _MOST_DOTS // 2)
        parameters = parameters_of(self._results, trials)
        if not parameters:
            raise self._nothing("slices", "its trials have no parameter that differs")
        limits = self._limits([level.values[trial.id] for trial in there], metric)
        panels = [self._slice(metric, trials, each, level.values, limits) for each in self._first(parameters)]
        more = _more(len(parameters), len(panels), "parameters")
        drawn = self._picture(f"{metric} by parameter", panels, trials, level.words, more)
        return replace(drawn, levels=level.levels)

    def _common(self, metric: str, at: float | None) -> CommonLevel:
        valued = [trial for trial in self._valued(metric) if not self._given_up(trial.id)]
        if not valued:
            raise self._no_value(metric)
        return CommonLevel(self._results, valued, self._curves_of(self._results, metric), metric, at)

    def _limits(self, values: Sequence[float], metric: str) -> tuple[float, float] | None:
        """Return the ends of the axis of slices if a few bad trials would flatten the others."""
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
        there = [trial for trial in trials if not math.isnan(place[trial.id])]
        spots = {trial.id: place[trial.id] + _jitter(number, parameter) for number, trial in enumerate(there)}
        low, high = limits or (-math.inf, math.inf)
        inside = [trial for trial in there if low <= values[trial.id] <= high]
        series = self._by_status(inside, lambda trial: spots[trial.id], lambda trial: values[trial.id])
        if beyond := [trial for trial in there if trial not in inside] if limits else []:
            is_min = self._mode(metric) == "min"
            look = Look(STOPPED, marker="caret-up" if is_min else "caret-down", size=7, edge=1.2)
            edge = [high if is_min else low] * len(beyond)
            series.append(Series("beyond the axis", [spots[t.id] for t in beyond], edge, look, [t.id for t in beyond]))
        if parameter.names:
            series += _medians(parameter, [(place[trial.id], values[trial.id]) for trial in there])
        best = self._experiment.best
        if best is not None and best in inside:
            series += self._best_mark(lambda trial: spots[trial.id], lambda trial: values[trial.id])
        ends = (-0.5, len(parameter.names) - 0.5) if parameter.names else None
        x = Axis(label(parameter.name), parameter.is_log, parameter.ticks, ends)
        y = Axis(label(metric), is_wide([values[trial.id] for trial in inside]))
        of_trials, is_min = [values[trial.id] for trial in trials], self._mode(metric) == "min"
        band = None if parameter.names else best_range(parameter, of_trials, is_min=is_min)
        share = share_of(parameter, of_trials, None, is_min=is_min)
        return Panel(x, y, series, key=parameter.name, band=band, note=_range_note(share))

    def parallel(self, *, apart: bool = False, at: float | None = None, order: Sequence[str] = ()) -> Picture:
        """Return each trial as a line across its parameters and its values, the best ones darkest.

        Each parameter has its own axis, from the least to the greatest value of any trial.

        Args:
            apart: whether each trial has a colour and a name of its own, as in ``curves``.
            at: the scheduler's time at which trials are compared, as in ``slices``. Named trials have their best values.
            order: names of parameters that come first, in this order.
        """
        metrics = self._experiment.objective.metrics
        level = self._common(metrics[0], BEST if apart else at)
        trials = [trial for trial in self._trials() if trial.id in level.values]
        every = sorted(
            parameters_of(self._results, trials),
            key=lambda each: order.index(each.name) if each.name in order else len(order),
        )
        parameters = every[:_MOST_PANELS]
        for metric in metrics:
            of = level.values.get if metric == metrics[0] else None
            values = [of(t.id, math.nan) if of else value_of(self._results, t, metric) for t in trials]
            parameters.append(ParameterAxis(metric, values, is_wide(values)))
        kept = {trial.id for trial in chosen(self._results, trials, MOST_LINES)}
        sign = 1 if self._mode(metrics[0]) == "min" else -1
        every_row = sorted((sign * level.values[t.id], number) for number, t in enumerate(trials))
        ranked_rows = [(rank, number) for rank, (_, number) in enumerate(every_row) if trials[number].id in kept]
        heights = [heights_of(each) for each in parameters]
        xs = list(map(float, range(len(parameters))))
        lines = {n: (trials[n].id, xs, [height[n] for height in heights]) for _, n in ranked_rows}
        # The first trials are drawn over the others, like the best ones.
        if apart:
            series = lines_apart([lines[n] for n in sorted(lines)])[::-1]
        else:
            series = in_tiers([*lines.values()], [rank for rank, _ in ranked_rows], len(trials))
        texts = [(float(x), *text) for x, each in enumerate(parameters) for text in names_on(each)]
        ticks = [(float(x), label(each.name)) for x, each in enumerate(parameters)]
        x = Axis("", ticks=ticks, ends=(-0.2, len(parameters) - 0.4), has_grid=True)
        y = Axis("share of the range", ends=(-0.05, 1.05), ticks=[(0, "low"), (1, "high")])
        panel = Panel(x, y, series[::-1], texts=texts)
        more = _more(len(every), len(parameters) - len(metrics), "parameters")
        named = "" if apart else level.words
        drawn = self._picture(
            "parallel coordinates", [panel], [trials[number] for _, number in ranked_rows], named, more
        )
        return replace(drawn, scales=list(map(scale_of, parameters)), levels=None if apart else level.levels)

    def importances(self, metric: str | None = None, at: float | None = None) -> Picture:
        """Return each parameter's share of the differences between trials, by fANOVA and Optuna.

        After Hutter, Hoos and Leyton-Brown, 2014. Values are compared at one time of the scheduler, as in ``slices``. A
        missing number is replaced by the median of the others'.

        Args:
            metric: one of the experiment's. The default is its first.
            at: the scheduler's time, as in ``slices``.

        Raises:
            ConfigurationError: Optuna or scikit-learn is not installed, or the experiment has no such metric.
        """
        metric = self._metric(metric)
        level = self._common(metric, at)
        valued = [trial for trial in self._trials() if trial.id in level.values]
        # Evenly, as the best ones alone would hide the causes of bad results.
        trials = [valued[place] for place in spread(len(valued), _MOST_FITTED)]
        parameters = parameters_of(self._results, trials)
        if len(trials) < _FEWEST:
            where = f" {level.words}".replace(" at each trial's best", "")
            raise self._nothing("importances", f"it needs {_FEWEST} trials{where}, and there are {len(trials)}")
        if not parameters:
            raise self._nothing("importances", "its trials have no parameter that differs")
        values = [level.values[trial.id] for trial in trials]
        if len(set(values)) == 1:
            raise self._nothing("importances", f"all values of {metric!r} are the same")
        # At each trial's best, lengths explain most of the differences. The picture is about parameters.
        fitted = (
            [*parameters, *self._lengths(trials)]
            if level.levels is None or level.levels.shown.time == BEST
            else parameters
        )
        shares = load_point(EXPORTERS, "optuna").importances(fitted, values)
        explained = sum(shares[: len(parameters)]) or 1.0
        is_min = self._mode(metric) == "min"
        found = [
            share_of(each, values, share / explained, is_min=is_min)
            for share, each in zip(shares, parameters, strict=False)
        ]
        found.sort(key=lambda each: each.share or 0.0, reverse=True)
        panel = _bar_chart(
            f"share of the variance of {label(metric)}", {each.name: each.share or 0.0 for each in found}
        )
        drawn = self._picture(f"importance for {metric}", [panel], trials, level.words, rows=len(parameters))
        return replace(drawn, levels=level.levels, shares=found)

    def _lengths(self, trials: Sequence[Trial]) -> list[ParameterAxis]:
        """Return the trials' lengths as a parameter, if they differ."""
        time_attr = time_attr_of(self._results)
        lengths = [float(_number(trial.last_metrics.get(time_attr), trial.reports)) for trial in trials]
        return [ParameterAxis("", lengths)] if len(set(lengths)) > 1 else []

    def ranges(self, metric: str | None = None, at: float | None = None) -> Picture:
        """Return the ranges of the best trials, as ``importances`` does, without shares."""
        metric = self._metric(metric)
        level = self._common(metric, at)
        trials = [trial for trial in self._trials() if trial.id in level.values]
        values, is_min = [level.values[trial.id] for trial in trials], self._mode(metric) == "min"
        found = [share_of(each, values, None, is_min=is_min) for each in parameters_of(self._results, trials)]
        return replace(self._picture("best ranges", [], trials, level.words), levels=level.levels, shares=found)

    def pareto(self) -> Picture:
        """Return the trials by two metrics, with the Pareto front, and a panel for each pair."""
        metrics = self._experiment.objective.metrics
        if len(metrics) == 1:
            raise self._nothing("pareto", f"it has one metric, {metrics[0]!r}" if metrics[0] else "it has no metric")
        trials = chosen(self._results, [t for t in self._valued(metrics[0]) if t.point], _MOST_DOTS)
        pairs = [(x, y) for place, x in enumerate(metrics) for y in metrics[place + 1 :]]
        panels = [self._pair(x, y, trials) for x, y in self._first(pairs)]
        return self._picture("Pareto front", panels, trials, _more(len(pairs), len(panels), "pairs"))

    def _pair(self, x: str, y: str, trials: Sequence[Trial]) -> Panel:
        front = sorted(self._experiment.pareto_front, key=lambda trial: value_of(self._results, trial, x))
        ahead = {trial.id for trial in front}
        points = {
            trial.id: (value_of(self._results, trial, x), value_of(self._results, trial, y))
            for trial in (*trials, *front)
        }
        rest = [trial for trial in trials if trial.id not in ahead]
        series = self._by_status(rest, lambda trial: points[trial.id][0], lambda trial: points[trial.id][1])
        xs, ys = [points[trial.id][0] for trial in front], [points[trial.id][1] for trial in front]
        # With three metrics a line between two points would suggest values that are not known.
        width = 1 if len(self._experiment.objective.metrics) == 2 else 0  # noqa: PLR2004 - a pair
        look = Look(TEXT, width=width, marker="star", size=11, is_dashed=True)
        series.append(Series("Pareto front", xs, ys, look, [trial.id for trial in front]))
        return Panel(
            Axis(self._value_label(x), is_wide([p[0] for p in points.values()])),
            Axis(self._value_label(y), is_wide([p[1] for p in points.values()])),
            series,
        )

    def timeline(self) -> Picture:
        """Return each attempt's time on its worker, and its end, with a row for each slot.

        The journal has no slots, so a row is any place for attempts side by side.
        """
        runs = [
            TimelineBar(trial.id, attempt, attempt.started_at, attempt.ended_at or math.inf)
            for trial in self._trials()
            for attempt in list(trial.attempts)
            if attempt.started_at is not None
        ]
        if not runs:
            raise self._nothing("timeline", "no attempt has begun")
        runs.sort(key=lambda run: run.begin)
        places = slots(runs)
        shown = sorted(set(places), key=in_numbers)[:_MOST_ROWS]
        rows = {slot: float(row) for row, slot in enumerate(shown)}
        start, now = self._start(runs[0].begin), max(self._now(), runs[-1].begin)
        unit = _unit_of(now - start)
        those = [
            Bar(
                run.trial,
                run.attempt.end,
                rows[slot],
                (run.begin - start) / unit.seconds,
                (min(run.end, now) - start) / unit.seconds,
            )
            for slot, run in zip(places, runs, strict=True)
            if slot in rows
        ]
        panel = Panel(
            Axis(f"{unit.name} since the start"), _rows_axis(slot_names(rows), downwards=True), list(bars(those))
        )
        drawn = _more(len(set(places)), len(rows), "slots") or f"attempts: {len(runs):,}, slots: {len(rows)}"
        return self._picture("timeline", [panel], self._trials(), drawn, rows=len(rows))

    def rungs(self) -> Picture:
        """Return the metric of each trial at each rung, and whether it continued from there.

        For successive halving. A trial enters a rung with its first report whose time has reached it. With brackets
        that includes rungs at which its own bracket did not judge it.
        """
        metric = self._metric(None)
        levels = self._levels()
        curves = {id_: c for id_, c in self._curves(metric).items() if any(not math.isnan(v) for v in c.value)}
        entries = {id_: _entries(curve, levels) for id_, curve in curves.items()}
        drawn = chosen(self._results, [self._experiment.trials[id_] for id_ in entries], MOST_LINES)
        paths = [
            (t.id, [float(rung) for rung, _ in entries[t.id]], [value for _, value in entries[t.id]]) for t in drawn
        ]
        series = [joined("", Look(STOPPED, width=1, opacity=0.35), paths)]
        ends: dict[str, list[tuple[str, float, float]]] = {name: [] for name in _OUTCOMES}
        for id_, x, y in paths:
            for place, (rung, value) in enumerate(zip(x, y, strict=True)):
                went_on = place < len(x) - 1 or curves[id_].time[-1] > levels[int(rung)]
                ends[self._outcome(id_, went_on=went_on)].append((id_, rung, value))
        for name, points in ends.items():
            if points:
                ids, x, y = map(list, zip(*points, strict=True))
                series.append(Series(name, x, y, _OUTCOMES[name], ids, len(ids)))
        came = Counter(rung for each in entries.values() for rung, _ in each)
        ticks = [(float(rung), f"{level:g}\n{counted(came[rung], 'trial')}") for rung, level in enumerate(levels)]
        is_log = is_wide([value for each in entries.values() for _, value in each])
        x_axis = Axis(time_label_of(self._results), ticks=ticks, ends=(-0.5, len(levels) - 0.5), has_grid=True)
        return self._picture("rungs", [Panel(x_axis, Axis(label(metric), is_log), series)], drawn)

    def _outcome(self, id_: TrialId, *, went_on: bool) -> str:
        if went_on:
            return "went on"
        status = self._experiment.trials[id_].status
        return _STAYED.get(status, "runs on")

    def _levels(self) -> list[float]:
        if rungs := rungs_of(self._results):
            return rungs
        scheduler = self._results.definition["scheduler"]["scheduler"]
        raise self._nothing("rungs", f"its scheduler is {scheduler!r}, which has no rungs")

    def lineage(self) -> Picture:
        """Return the copies between trials, by the scheduler's time, with a row for each trial.

        For population-based training. The best trial's lineage is drawn thick (``Results.policy``).
        """
        trials = [trial for trial in self._trials() if trial.attempts]
        if not any(attempt.source for trial in trials for attempt in trial.attempts):
            raise self._nothing("lineage", "no trial has gone on from another's checkpoint")
        metric = self._experiment.objective.metrics[0]
        curves = self._curves(metric)
        drawn = chosen(self._results, [trial for trial in trials if trial.id in curves], _MOST_ROWS)
        rows = {trial.id: float(place) for place, trial in enumerate(drawn)}
        ends = {id_: max(curves[id_].time) for id_ in rows}
        series = [
            joined(
                "trial",
                Look(COMPLETED, width=2, opacity=0.45),
                [(id_, [0.0, ends[id_]], [row, row]) for id_, row in rows.items()],
            )
        ]
        copies = [
            (f"{trial} from {source}", time, rows[source], rows[trial])
            for trial, source, time in copies_of(self._results)
            if trial in rows and source in rows
        ]
        lines = [(name, [time, time], [begin, end]) for name, time, begin, end in copies]
        series.append(joined("", Look(STOPPED, width=1), lines))
        series.append(
            Series(
                "copied another trial",
                [time for _, time, _, _ in copies],
                [end for *_, end in copies],
                Look(RUNNING, marker="diamond", size=7),
                [name for name, *_ in copies],
            )
        )
        best = next(iter(ranked(self._experiment)))
        if best.id in rows:
            series.append(self._descent(best, rows, ends[best.id]))
        names = [self._row_label(trial, metric) for trial in drawn]
        x = Axis(time_label_of(self._results), ends=(0, max(ends.values()) * 1.03))
        panel = Panel(x, _rows_axis(names), series)
        return self._picture("lineage", [panel], drawn, f"{len(copies)} copies", rows=len(rows))

    def _descent(self, best: Trial, rows: Mapping[TrialId, float], end: float) -> Series:
        steps = self._results.policy(best.id)
        x: list[float] = []
        y: list[float] = []
        for step, until in zip(steps, [*(step.time for step in steps[1:]), end], strict=True):
            if step.trial in rows:
                x += [step.time, until]
                y += [rows[step.trial]] * 2
        return Series(f"how trial {best.id}, the best, came about", x, y, Look(TEXT, width=3))

    def _row_label(self, trial: Trial, metric: str) -> str:
        return f"{trial.id} ({label(metric)} {short_value(value_of(self._results, trial, metric))})"

    def _trials(self) -> list[Trial]:
        return list(self._experiment.trials.values())

    def _curves(self, metric: str) -> Mapping[TrialId, PlottedCurve]:
        curves = self._curves_of(self._results, metric)
        if not any(not math.isnan(value) for curve in curves.values() for value in curve.value):
            raise self._no_value(metric)
        return curves

    def _valued(self, metric: str) -> list[Trial]:
        found = [trial for trial in self._trials() if not math.isnan(value_of(self._results, trial, metric))]
        if not found:
            raise self._no_value(metric)
        return found

    def _no_value(self, metric: str) -> NothingToDraw:
        if not metric:
            return self._nothing("", "it has no metric; results.dataframe('reports') has all that was reported")
        why = f"none of its {len(self._experiment.trials)} trials has a finite value of {metric!r}"
        return self._nothing("", why if self._experiment.trials else "it has no trials yet")

    def _nothing(self, kind: str, why: str) -> NothingToDraw:
        return NothingToDraw(
            f"experiment {self._experiment.name!r} has nothing to draw{f' for {kind}' * bool(kind)}: {why}"
        )

    def _metric(self, metric: str | None) -> str:
        objective = self._experiment.objective
        if metric is not None and metric not in objective.metrics:
            raise ConfigurationError(f"metric={metric!r}: experiment {self._experiment.name!r} optimises {objective}")
        return objective.metrics[0] if metric is None else metric

    def _mode(self, metric: str) -> str:
        return self._experiment.objective.mode_of(metric) or "min"

    def _value_label(self, metric: str) -> str:
        return f"{label(metric)} ({'lower' if self._mode(metric) == 'min' else 'higher'} is better)"

    def _given_up(self, id_: TrialId) -> bool:
        return self._experiment.trials[id_].is_abandoned

    def _first(self, things: Sequence[T]) -> Sequence[T]:
        return things[:_MOST_PANELS]

    def _start(self, first: float) -> float:
        return min(float(first), self._experiment.created_at or math.inf)

    def _now(self) -> float:
        """Return the newest time in the journal, up to which unfinished attempts are drawn."""
        times = [trial.history[-1].at for trial in self._trials() if trial.history]
        return max([0.0, *times, *(trial.last_timestamp for trial in self._trials())])

    def _by_status(
        self,
        trials: Sequence[Trial],
        x: Callable[[Trial], float],
        y: Callable[[Trial], float],
        every: Sequence[Trial] = (),
    ) -> list[Series]:
        """Return points by status. *every* has the trials for the legend's counts.

        The default are the drawn ones.
        """
        totals = Counter(trial.status for trial in every or trials)
        found = []
        if violating := [trial for trial in trials if not self._experiment.is_feasible(trial)]:
            ids = [trial.id for trial in violating]
            found.append(Series("infeasible", list(map(x, violating)), list(map(y, violating)), _INFEASIBLE, ids))
            trials = [trial for trial in trials if self._experiment.is_feasible(trial)]
            totals = Counter(trial.status for trial in trials)
        for status in _DRAWN:
            if group := [trial for trial in trials if trial.status is status]:
                ids = [trial.id for trial in group]
                look = _LOOKS.get(status, _OTHER)
                xs, ys = list(map(x, group)), list(map(y, group))
                found.append(Series(_in_words(status), xs, ys, look, ids, totals[status]))
        return found

    def _picture(
        self, title: str, panels: Sequence[Panel], drawn: Sequence[Trial], *notes: str, rows: int | None = None
    ) -> Picture:
        total, counts = len(self._experiment.trials), Counter(trial.status for trial in drawn)
        statuses = ", ".join(f"{counts[status]:,} {_in_words(status)}" for status in TrialStatus if counts[status])
        number = f"{len(drawn):,} of {total:,} trials" if len(drawn) < total else f"{total:,} trial{'s' * (total != 1)}"
        note = " · ".join(filter(None, [f"{number} ({statuses})", *notes]))
        height = None if rows is None else max(180, _AROUND_PX + _ROW_PX * rows)
        remarks = [*([number] if len(drawn) < total else []), *filter(None, notes)]
        return Picture(f"{label(self._experiment.name)}: {label(title)}", note, panels, height, remarks=remarks)


KINDS: Final = ("history", "curves", "parallel", "slices", "importances", "timeline", "rungs", "lineage", "pareto")

_OUTCOMES: Final[Mapping[str, Look]] = {
    "went on": Look(COMPLETED, marker="circle", size=5),
    "stopped there": _LOOKS[TrialStatus.EARLY_STOPPED],
    "waits there": _LOOKS[TrialStatus.PAUSED],
    "completed": Look(COMPLETED, marker="diamond", size=9),
    "failed": _LOOKS[TrialStatus.FAILED],
    "runs on": _LOOKS[TrialStatus.RUNNING],
}
_STAYED: Final[Mapping[TrialStatus, str]] = {
    TrialStatus.EARLY_STOPPED: "stopped there",
    TrialStatus.ABANDONED: "stopped there",
    TrialStatus.PAUSED: "waits there",
    TrialStatus.COMPLETED: "completed",
    TrialStatus.FAILED: "failed",
}


_WORDS: Final[Mapping[TrialStatus, str]] = {TrialStatus.EARLY_STOPPED: "stopped early", TrialStatus.QUEUED: "queued"}


def _in_words(status: TrialStatus) -> str:
    return _WORDS.get(status, status.value)


def _jitter(number: int, parameter: ParameterAxis) -> float:
    """Return a point's fixed distance from its category, which keeps points apart."""
    return (number * _GOLDEN % 1 - 0.5) * _JITTER if parameter.names else 0.0


def _medians(parameter: ParameterAxis, points: Sequence[tuple[float, float]]) -> list[Series]:
    """Return the median of each category as a line."""
    lines = []
    for place, name in enumerate(parameter.names):
        if values := [value for spot, value in points if spot == place]:
            middle, half = float(np.median(values)), _MEDIAN_WIDTH / 2
            lines.append((name, [place - half, place + half], [middle, middle]))
    return [joined("median", Look(TEXT, width=2), lines)] if lines else []


def _range_note(share: BestShare) -> str:
    edge = ", at the edge of the range" if share.is_at_edge else ""
    return f"best 20 %: {share.best}{edge}" if share.best else ""


def _more(total: int, drawn: int, what: str) -> str:
    return f"{drawn} of {total:,} {what}" if drawn < total else ""


def _number(value: object, otherwise: float) -> float:
    return value if is_number(value) and math.isfinite(value) else otherwise


def _steps(at: NDArray[np.float64], value: NDArray[np.float64], *, is_min: bool) -> tuple[list[float], list[float]]:
    """Return the corners of the best value so far, up to the last report."""
    there = ~np.isnan(value)
    order = np.argsort(at[there], kind="stable")
    times, values = at[there][order], value[there][order]
    best = (np.minimum if is_min else np.maximum).accumulate(values)
    changes = np.flatnonzero(np.diff(best, prepend=math.nan))
    changes = changes[spread(len(changes), _MOST_DOTS)]
    x = np.append(np.repeat(times[changes], 2)[1:], at.max())
    return list(x), list(np.repeat(best[changes], 2))


def _bar_chart(title: str, shares: Mapping[str, float]) -> Panel:
    names = sorted(shares, key=lambda name: shares[name])
    rows, sizes = list(map(float, range(len(names)))), [shares[name] for name in names]
    texts = [f"{size:.0%}" for size in sizes]
    bars = Series("", sizes, rows, Look(COMPLETED, is_bar=True), texts)
    x = Axis(title, ends=(0, max(0.1, sizes[-1] * 1.1)))
    return Panel(x, _rows_axis(names), [bars], texts=list(zip(sizes, rows, texts, strict=True)))


def _rows_axis(names: Sequence[str], *, downwards: bool = False) -> Axis:
    ends = (len(names) - 0.4, -0.6) if downwards else (-0.6, len(names) - 0.4)
    return Axis("", ticks=[(float(row), label(name)) for row, name in enumerate(names)], ends=ends)


def _entries(curve: PlottedCurve, levels: Sequence[float]) -> list[tuple[int, float]]:
    """Return the rungs of a trial with its values. A report that skips rungs enters the highest."""
    found: list[tuple[int, float]] = []
    for time, value in zip(curve.time, curve.value, strict=True):
        rung = bisect_right(levels, time) - 1
        if not math.isnan(value) and rung > (found[-1][0] if found else -1):
            found.append((rung, value))
    return found
