"""Data of pictures: reports over time, chosen trials, and parameters on an axis."""

from __future__ import annotations

import contextlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np

from mqtune.core.codec import Body
from mqtune.core.errors import SpaceError
from mqtune.core.events import CheckpointSaved, Event, TrialStaged
from mqtune.core.experiment import Experiment
from mqtune.core.text import flatten
from mqtune.core.trial import ITERATION, Metrics, Report, Trial, TrialId, is_number
from mqtune.results.display import ranked, short_value
from mqtune.results.experiments import RecordedReport
from mqtune.results.plots.panels import Look, Series, label
from mqtune.schedulers.policy import PolicyStep
from mqtune.search.kinds import Choice, Domain, Interval, Multiples, ReverseInterval
from mqtune.search.space import Space, space_of

#: Every browser draws as many points, and people can follow as many lines.
MOST_POINTS: Final = 6_000
MOST_LINES: Final = 200
#: Others share the last place.
_MOST_CATEGORIES: Final = 12
_OTHERS: Final = "others"
#: Values that span a larger ratio get a logarithmic axis. So do parameters without a search space, by a ratio of their own.
_LOG_RATIO: Final = 20
_PARAMETER_LOG_RATIO: Final = 1_000


class Read(Protocol):
    """The data source of pictures: an experiment's ``Results``."""

    @property
    def experiment(self) -> Experiment:
        """The fold of its events."""

    @property
    def definition(self) -> Body:
        """Its space, scheduler and so on, as plain values."""

    def events(self) -> Iterator[Event | Report]:
        """Yield all events, and single reports."""

    def reports(self) -> Iterator[RecordedReport]:
        """Yield all reports, late ones marked."""

    def policy(self, trial_id: str) -> list[PolicyStep]:
        """Return the configs of a trial over time."""


def time_attr_of(results: Read) -> str:
    """Return the key of the scheduler's time in reports, usually the epoch's number."""
    time_attr: str = results.definition["scheduler"].get("time_attr", ITERATION)
    return time_attr


def time_label_of(results: Read) -> str:
    """Return the name of the scheduler's time for people, such as "epoch" or "iteration"."""
    name = time_attr_of(results)
    return label("iteration" if name == ITERATION else name)


