"""The pictures of an experiment."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from mqtune.core.errors import ConfigurationError, NothingToDraw
from mqtune.core.text import counted
from mqtune.core.trial import Trial, TrialId, TrialStatus
from mqtune.results.display import ranked, short_value
from mqtune.results.plots.base import (
    BEST_MARK,
    DRAWN,
    LOOKS,
    MOST_DOTS,
    MOST_PANELS,
    OTHER,
    cut_note,
    in_words,
    rows_axis,
)
from mqtune.results.plots.best_line import Points, candidates, steps
from mqtune.results.plots.compared import curves_apart
from mqtune.results.plots.data import (
    MOST_LINES,
    MOST_POINTS,
    PlottedCurve,
    best_index,
    chosen,
    copies_of,
    is_wide,
    is_wide_series,
    joined,
    spread,
    time_label_of,
    value_of,
)
from mqtune.results.plots.levels import rungs_of
from mqtune.results.plots.panels import (
    COMPLETED,
    FAILED,
    PAUSED,
    RUNNING,
    STOPPED,
    TEXT,
    Axis,
    Look,
    Panel,
    Series,
    label,
)
from mqtune.results.plots.parameters import ParameterPlots
from mqtune.results.plots.picture import Picture
from mqtune.results.plots.timeline import Bar, TimelineBar, bars, in_numbers, slot_names, slots

if TYPE_CHECKING:
    pass

#: The most rows of a timeline or a lineage that are readable.
_MOST_ROWS: Final = 60
#: The looks of learning curves.
_LINES: Final[Mapping[TrialStatus, Look]] = {
    TrialStatus.EARLY_STOPPED: Look(STOPPED, width=1, opacity=0.45),
    TrialStatus.COMPLETED: Look(COMPLETED, width=1.1, opacity=0.75),
    TrialStatus.FAILED: Look(FAILED, width=1, opacity=0.6),
    TrialStatus.PAUSED: Look(PAUSED, width=1.1, opacity=0.75),
    TrialStatus.RUNNING: Look(RUNNING, width=1.3),
}
_OTHER_LINE: Final = Look(STOPPED, width=1, opacity=0.45)
_BEST: Final = Look(TEXT, width=2.2)


class _Unit(NamedTuple):
    name: str
    seconds: float


class Plots(ParameterPlots):
    """The pictures of an experiment as it is now, as data for Matplotlib or Plotly.

    Values that are NaN or infinite are left out. If there are too many trials or reports, only some are drawn, with the
    best ones among them, so that a picture has a few thousand points. The picture's note says so.

    Each method raises NothingToDraw if the experiment has no data for it, and CopyIncomplete as ``Results.reports``.
    All but ``pareto`` and ``timeline`` read all reports.

    Args:
        curves: returns each trial's curve of a metric, given the results and the metric. The default reads the journal.
    """

    def draw(self, kind: str, **choices: object) -> Picture:
        """Return the picture of this name, such as "curves", with *choices* as arguments.

        Raises:
            ConfigurationError: the name is unknown.
            NothingToDraw: the experiment has no data for the picture.
        """
        if kind not in KINDS:
            raise ConfigurationError(f"there is no plot {kind!r}; there are {', '.join(KINDS)}")
        picture: Picture = getattr(self, kind)(**choices)
        return picture

    def history(self, by: str = "time") -> Picture:
        """Return the best value so far, and each trial's best value, with a panel for each metric.

        Args:
            by: the horizontal axis: "time" when values were reported, or "trial" for the trials in the order in which
                they began.
        """
        of = self._history_by_trial if by == "trial" else self._history_of
        return self._picture("best so far", list(map(of, self._experiment.objective.metrics)), self._trials())

    def _history_by_trial(self, metric: str) -> Panel:
        begun = {trial.id: float(place) for place, trial in enumerate(self._trials(), 1)}
        valued = self._valued_and_kept(metric)
        counting = [trial for trial in valued if self._experiment.is_feasible(trial)]
        x = np.asarray([begun[trial.id] for trial in counting])
        value = np.asarray([value_of(self._results, trial, metric) for trial in counting])
        dots = chosen(self._results, valued, MOST_DOTS)
        series = self._by_status(dots, lambda t: begun[t.id], lambda t: value_of(self._results, t, metric), valued)
        if len(x):
            is_min = self._mode(metric) == "min"
            line = steps(Points(x, value), is_min=is_min, until=float(x.max()), most=MOST_DOTS)
            series.append(Series("best", *line, _BEST))
        series += self._best_mark(lambda t: begun[t.id], lambda t: value_of(self._results, t, metric))
        is_log = is_wide_series(series)
        x_axis = Axis("trials, in the order in which they began")
        return Panel(x_axis, Axis(self._value_label(metric), is_log), series, key=metric)

    def _history_of(self, metric: str) -> Panel:
        every_curve, every_trial = self._curves(metric), self._experiment.trials
        trials = [trial for id_ in every_curve if not (trial := every_trial[id_]).is_abandoned]
        bests = self._bests_of(trials, every_curve, metric)
        trials = [trial for trial in trials if trial.id in bests]
        curves = {trial.id: every_curve[trial.id] for trial in trials}
        if not curves:
            raise NothingToDraw(
                f"experiment {self._experiment.name!r}: only abandoned trials have a number for {metric!r}"
            )
        until = max([curve.at[-1] for curve in curves.values()])
        start = self._start(min([curve.at[0] for curve in curves.values()]))
        unit = _unit_of(until - start)
        dots = chosen(self._results, trials, MOST_DOTS)
        places = {trial.id: _place_of(bests[trial.id], curves[trial.id].value) or 0 for trial in dots}

        def x_of(trial: Trial) -> float:
            return (curves[trial.id].at[places[trial.id]] - start) / unit.seconds

        def y_of(trial: Trial) -> float:
            return curves[trial.id].value[places[trial.id]]

        series = self._by_status(dots, x_of, y_of, trials)
        is_min = self._mode(metric) == "min"
        if self._experiment.objective.constraints:
            points = self._feasible(trials, curves, bests)
        else:
            points = candidates([*curves.values()], [*bests.values()], is_min=is_min)
        line = []
        if len(points.at):
            times, values = steps(points, is_min=is_min, until=until, most=MOST_DOTS)
            line = [Series("best", [(time - start) / unit.seconds for time in times], values, _BEST)]
        best = self._experiment.best
        mark = [] if best is None or best.id not in places else self._best_mark(x_of, y_of)
        is_log = is_wide_series([*series, *line])
        x_axis = Axis(f"{unit.name} since the start")
        return Panel(x_axis, Axis(self._value_label(metric), is_log), [*series, *line, *mark], key=metric)

    def _bests_of(
        self, trials: Sequence[Trial], curves: Mapping[TrialId, PlottedCurve], metric: str
    ) -> dict[TrialId, float]:
        """Return the value by which each trial is ranked, for trials whose curve has a number.

        It is the best value, or with constraints the best one that meets them.
        """
        has_constraints, is_single = bool(self._experiment.objective.constraints), self._experiment.objective.is_single
        bests = {}
        for trial in trials:
            best, values = trial.best_value, curves[trial.id].value
            if has_constraints:
                best = value_of(self._results, trial, metric)
            elif not is_single or not math.isfinite(best):
                # Otherwise the best value is known. Searching all reports would take long.
                place = self._best_index(values, metric)
                best = math.nan if place is None else values[place]
            if _has_value(values):
                bests[trial.id] = float(best)
        return bests

    def _feasible(
        self, trials: Sequence[Trial], curves: Mapping[TrialId, PlottedCurve], bests: Mapping[TrialId, float]
    ) -> Points:
        """Return the reports by which feasible trials are ranked.

        It is not known whether their other reports meet the constraints.
        """
        at, value = [], []
        for trial in filter(self._experiment.is_feasible, trials):
            curve = curves[trial.id]
            if (place := _place_of(bests[trial.id], curve.value)) is not None:
                at.append(curve.at[place])
                value.append(curve.value[place])
        return Points(np.asarray(at), np.asarray(value))

    def _best_index(self, values: Sequence[float], metric: str) -> int | None:
        return best_index(values, is_min=self._mode(metric) == "min")

    def curves(self, metric: str = "", by: str = "", *, apart: bool = False) -> Picture:
        """Return the learning curve of each trial, with marks at early stops and failures.

        Each metric has a panel. A curve jumps back where its trial continued from an older checkpoint.

        Args:
            metric: any key of reports. The default is all metrics of the experiment.
            by: "time" for the seconds since the trial's first report, instead of the scheduler's time.
            apart: whether each trial has a colour and a name of its own.
        """
        panels, trials = [], self._trials()
        for name in (metric,) if metric else self._experiment.objective.metrics:
            every_curve = self._curves(name)
            reported = [self._experiment.trials[id_] for id_ in every_curve]
            trials = chosen(self._results, reported, MOST_LINES)
            curves = {trial.id: every_curve[trial.id].copy() for trial in trials}
            if by == "time":
                curves = {id_: curve.by_seconds() for id_, curve in curves.items()}
            axis = self._time_axis(by)
            panels.append(
                curves_apart(name, axis, trials, curves)
                if apart
                else self._curves_panel(name, axis, trials, curves, Counter(trial.status for trial in reported))
            )
        return self._picture("learning curves", panels, trials)

    def _curves_panel(
        self,
        metric: str,
        x_axis: Axis,
        trials: Sequence[Trial],
        curves: Mapping[TrialId, PlottedCurve],
        totals: Mapping[TrialStatus, int],
    ) -> Panel:
        """Return a panel with the curves of *trials*. The legend shows *totals*, the numbers of all trials."""
        most = max(2, MOST_POINTS // len(trials) // len(self._experiment.objective.metrics))
        lines = {trial.id: self._thinned(curves[trial.id], metric, most) for trial in trials}
        series = []
        for status in DRAWN:
            group = [trial for trial in trials if trial.status is status and trial.id in lines]
            if not group:
                continue
            drawn = [(trial.id, *lines[trial.id]) for trial in group]
            series.append(joined(in_words(status), _LINES.get(status, _OTHER_LINE), drawn))
            if status is TrialStatus.COMPLETED:
                series[-1] = replace(series[-1], count=totals[status])
                continue
            ends = [(trial.id, x[-1], y[-1]) for trial in group for x, y in [lines[trial.id]] if x]
            names, x, y = map(list, zip(*ends, strict=True)) if ends else ([], [], [])
            series.append(Series(in_words(status), x, y, LOOKS.get(status, OTHER), names, totals[status]))
        best = self._experiment.best
        if best is not None and best.id in lines and metric in self._experiment.objective.metrics:
            x, y = lines[best.id]
            series.append(Series("best", x, y, _BEST, [best.id] * len(x)))
            if (place := self._best_index(y, metric)) is not None:
                series.append(Series("best", [x[place]], [y[place]], BEST_MARK, [best.id]))
        is_log = is_wide_series(series)
        return Panel(x_axis, Axis(label(metric), is_log), series, key=metric)

    def _time_axis(self, by: str) -> Axis:
        """Return the axis of seconds if *by* is "time", else of the scheduler's time with its rungs."""
        if by == "time":
            return Axis("seconds since the first report")
        ticks = [(float(rung), f"{rung:g}") for rung in rungs_of(self._results)]
        return Axis(time_label_of(self._results), ticks=ticks, has_grid=bool(ticks))

    def _thinned(self, curve: PlottedCurve, metric: str, most: int) -> tuple[list[float], list[float]]:
        """Return x and y of *most* points of a curve, and the best one. NaN is where it jumps back."""
        numbers = [place for place, value in enumerate(curve.value) if not math.isnan(value)]
        kept = {numbers[place] for place in spread(len(numbers), most)}
        if (best := self._best_index(curve.value, metric)) is not None:
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

    def pareto(self) -> Picture:
        """Return the trials and the Pareto front, with a panel for each pair of metrics."""
        metrics = self._experiment.objective.metrics
        if len(metrics) == 1:
            raise self._nothing("pareto", f"it has one metric, {metrics[0]!r}" if metrics[0] else "it has no metric")
        trials = chosen(self._results, [t for t in self._valued(metrics[0]) if t.point], MOST_DOTS)
        pairs = [(x, y) for place, x in enumerate(metrics) for y in metrics[place + 1 :]]
        panels = [self._pair(x, y, trials) for x, y in pairs[:MOST_PANELS]]
        return self._picture("Pareto front", panels, trials, cut_note(len(pairs), len(panels), "pairs"))

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
        """Return each attempt as a bar over time, coloured by its end, with a row for each slot.

        The journal does not record slots. An attempt is drawn in the first free row of its worker.
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
            Axis(f"{unit.name} since the start"), rows_axis(slot_names(rows), downwards=True), list(bars(those))
        )
        drawn = cut_note(len(set(places)), len(rows), "slots") or f"attempts: {len(runs):,}, slots: {len(rows)}"
        return self._picture("timeline", [panel], self._trials(), drawn, rows=len(rows))

    def rungs(self) -> Picture:
        """Return the metric of each trial at each rung of successive halving, and what it did there.

        A trial enters a rung with its first report whose time has reached the rung. With brackets, this includes rungs
        of other brackets, at which the trial was not judged.
        """
        metric = self._metric(None)
        levels = self._levels()
        curves = {id_: curve for id_, curve in self._curves(metric).items() if _has_value(curve.value)}
        entries = {id_: _entries(curve, levels) for id_, curve in curves.items()}
        drawn = chosen(self._results, [self._experiment.trials[id_] for id_ in entries], MOST_LINES)
        paths = [
            (t.id, [float(rung) for rung, _ in entries[t.id]], [value for _, value in entries[t.id]]) for t in drawn
        ]
        series = [joined("", Look(STOPPED, width=1, opacity=0.35), paths)]
        ends: dict[str, list[tuple[str, float, float]]] = {name: [] for name in _OUTCOMES}
        for id_, x, y in paths:
            for place, (rung, value) in enumerate(zip(x, y, strict=True)):
                continued = place < len(x) - 1 or curves[id_].time[-1] > levels[int(rung)]
                ends[self._outcome(id_, continued=continued)].append((id_, rung, value))
        for name, points in ends.items():
            if points:
                ids, x, y = map(list, zip(*points, strict=True))
                series.append(Series(name, x, y, _OUTCOMES[name], ids, len(ids)))
        counts = Counter(rung for entered in entries.values() for rung, _ in entered)
        ticks = [(float(rung), f"{level:g}\n{counted(counts[rung], 'trial')}") for rung, level in enumerate(levels)]
        is_log = is_wide([value for entered in entries.values() for _, value in entered])
        x_axis = Axis(time_label_of(self._results), ticks=ticks, ends=(-0.5, len(levels) - 0.5), has_grid=True)
        return self._picture("rungs", [Panel(x_axis, Axis(label(metric), is_log), series)], drawn)

    def _outcome(self, id_: TrialId, *, continued: bool) -> str:
        if continued:
            return "continued"
        status = self._experiment.trials[id_].status
        return _STAYED.get(status, "still running")

    def _levels(self) -> list[float]:
        if rungs := rungs_of(self._results):
            return rungs
        scheduler = self._results.definition["scheduler"]["scheduler"]
        raise self._nothing("rungs", f"its scheduler is {scheduler!r}, which has no rungs")

    def lineage(self) -> Picture:
        """Return a row for each trial over the scheduler's time, with lines for copied checkpoints.

        For population-based training. The trials and times from which the best trial came are drawn thick.
        """
        trials = [trial for trial in self._trials() if trial.attempts]
        if not any(attempt.source for trial in trials for attempt in trial.attempts):
            raise self._nothing("lineage", "no trial has continued from another's checkpoint")
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
        panel = Panel(x, rows_axis(names), series)
        return self._picture("lineage", [panel], drawn, f"{len(copies)} copies", rows=len(rows))

    def _descent(self, best: Trial, rows: Mapping[TrialId, float], end: float) -> Series:
        """Return a line along the rows of the trials from which the best one came, up to *end*."""
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

    def _start(self, first: float) -> float:
        return min(float(first), self._experiment.created_at or math.inf)

    def _now(self) -> float:
        """Return the newest time in the journal. Unfinished attempts are drawn up to it."""
        times = [trial.history[-1].at for trial in self._trials() if trial.history]
        return max([0.0, *times, *(trial.last_timestamp for trial in self._trials())])


KINDS: Final = ("history", "curves", "parallel", "slices", "importances", "timeline", "rungs", "lineage", "pareto")

_OUTCOMES: Final[Mapping[str, Look]] = {
    "continued": Look(COMPLETED, marker="circle", size=5),
    "stopped there": LOOKS[TrialStatus.EARLY_STOPPED],
    "paused there": LOOKS[TrialStatus.PAUSED],
    "completed": Look(COMPLETED, marker="diamond", size=9),
    "failed": LOOKS[TrialStatus.FAILED],
    "still running": LOOKS[TrialStatus.RUNNING],
}
_STAYED: Final[Mapping[TrialStatus, str]] = {
    TrialStatus.EARLY_STOPPED: "stopped there",
    TrialStatus.ABANDONED: "stopped there",
    TrialStatus.PAUSED: "paused there",
    TrialStatus.COMPLETED: "completed",
    TrialStatus.FAILED: "failed",
}


def _unit_of(span_s: float) -> _Unit:
    units = (_Unit("seconds", 1), _Unit("minutes", 60), _Unit("hours", 3_600), _Unit("days", 86_400))
    return max((unit for unit in units if unit.seconds * 3 <= max(3, span_s)), key=lambda unit: unit.seconds)


def _entries(curve: PlottedCurve, levels: Sequence[float]) -> list[tuple[int, float]]:
    """Return the index of each rung that a trial entered, with the value of the report.

    If a report skips rungs, it enters only the highest of them.
    """
    entries: list[tuple[int, float]] = []
    rung, place, values = 0, 0, curve.value
    while rung < len(levels):
        place = bisect_left(curve.time, levels[rung], place)
        # Another thread may have added a report's time and not yet its value.
        while place < len(values) and math.isnan(values[place]):
            place += 1
        if place >= len(values):
            break
        rung = bisect_right(levels, curve.time[place])
        entries.append((rung - 1, values[place]))
    return entries


def _place_of(value: float, values: Sequence[float]) -> int | None:
    """Return the index of the first report with this value, or None."""
    try:
        return values.index(value)
    except ValueError:
        return None


def _has_value(values: Sequence[float]) -> bool:
    return not all(map(math.isnan, values))
