"""What pictures are made of: the values of reports over time, trials chosen from many, and parameters as places on an axis."""

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

#: About the most points of a picture, which every browser draws at once, and the most lines that can be followed.
MOST_POINTS: Final = 6_000
MOST_LINES: Final = 200
#: The most values of a parameter that have a place of their own; others share the last one.
_MOST_CATEGORIES: Final = 12
_OTHERS: Final = "others"
#: Values that span more than this are shown on a logarithmic axis, where nothing else says how.
_LOG_RATIO: Final = 1_000


class Read(Protocol):
    """What pictures are made of: an experiment's ``Results``."""

    @property
    def experiment(self) -> Experiment:
        """The fold of its events."""

    @property
    def definition(self) -> Body:
        """Its space, scheduler and so on, as plain values."""

    def events(self) -> Iterator[Event | Report]:
        """Yield all events, and reports one by one."""

    def reports(self) -> Iterator[RecordedReport]:
        """Yield all reports, late ones marked."""

    def policy(self, trial_id: str) -> list[PolicyStep]:
        """Return the configs that a trial went through."""


def time_attr_of(results: Read) -> str:
    """Return the key of the scheduler's time in reports, usually the number of the epoch."""
    found: str = results.definition["scheduler"].get("time_attr", ITERATION)
    return found


