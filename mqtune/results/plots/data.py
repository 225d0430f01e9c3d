"""The data of pictures: learning curves, the trials to draw, and parameters on an axis."""

from __future__ import annotations

import contextlib
import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, Protocol, cast

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

#: The most points that every browser draws quickly, and the most lines that people can follow.
MOST_POINTS: Final = 6_000
MOST_LINES: Final = 200
#: The most categories on an axis. Further ones share one position.
_MOST_CATEGORIES: Final = 12
_OTHERS: Final = "others"
#: The classes of most values of configs, and the classes of numbers.
_FLAT: Final = frozenset({bool, float, int, str, type(None)})
_NUMBERS: Final = frozenset({float, int})
#: If the greatest value divided by the least exceeds this, the axis is logarithmic. Parameters of an unknown search
#: space have a larger ratio.
_LOG_RATIO: Final = 20
_PARAMETER_LOG_RATIO: Final = 1_000


class Read(Protocol):
    """The data source of pictures: an experiment's ``Results``."""

    @property
    def experiment(self) -> Experiment:
        """The experiment's state."""

    @property
    def definition(self) -> Body:
        """The experiment's space, scheduler and so on, as plain values."""

    def events(self) -> Iterator[Event | Report]:
        """Yield all events and reports in the driver's order."""

    def reports(self) -> Iterator[RecordedReport]:
        """Yield all reports. Those after the decision to stop or pause their attempt are ``late``."""

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
    """A metric in a trial's reports, without late ones. Another thread may add reports while it is read.

    Attributes:
        at: when each report was made, in seconds since the epoch.
        time: the scheduler's time of each report.
        value: the metric in each report, or NaN.
    """

    at: array[float] = field(default_factory=lambda: array("d"))
    time: array[float] = field(default_factory=lambda: array("d"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def add(self, at: float, metrics: Metrics, time_attr: str, metric: str) -> None:
        """Add the trial's next report."""
        time, value = metrics.get(time_attr), metrics.get(metric)
        self.at.append(at)
        self.time.append(time if is_number(time) and math.isfinite(time) else len(self.at))
        self.value.append(value if is_number(value) and math.isfinite(value) else math.nan)

    def by_seconds(self) -> PlottedCurve:
        """Return a curve whose times are the seconds since its first report."""
        return PlottedCurve(self.at, array("d", (at - self.at[0] for at in self.at)), self.value)

    def copy(self) -> PlottedCurve:
        """Return a copy of the reports so far, to which no thread adds any."""
        # ``add`` appends the value last, so only these reports are complete.
        count = len(self.value)
        return PlottedCurve(self.at[:count], self.time[:count], self.value[:count])


def curves_of(results: Read, metric: str) -> dict[TrialId, PlottedCurve]:
    """Return the metric's curve of each trial with reports. A report takes 24 bytes of memory."""
    time_attr = time_attr_of(results)
    curves: dict[TrialId, PlottedCurve] = {}
    for report in results.reports():
        if report.late:
            continue
        curve = curves.get(report.trial)
        if curve is None:
            curve = curves[report.trial] = PlottedCurve()
        curve.add(report.timestamp, report.metrics, time_attr, metric)
    return curves


def best_index(values: Sequence[float], *, is_min: bool) -> int | None:
    """Return the index of the best value, or None if all are NaN."""
    # NumPy would lock the array of a curve meanwhile, so that another thread could not add a report.
    numbers = [value for value in values if not math.isnan(value)]
    return values.index((min if is_min else max)(numbers)) if numbers else None


class Copied(NamedTuple):
    """A trial's start from the checkpoint of another one, *source*.

    *time* is the scheduler's time of that checkpoint.
    """

    trial: TrialId
    source: TrialId
    time: float


def copies_of(results: Read) -> Iterator[Copied]:
    """Yield each start of a trial from another's checkpoint, in the driver's order."""
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
    """Return the value by which a trial is ranked, or NaN if it is missing or infinite."""
    value = trial.best_value if results.experiment.objective.is_single else trial.best_metrics.get(metric, math.nan)
    return value if is_number(value) and math.isfinite(value) else math.nan


def chosen(results: Read, trials: Sequence[Trial], most: int) -> list[Trial]:
    """Return at most *most* trials: half of them are the best, the others are evenly spread."""
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
    """Return lines as one series, separated by NaN. *lines* has each line's label, x and y."""
    x: list[float] = []
    y: list[float] = []
    labels: list[str] = []
    for text, xs, ys in lines:
        x += [*xs, math.nan]
        y += [*ys, math.nan]
        labels += [text] * (len(xs) + 1)
    return Series(name, x, y, look, labels)


def is_wide(values: Sequence[float], ratio: float = _LOG_RATIO) -> bool:
    """Return whether values need a logarithmic axis: all above 0, the ratio above *ratio*."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > ratio


def is_wide_series(series: Iterable[Series]) -> bool:
    """Return whether the values of series need a logarithmic axis."""
    return is_wide([value for one in series for value in one.y])


@dataclass(frozen=True, slots=True)
class ParameterAxis:
    """The axis of a hyperparameter, with the position of each trial on it.

    Attributes:
        places: each trial's position: the value, or the index of a category. NaN if the trial lacks the parameter.
        names: the categories, or empty for numbers.
        ends: the ends of the parameter's range in the search space, if it is an interval.
    """

    name: str
    places: list[float]
    is_log: bool = False
    names: tuple[str, ...] = ()
    ends: tuple[float, float] | None = None

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The positions and labels of the categories. It is empty for numbers."""
        return [(place, label(name)) for place, name in enumerate(self.names)]


def parameters_of(results: Read, trials: Sequence[Trial]) -> list[ParameterAxis]:
    """Return the hyperparameters in which these trials differ. For one trial, return all."""
    configs = [_flat(trial.config) for trial in trials]
    names = dict.fromkeys(chain.from_iterable(configs))
    space = _space_of(results)
    parameters = []
    for name in names:
        values = [config.get(name) for config in configs]
        has_values = any(value is not None for value in values)
        if has_values and (len(configs) == 1 or any(not _is_same(value, values[0]) for value in values)):
            parameters.append(_parameter(name, values, space))
    return parameters


def _flat(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return a config without nested dicts. Most configs are flat already."""
    return config if _FLAT.issuperset(map(type, config.values())) else dict(flatten(config))


def _is_same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _space_of(results: Read) -> Space | None:
    with contextlib.suppress(SpaceError, KeyError):
        return space_of(results.definition["space"], any_unknown=True)
    return None


def _parameter(name: str, values: Sequence[object], space: Space | None) -> ParameterAxis:
    given = [value for value in values if value is not None]
    is_category = _is_category(name, given, space)
    # The classes are compared first, which is the fast way for most parameters.
    are_numbers = _NUMBERS.issuperset(map(type, given)) or all(map(is_number, given))
    if not is_category and are_numbers and all(map(math.isfinite, cast("list[float]", given))):
        places = [math.nan if value is None else float(value) for value in cast("list[float | None]", values)]
        return ParameterAxis(name, places, _is_log(name, places, space), ends=_ends_of(name, space))
    texts = _texts_of(values)
    names = tuple(_categories(name, [text for text in texts if text is not None], space))
    index = {category: float(place) for place, category in enumerate(names)}
    others = index.get(_OTHERS, 0.0)
    return ParameterAxis(name, [math.nan if text is None else index.get(text, others) for text in texts], names=names)


def _texts_of(values: Sequence[object]) -> list[str | None]:
    """Return the short text of each value, or None for a missing one."""
    # Most categories are texts, each of which many trials have.
    texts = {value: short_value(value) for value in {value for value in values if isinstance(value, str)}}
    return [
        texts[value] if isinstance(value, str) else None if value is None else short_value(value) for value in values
    ]


def _is_category(name: str, values: Sequence[object], space: Space | None) -> bool:
    """Return whether a parameter is a choice with few options, and all *values* are among them."""
    options = [
        option
        for domain in _domains_of(name, space)
        for option in (domain.options if isinstance(domain, Choice) else [None])
    ]
    return 0 < len(options) <= _MOST_CATEGORIES and all(value in options for value in _distinct(values))


def _distinct(values: Sequence[object]) -> Collection[object]:
    """Return each value once, or all values if some can't be compared quickly."""
    try:
        return set(values)
    except TypeError:
        return values


def _domains_of(name: str, space: Space | None) -> list[Domain]:
    return [] if space is None else [domain for path, domain in space.domains.items() if space.places[path] == name]


def _ends_of(name: str, space: Space | None) -> tuple[float, float] | None:
    intervals = [domain for domain in _domains_of(name, space) if isinstance(domain, Interval | Multiples)]
    return (float(intervals[0].low), float(intervals[0].high)) if len(intervals) == 1 else None


def _is_log(name: str, places: Sequence[float], space: Space | None) -> bool:
    domains = _domains_of(name, space)
    # A scheduler may have changed a config to a value that has no logarithm. NaN stands for a missing value.
    if np.nanmin(places) <= 0:
        return False
    if domains:
        return any(
            isinstance(domain, Interval | Multiples) and not isinstance(domain, ReverseInterval) and domain.log
            for domain in domains
        )
    return is_wide(places, _PARAMETER_LOG_RATIO)


def _categories(name: str, texts: Sequence[str], space: Space | None) -> Iterator[str]:
    """Yield the categories of an axis: options of choices, then the most frequent other texts."""
    counts = Counter(texts)
    domains = _domains_of(name, space)
    options = [short_value(option) for domain in domains if isinstance(domain, Choice) for option in domain.options]
    names = [option for option in dict.fromkeys(options) if option in counts]
    others = [value for value, _ in counts.most_common() if value not in names]
    room = max(0, _MOST_CATEGORIES - len(names))
    yield from names[:_MOST_CATEGORIES]
    yield from sorted(others[:room])
    if len(names) + len(others) > _MOST_CATEGORIES:
        yield _OTHERS
