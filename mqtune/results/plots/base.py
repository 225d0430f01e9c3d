"""The common parts of an experiment's pictures: trials, curves, looks by status, and notes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mqtune.core.errors import ConfigurationError, NothingToDraw
from mqtune.core.trial import Trial, TrialId, TrialStatus
from mqtune.results.plots.data import PlottedCurve, Read, curves_of, value_of
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
from mqtune.results.plots.picture import Picture

MOST_DOTS: Final = 2_000
MOST_PANELS: Final = 12
#: The height of a row, and the height around all rows, in pixels.
_ROW_PX, _AROUND_PX = 22, 90

LOOKS: Final[Mapping[TrialStatus, Look]] = {
    TrialStatus.EARLY_STOPPED: Look(STOPPED, marker="x", size=5, edge=1.2),
    TrialStatus.COMPLETED: Look(COMPLETED, marker="circle", size=7),
    TrialStatus.FAILED: Look(FAILED, marker="triangle-up", size=7),
    TrialStatus.PAUSED: Look(PAUSED, marker="square-open", size=7, edge=1.4),
    TrialStatus.RUNNING: Look(RUNNING, marker="diamond-open", size=8, edge=1.4),
}
OTHER: Final = Look(STOPPED, marker="circle", size=5)
_INFEASIBLE: Final = Look(STOPPED, marker="diamond", size=6)
BEST_MARK: Final = Look(TEXT, marker="best", size=13, edge=1.6)
#: The order of drawing: trials of a later status cover those of an earlier one.
DRAWN: Final = (*LOOKS, *(status for status in TrialStatus if status not in LOOKS))


class PlotBase:
    """The data and the common parts of an experiment's pictures.

    Args:
        results: the experiment.
        curves: returns each trial's curve of a metric, given the results and the metric.
    """

    def __init__(
        self, results: Read, curves: Callable[[Read, str], Mapping[TrialId, PlottedCurve]] = curves_of
    ) -> None:
        self._results = results
        self._curves_of = curves
        self._experiment = results.experiment

    def _trials(self) -> list[Trial]:
        return list(self._experiment.trials.values())

    def _curves(self, metric: str) -> Mapping[TrialId, PlottedCurve]:
        curves = self._curves_of(self._results, metric)
        if not any(not math.isnan(value) for curve in curves.values() for value in curve.value):
            raise self._no_value(metric)
        return curves

    def _valued(self, metric: str) -> list[Trial]:
        valued = [trial for trial in self._trials() if not math.isnan(value_of(self._results, trial, metric))]
        if not valued:
            raise self._no_value(metric)
        return valued

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

    def _valued_and_kept(self, metric: str) -> list[Trial]:
        """Return the trials that have a value and were not abandoned."""
        kept = [trial for trial in self._valued(metric) if not trial.is_abandoned]
        if not kept:
            raise self._no_value(metric)
        return kept

    def _best_mark(self, x: Callable[[Trial], float], y: Callable[[Trial], float]) -> list[Series]:
        """Return a series with the best trial's mark. Return [] if there is no best trial."""
        best = self._experiment.best
        if best is None or best.id not in self._experiment.trials:
            return []
        return [Series("best", [x(best)], [y(best)], BEST_MARK, [best.id])]

    def _by_status(
        self,
        trials: Sequence[Trial],
        x: Callable[[Trial], float],
        y: Callable[[Trial], float],
        every: Sequence[Trial] = (),
    ) -> list[Series]:
        """Return a series of points for each status, with *x* and *y* of each trial.

        Args:
            trials: the trials to draw.
            every: the trials that the legend counts. The default is *trials*.
        """
        infeasible: list[Trial] = []
        feasible, counted = trials, every or trials
        if self._experiment.objective.constraints:
            is_feasible = self._experiment.is_feasible
            infeasible = [trial for trial in trials if not is_feasible(trial)]
            feasible = [trial for trial in trials if is_feasible(trial)]
            counted = [trial for trial in counted if is_feasible(trial)]
        totals = Counter([trial.status for trial in counted])
        groups: list[tuple[str, Look, list[Trial], int | None]] = [("infeasible", _INFEASIBLE, infeasible, None)]
        for status in DRAWN:
            of_status = [trial for trial in feasible if trial.status is status]
            groups.append((in_words(status), LOOKS.get(status, OTHER), of_status, totals[status]))
        return [
            Series(name, list(map(x, group)), list(map(y, group)), look, [trial.id for trial in group], count)
            for name, look, group, count in groups
            if group
        ]

    def _picture(
        self, title: str, panels: Sequence[Panel], drawn: Sequence[Trial], *notes: str, rows: int | None = None
    ) -> Picture:
        total, counts = len(self._experiment.trials), Counter(trial.status for trial in drawn)
        statuses = ", ".join(f"{counts[status]:,} {in_words(status)}" for status in TrialStatus if counts[status])
        number = f"{len(drawn):,} of {total:,} trials" if len(drawn) < total else f"{total:,} trial{'s' * (total != 1)}"
        note = " · ".join(filter(None, [f"{number} ({statuses})", *notes]))
        height = None if rows is None else max(180, _AROUND_PX + _ROW_PX * rows)
        remarks = [*([number] if len(drawn) < total else []), *filter(None, notes)]
        return Picture(f"{label(self._experiment.name)}: {label(title)}", note, panels, height, remarks=remarks)


def in_words(status: TrialStatus) -> str:
    """Return a status in words, for legends."""
    return "stopped early" if status is TrialStatus.EARLY_STOPPED else status.value


def cut_note(total: int, drawn: int, things: str) -> str:
    """Return a note such as "12 of 40 parameters". It is empty if all are drawn."""
    return f"{drawn} of {total:,} {things}" if drawn < total else ""


def rows_axis(names: Sequence[str], *, downwards: bool = False) -> Axis:
    """Return a vertical axis with a name for each row."""
    ends = (len(names) - 0.4, -0.6) if downwards else (-0.6, len(names) - 0.4)
    return Axis("", ticks=[(float(row), label(name)) for row, name in enumerate(names)], ends=ends)
