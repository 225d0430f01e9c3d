"""Compare trials at a common time of the scheduler, and find the ranges of the best ones."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import TrialId, TrialStatus
from mqtune.results.plots.data import ParameterAxis, PlottedCurve, Read, time_label_of
from mqtune.results.plots.panels import BestShare, Level, Levels, label
from mqtune.schedulers.halving import levels_of

#: With this many trials, the effect of a parameter shows.
_ENOUGH: Final = 30
#: The range of the best trials means nothing with fewer trials.
_FEWEST: Final = 10
#: The share of trials that count as the best, and the most of a parameter's range that a narrow range covers.
_BEST: Final = 0.2
_NARROW: Final = 0.6
#: A value this near to the end of a range, as a share of the range, counts as the end.
_NEAR: Final = 0.02
#: Without rungs, the levels are the time of the longest trial, divided by these.
_DIVISORS: Final = (27, 9, 3, 1)
_SHOWN_NAMES: Final = 3
#: The level of each trial's best value.
BEST: Final = math.inf


def rungs_of(results: Read) -> list[float]:
    """Return the times of the scheduler's rungs. The list is empty if it has no rungs."""
    scheduler = results.definition["scheduler"]
    try:
        return levels_of(
            scheduler["scheduler"], scheduler["grace_period"], scheduler["max_t"], scheduler["reduction_factor"]
        )
    except (KeyError, TypeError, ConfigurationError):
        return []


def stops_trials(results: Read) -> bool:
    """Return whether the experiment has a scheduler, which may end trials early."""
    return results.definition["scheduler"].get("scheduler") not in ("fifo", "nobody", None)


def value_at(curve: PlottedCurve, time: float) -> float:
    """Return the first value that was reported at *time* or later. Return NaN without one."""
    index, values = bisect_left(curve.time, time), curve.value
    while index < len(values):
        if not math.isnan(value := values[index]):
            return value
        index += 1
    return math.nan


class CommonLevel:
    """The values of trials at a level: a time of the scheduler at which trials can be compared.

    The level is the chosen one, or else the latest that enough trials have reached. Without a scheduler there are no
    levels, and completed trials are compared by their best values.

    Args:
        results: the experiment.
        bests: the best value of each trial to compare.
        curves: returns the curves of the metric. It is called only if there are levels.
        at: the chosen level. ``BEST`` stands for each trial's best value.
    """

    def __init__(
        self,
        results: Read,
        bests: Mapping[TrialId, float],
        curves: Callable[[], Mapping[TrialId, PlottedCurve]],
        at: float | None = None,
    ) -> None:
        self.levels: Levels | None = None
        self.values = bests
        if not stops_trials(results):
            trials = results.experiment.trials
            completed = {id_: best for id_, best in bests.items() if trials[id_].status is TrialStatus.COMPLETED}
            self.values = completed or bests
            return
        every_curve = curves()
        compared = {id_: every_curve[id_] for id_ in bests if id_ in every_curve}
        ends = sorted(curve.time[-1] for curve in compared.values())
        timed = [Level(time, len(ends) - bisect_left(ends, time)) for time in _times(results, ends)]
        every = [*(level for level in timed if level.count), Level(BEST, len(bests))]
        shown = next((level for level in every if level.time == at), None) or _default(every)
        if shown.time != BEST:
            self.values = {
                id_: value for id_, curve in compared.items() if not math.isnan(value := value_at(curve, shown.time))
            }
        self.levels = Levels(time_label_of(results), every, shown)

    @property
    def words(self) -> str:
        """The level in words, such as "at epoch 9"."""
        if self.levels is None:
            return ""
        time = self.levels.shown.time
        return "at each trial's best" if time == BEST else f"at {self.levels.unit} {time:g}"


def _times(results: Read, ends: Sequence[float]) -> list[float]:
    """Return the times of the levels. *ends* are the sorted lengths of the trials."""
    if rungs := rungs_of(results):
        return rungs
    longest = ends[-1] if ends else 0.0
    return sorted({float(math.ceil(longest / divisor)) for divisor in _DIVISORS} - {0.0})


def _default(every: Sequence[Level]) -> Level:
    timed = [level for level in every if level.time != BEST]
    if not timed:
        return every[-1]
    enough = [level for level in timed if level.count >= _ENOUGH]
    # Of levels with equal counts, take the latest.
    return enough[-1] if enough else max(reversed(timed), key=lambda level: level.count)


def best_range(parameter: ParameterAxis, values: Sequence[float], *, is_min: bool) -> tuple[float, float] | None:
    """Return the ends of the best fifth of the trials on the axis, or None for too few trials."""
    places = _best_places(parameter, values, is_min=is_min)
    return (min(places), max(places)) if places else None


def share_of(parameter: ParameterAxis, values: Sequence[float], share: float | None, *, is_min: bool) -> BestShare:
    """Return a parameter's *share*, with the range of the best fifth of the trials in words."""
    places = _best_places(parameter, values, is_min=is_min)
    if not places:
        return BestShare(parameter.name, share, "")
    if parameter.names:
        counts = Counter(parameter.names[int(place)] for place in places)
        names = [name for name, _ in counts.most_common(_SHOWN_NAMES)]
        more = f" and {len(counts) - _SHOWN_NAMES} more" if len(counts) > _SHOWN_NAMES else ""
        return BestShare(parameter.name, share, ", ".join(map(label, names)) + more)
    low, high = min(places), max(places)
    words = number_text(low) if low == high else f"{number_text(low)} – {number_text(high)}"
    return BestShare(parameter.name, share, words, _is_at_edge(parameter, low, high))


def number_text(value: float) -> str:
    """Return a number with three digits, such as 0.0064, 129 or 6.5e-6."""
    mantissa, e, exponent = f"{value:.3g}".partition("e")
    if not e:
        return mantissa
    is_short = 0 <= int(exponent) < 6  # noqa: PLR2004 - as "%g" writes
    return f"{value:,.0f}" if is_short else f"{mantissa}e{int(exponent)}"


def _best_places(parameter: ParameterAxis, values: Sequence[float], *, is_min: bool) -> list[float]:
    valued = [(value, place) for value, place in zip(values, parameter.places, strict=True) if not math.isnan(place)]
    if len(valued) < _FEWEST:
        return []
    valued.sort(reverse=not is_min)
    return [place for _, place in valued[: math.ceil(_BEST * len(valued))]]


def _is_at_edge(parameter: ParameterAxis, low: float, high: float) -> bool:
    """Return whether the range is narrow and touches an end of the parameter's own range."""
    if parameter.ends is None or low == high:
        return False
    of = math.log if parameter.is_log else float
    first, last = map(of, parameter.ends)
    span = last - first
    if span <= 0 or (of(high) - of(low)) / span > _NARROW:
        return False
    return min(abs(of(low) - first), abs(last - of(high))) < _NEAR * span