@dataclass(slots=True)
class Curve:
    """A trial's reports, late ones left out: when they were made, the scheduler's time, and the metric, or NaN."""

    at: array[float] = field(default_factory=lambda: array("d"))
    time: array[float] = field(default_factory=lambda: array("d"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def take(self, at: float, metrics: Metrics, time_attr: str, metric: str) -> None:
        """Take in the trial's next report."""
        time, value = metrics.get(time_attr), metrics.get(metric)
        self.at.append(at)
        self.time.append(time if is_number(time) and math.isfinite(time) else len(self.at))
        self.value.append(value if is_number(value) and math.isfinite(value) else math.nan)

    def by_seconds(self) -> Curve:
        """Return the same by the seconds since its first report in place of the scheduler's time."""
        return Curve(self.at, array("d", (at - self.at[0] for at in self.at)), self.value)

    def copy(self) -> Curve:
        """Return the reports so far, which later ones don't change; another thread may take one in meanwhile."""
        # Of what that one has, the value comes last.
        count = len(self.value)
        return Curve(self.at[:count], self.time[:count], self.value[:count])


def curves_of(results: Read, metric: str) -> dict[TrialId, Curve]:
    """Return the reports of each trial that has any; memory is 24 bytes for each."""
    time_attr = time_attr_of(results)
    curves: dict[TrialId, Curve] = {}
    for report in results.reports():
        if report.late:
            continue
        curve = curves.get(report.trial)
        if curve is None:
            curve = curves[report.trial] = Curve()
        curve.take(report.timestamp, report.metrics, time_attr, metric)
    return curves


class Copied(NamedTuple):
    """That a trial has gone on from another's checkpoint, and the scheduler's time of that."""

    trial: TrialId
    source: TrialId
    time: float


def copies_of(results: Read) -> Iterator[Copied]:
    """Yield which trials have copied another, in the order of the journal."""
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
    """Return the value that a trial is ranked by; NaN where it has none, or none that has a place on an axis."""
    value = trial.best_value if results.experiment.objective.is_single else trial.best_metrics.get(metric, math.nan)
    return value if is_number(value) and math.isfinite(value) else math.nan


def chosen(results: Read, trials: Sequence[Trial], most: int) -> list[Trial]:
    """Return at most so many of *trials*: the best half of them, and of the others as many, evenly spread."""
    if len(trials) <= most:
        return list(trials)
    among = {trial.id for trial in trials}
    best_first = [trial for trial in ranked(results.experiment) if trial.id in among]
    best, rest = best_first[: most // 2], best_first[most // 2 :]
    kept = {trial.id for trial in best} | {rest[place].id for place in spread(len(rest), most - len(best))}
    return [trial for trial in trials if trial.id in kept]


def spread(count: int, most: int) -> list[int]:
    """Return at most so many places of *count*, evenly spread, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({int(place) for place in np.linspace(0, count - 1, most)})


def joined(name: str, look: Look, lines: Iterable[tuple[str, Sequence[float], Sequence[float]]]) -> Series:
    """Return lines as one series, parted by NaN, each labelled with its name."""
    x: list[float] = []
    y: list[float] = []
    labels: list[str] = []
    for text, xs, ys in lines:
        x += [*xs, math.nan]
        y += [*ys, math.nan]
        labels += [text] * (len(xs) + 1)
    return Series(name, x, y, look, labels)


def is_wide(values: Sequence[float]) -> bool:
    """Whether values are better shown on a logarithmic axis."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > _LOG_RATIO


@dataclass(frozen=True, slots=True)
class Parameter:
    """A hyperparameter: the place of each trial on its axis, NaN where a trial has none, and the names of places that are no numbers."""

    name: str
    places: list[float]
    is_log: bool = False
    names: tuple[str, ...] = ()

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The names of its places, where they have any."""
        return [(place, label(name)) for place, name in enumerate(self.names)]


def parameters_of(results: Read, trials: Sequence[Trial]) -> list[Parameter]:
    """Return the hyperparameters of these trials, without those that are the same in all of several trials."""
    configs = [dict(flatten(trial.config)) for trial in trials]
    names = dict.fromkeys(name for config in configs for name in config)
    space = _space_of(results)
    found = []
    for name in names:
        values = [config.get(name) for config in configs]
        is_there = any(value is not None for value in values)
        if is_there and (len(configs) == 1 or any(not _is_same(value, values[0]) for value in values)):
            found.append(_parameter(name, values, space))
    return found


def _is_same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _space_of(results: Read) -> Space | None:
    with contextlib.suppress(SpaceError, KeyError):
        return space_of(results.definition["space"], any_unknown=True)
    return None


def _parameter(name: str, values: Sequence[object], space: Space | None) -> Parameter:
    there = [value for value in values if value is not None]
    is_chosen = _is_chosen(name, there, space)
    if not is_chosen and all(is_number(value) and math.isfinite(value) for value in there):
        places = [float(value) if is_number(value) else math.nan for value in values]
        return Parameter(name, places, _is_log(name, places, space))
    names = tuple(_categories(name, there, space))
    index = {each: place for place, each in enumerate(names)}
    others = index.get(_OTHERS, 0)
    return Parameter(
        name,
        [math.nan if value is None else float(index.get(short_value(value), others)) for value in values],
        names=names,
    )


def _is_chosen(name: str, values: Sequence[object], space: Space | None) -> bool:
    """Whether a parameter is a choice among few: what lies between two of its numbers is nothing that a trial can have."""
    options = [
        option
        for domain in _domains_of(name, space)
        for option in (domain.options if isinstance(domain, Choice) else [None])
    ]
    return 0 < len(options) <= _MOST_CATEGORIES and all(value in options for value in values)


def _domains_of(name: str, space: Space | None) -> list[Domain]:
    return [] if space is None else [each for path, each in space.domains.items() if space.places[path] == name]


def _is_log(name: str, places: Sequence[float], space: Space | None) -> bool:
    domains = _domains_of(name, space)
    # A scheduler that explores may have brought a value to where there is no logarithm.
    if any(place <= 0 for place in places):
        return False
    if domains:
        return any(
            isinstance(each, Interval | Multiples) and not isinstance(each, ReverseInterval) and each.log
            for each in domains
        )
    return is_wide(places)


def _categories(name: str, values: Sequence[object], space: Space | None) -> Iterator[str]:
    """Yield the names of places: those of a choice in its order, and the most frequent ones of trials."""
    counts = Counter(map(short_value, values))
    domains = _domains_of(name, space)
    options = [short_value(option) for each in domains if isinstance(each, Choice) for option in each.options]
    names = [each for each in dict.fromkeys(options) if each in counts]
    others = [each for each, _ in counts.most_common() if each not in names]
    room = max(0, _MOST_CATEGORIES - len(names))
    yield from names[:_MOST_CATEGORIES]
    yield from sorted(others[:room])
    if len(names) + len(others) > _MOST_CATEGORIES:
        yield _OTHERS
