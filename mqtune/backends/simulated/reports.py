"""Reports of simulated trials, from a function or a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from numbers import Real
from typing import Any, Final

from mqtune.backends.simulated.tables import Row, Rows, rows_of
from mqtune.core.errors import ConfigurationError
from mqtune.core.text import flatten
from mqtune.core.trial import Config, Metrics, TrialId

#: A report: its duration in seconds, and its metrics or the error with which the attempt fails after that time.
Item = tuple[float, Metrics | Exception]
#: A function that returns the items of a trial's config after a number of reports.
Source = Callable[[TrialId, Config, int], Iterator[Item]]

#: Stands for NaN, which is not equal to itself, in lookups of configs.
_NAN: Final = object()
#: Column of a table with the duration of each report, in seconds.
SECONDS: Final = "seconds"


class Curves:
    """Recorded curves. If a config has several curves, its trials get them in turn.

    Args:
        curves: pairs of a config and the items of its curve. The items are iterated again for each attempt.
    """

    def __init__(self, curves: Iterable[tuple[Config, Iterable[Item]]]) -> None:
        self._items: list[Iterable[Item]] = []
        self._of_config: dict[object, list[int]] = {}
        self._of_trial: dict[TrialId, int] = {}
        self._given: Counter[object] = Counter()
        for number, (config, items) in enumerate(curves):
            self._items.append(items)
            self._of_config.setdefault(_hashable(config), []).append(number)

    def items_of(self, trial: TrialId, config: Config) -> Iterable[Item]:
        """Return the items of a trial's curve.

        Raises:
            ConfigurationError: its config has no curve.
        """
        return self._items[self.number_of(trial, config)]

    def number_of(self, trial: TrialId, config: Config) -> int:
        """Return the index of a trial's curve.

        Raises:
            ConfigurationError: its config has no curve.
        """
        key = _hashable(config)
        if trial not in self._of_trial:
            if key not in self._of_config:
                raise ConfigurationError(f"no curve is recorded for the config {config!r}")
            numbers = self._of_config[key]
            self._of_trial[trial] = numbers[self._given[key] % len(numbers)]
            self._given[key] += 1
        return self._of_trial[trial]


#: A function that returns a config's items, a table, or recorded curves. An error without a duration takes no time.
Reports = Callable[[Config], Iterable[Item | Exception]] | Rows | Curves


def make_source(reports: Reports) -> Source:
    """Return the function that returns the items of a trial, from the user's *reports*.

    Raises:
        ConfigurationError: *reports* is neither a function nor a table with times, or its file can't be read.
    """
    given: Callable[[TrialId, Config], Iterable[Item | Exception]]
    if isinstance(reports, Curves):
        given = reports.items_of
    elif callable(reports):
        function = reports

        def given(_: TrialId, config: Config) -> Iterable[Item | Exception]:
            return function(dict(config))
    else:
        table = _Table(rows_of(reports))

        def given(_: TrialId, config: Config) -> Iterable[Item | Exception]:
            return table.items_of(config)

    def source(trial: TrialId, config: Config, after: int) -> Iterator[Item]:
        items = given(trial, config)
        if not isinstance(items, Iterable):
            raise ConfigurationError(
                f"Simulated: the reports of {config!r} are {items!r:.80}; give a list or a generator of (seconds, "
                "metrics)"
            )
        return _items_after(_checked(items), after) if after else _checked(items)

    return source


def checked_seconds(argument: str, seconds: Any) -> float:
    """Return a duration as a float. *argument* names it in the error.

    Raises:
        ConfigurationError: the duration is not a finite number of at least 0.
    """
    is_number = seconds.__class__ is float or (isinstance(seconds, Real) and not isinstance(seconds, bool))
    if is_number and 0 <= (number := float(seconds)) < math.inf:
        return number
    raise ConfigurationError(f"Simulated: {argument} is {seconds!r:.80}; give a number of seconds, of at least 0")


def _checked(items: Iterable[Item | Exception]) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Exception):
            yield 0.0, item
            continue
        try:
            seconds, metrics = item
        except (TypeError, ValueError):
            raise ConfigurationError(f"Simulated: an item is {item!r:.80}; give (seconds, metrics)") from None
        if seconds.__class__ is not float or not 0.0 <= seconds < math.inf:
            seconds = checked_seconds("an item's time", seconds)
        yield seconds, metrics


def _items_after(items: Iterator[Item], reports: int) -> Iterator[Item]:
    """Return the items after a number of reports.

    Errors don't count as reports, and are skipped.
    """
    for item in items:
        reports -= not isinstance(item[1], Exception)
        if reports < 0:
            return chain((item,), items)
    return items


class _Table:
    """A table. Each row has a config's values, and the duration and metrics of a report.

    The rows of one config are in the order of the reports. An index is made once for each set of names in configs.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        if not rows:
            raise ConfigurationError("Simulated: the table has no rows")
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise ConfigurationError(f"Simulated: row {number} of the table is {row!r:.80}, not a dict")
            checked_seconds(f"{SECONDS} in row {number} of the table", row.get(SECONDS))
        self._rows = rows
        self._index: dict[tuple[str, ...], dict[object, list[Item]]] = {}

    def items_of(self, config: Config) -> list[Item]:
        """Return a config's items. A nested config may have columns such as ``layers.width``.

        Raises:
            ConfigurationError: the table has no row for the config.
        """
        is_flat = any(isinstance(value, Mapping) and name not in self._rows[0] for name, value in config.items())
        values = dict(flatten(config)) if is_flat else config
        names = tuple(sorted(values))
        index = self._index.get(names)
        if index is None:
            index = self._index[names] = self._index_by(names)
        items = index.get(_hashable(values))
        if items is None:
            raise ConfigurationError(
                f"Simulated: the table has no row for {config!r}; make a space of the values in the table"
            )
        return items

    def _index_by(self, names: tuple[str, ...]) -> dict[object, list[Item]]:
        index: dict[object, list[Item]] = {}
        for number, row in enumerate(self._rows):
            missing = [name for name in names if name not in row]
            if missing:
                raise ConfigurationError(
                    f"Simulated: row {number} of the table lacks {', '.join(map(repr, missing))}, which the config has"
                )
            metrics = {name: value for name, value in row.items() if name != SECONDS and name not in names}
            key = _hashable({name: row[name] for name in names})
            index.setdefault(key, []).append((float(row[SECONDS]), metrics))
        return index


def _hashable(value: object) -> object:
    if isinstance(value, float) and math.isnan(value):
        return _NAN
    if isinstance(value, Mapping):
        return tuple((name, _hashable(value[name])) for name in sorted(value))
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