@dataclass(slots=True)
class PlottedCurve:
    """A trial's reports without late ones: their times, scheduler's times, and metrics or NaN."""

    at: array[float] = field(default_factory=lambda: array("d"))
    time: array[float] = field(default_factory=lambda: array("d"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def take(self, at: float, metrics: Metrics, time_attr: str, metric: str) -> None:
        """Add the trial's next report."""
        time, value = metrics.get(time_attr), metrics.get(metric)
        self.at.append(at)
        self.time.append(time if is_number(time) and math.isfinite(time) else len(self.at))
        self.value.append(value if is_number(value) and math.isfinite(value) else math.nan)

    def by_seconds(self) -> PlottedCurve:
        """Return the curve over the seconds since its first report."""
        return PlottedCurve(self.at, array("d", (at - self.at[0] for at in self.at)), self.value)

    def copy(self) -> PlottedCurve:
        """Return a copy of the reports so far, while another thread may add one."""
        # An added report's value comes last.
        count = len(self.value)
        return PlottedCurve(self.at[:count], self.time[:count], self.value[:count])


def curves_of(results: Read, metric: str) -> dict[TrialId, PlottedCurve]:
    """Return the reports of each trial that has any, in 24 bytes per report."""
    time_attr = time_attr_of(results)
    curves: dict[TrialId, PlottedCurve] = {}
    for report in results.reports():
        if report.late:
            continue
        curve = curves.get(report.trial)
        if curve is None:
            curve = curves[report.trial] = PlottedCurve()
        curve.take(report.timestamp, report.metrics, time_attr, metric)
    return curves


class Copied(NamedTuple):
    """The copy of another trial's checkpoint, and that checkpoint's scheduler time."""

    trial: TrialId
    source: TrialId
    time: float


def copies_of(results: Read) -> Iterator[Copied]:
    """Yield trials' copies of others, in the order of the journal."""
    time_attr = time_attr_of(results)
    reached: dict[TrialId, float] = {}
    saved: dict[str, float] = {}
    for event in results.events():
        if isinstance(event, Report):
            time = event.metrics.get(time_attr)
            reached[event.trial] = time if is_number(time) and math.isfinite(time) else event.sequence
            saved[event.checkpoint] = reached[event.trial]
        elif isinstance(event, CheckpointSaved):
            saved[event.checkpoint] = reached.get(event.trial, 0.0)
        elif isinstance(event, TrialStaged) and event.source:
            yield Copied(event.trial, TrialId(event.source), saved.get(event.checkpoint, 0.0))


def value_of(results: Read, trial: Trial, metric: str) -> float:
    """Return the value that a trial is ranked by, or NaN if it is missing or infinite."""
    value = trial.best_value if results.experiment.objective.is_single else trial.best_metrics.get(metric, math.nan)
    return value if is_number(value) and math.isfinite(value) else math.nan


def chosen(results: Read, trials: Sequence[Trial], most: int) -> list[Trial]:
    """Return at most *most* trials: the best ones for half of them, and others evenly spread."""
    if len(trials) <= most:
        return list(trials)
    among = {trial.id for trial in trials}
    best_first = [trial for trial in ranked(results.experiment) if trial.id in among]
    best, rest = best_first[: most // 2], best_first[most // 2 :]
    kept = {trial.id for trial in best} | {rest[place].id for place in spread(len(rest), most - len(best))}
    return [trial for trial in trials if trial.id in kept]


def spread(count: int, most: int) -> list[int]:
    """Return at most *most* indexes below *count*, evenly spread, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({int(place) for place in np.linspace(0, count - 1, most)})


def joined(name: str, look: Look, lines: Iterable[tuple[str, Sequence[float], Sequence[float]]]) -> Series:
    """Return lines as one series, separated by NaN, each labelled with its name."""
    x: list[float] = []
    y: list[float] = []
    labels: list[str] = []
    for text, xs, ys in lines:
        x += [*xs, math.nan]
        y += [*ys, math.nan]
        labels += [text] * (len(xs) + 1)
    return Series(name, x, y, look, labels)


def is_wide(values: Sequence[float], ratio: float = _LOG_RATIO) -> bool:
    """Return whether values need a logarithmic axis: above 0, and over a larger *ratio*."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > ratio


def is_wide_series(series: Iterable[Series]) -> bool:
    """Return whether the values of series need a logarithmic axis."""
    return is_wide([value for one in series for value in one.y])


@dataclass(frozen=True, slots=True)
class ParameterAxis:
    """A hyperparameter: each trial's place on its axis, or NaN, and any names of places."""

    name: str
    places: list[float]
    is_log: bool = False
    names: tuple[str, ...] = ()
    #: The ends of its range in the search space, if it is an interval.
    ends: tuple[float, float] | None = None

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The positions and labels of its ticks. It is empty for a plain number axis."""
        return [(place, label(name)) for place, name in enumerate(self.names)]


def parameters_of(results: Read, trials: Sequence[Trial]) -> list[ParameterAxis]:
    """Return the hyperparameters of these trials, without those that don't differ."""
    configs = [dict(flatten(trial.config)) for trial in trials]
    names = dict.fromkeys(name for config in configs for name in config)
    space = _space_of(results)
    parameters = []
    for name in names:
        values = [config.get(name) for config in configs]
        is_there = any(value is not None for value in values)
        if is_there and (len(configs) == 1 or any(not _is_same(value, values[0]) for value in values)):
            parameters.append(_parameter(name, values, space))
    return parameters


def _is_same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _space_of(results: Read) -> Space | None:
    with contextlib.suppress(SpaceError, KeyError):
        return space_of(results.definition["space"], any_unknown=True)
    return None


def _parameter(name: str, values: Sequence[object], space: Space | None) -> ParameterAxis:
    given = [value for value in values if value is not None]
    is_chosen = _is_chosen(name, given, space)
    if not is_chosen and all(is_number(value) and math.isfinite(value) for value in given):
        places = [float(value) if is_number(value) else math.nan for value in values]
        return ParameterAxis(name, places, _is_log(name, places, space), ends=_ends_of(name, space))
    names = tuple(_categories(name, given, space))
    index = {category: place for place, category in enumerate(names)}
    others = index.get(_OTHERS, 0)
    return ParameterAxis(
        name,
        [math.nan if value is None else float(index.get(short_value(value), others)) for value in values],
        names=names,
    )


def _is_chosen(name: str, values: Sequence[object], space: Space | None) -> bool:
    """Return whether a parameter is a choice among few."""
    options = [
        option
        for domain in _domains_of(name, space)
        for option in (domain.options if isinstance(domain, Choice) else [None])
    ]
    return 0 < len(options) <= _MOST_CATEGORIES and all(value in options for value in values)


def _domains_of(name: str, space: Space | None) -> list[Domain]:
    return [] if space is None else [domain for path, domain in space.domains.items() if space.places[path] == name]


def _ends_of(name: str, space: Space | None) -> tuple[float, float] | None:
    intervals = [domain for domain in _domains_of(name, space) if isinstance(domain, Interval | Multiples)]
    return (float(intervals[0].low), float(intervals[0].high)) if len(intervals) == 1 else None


def _is_log(name: str, places: Sequence[float], space: Space | None) -> bool:
    domains = _domains_of(name, space)
    # A scheduler's exploration may have reached a value without a logarithm.
    if any(place <= 0 for place in places):
        return False
    if domains:
        return any(
            isinstance(domain, Interval | Multiples) and not isinstance(domain, ReverseInterval) and domain.log
            for domain in domains
        )
    return is_wide(places, _PARAMETER_LOG_RATIO)


def _categories(name: str, values: Sequence[object], space: Space | None) -> Iterator[str]:
    """Yield the names of places: a choice's options in order, then the most frequent values."""
    counts = Counter(map(short_value, values))
    domains = _domains_of(name, space)
    options = [short_value(option) for domain in domains if isinstance(domain, Choice) for option in domain.options]
    names = [option for option in dict.fromkeys(options) if option in counts]
    others = [value for value, _ in counts.most_common() if value not in names]
    room = max(0, _MOST_CATEGORIES - len(names))
    yield from names[:_MOST_CATEGORIES]
    yield from sorted(others[:room])
    if len(names) + len(others) > _MOST_CATEGORIES:
        yield _OTHERS
