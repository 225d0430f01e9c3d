"""Reports of simulated trials: from a function, or from a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from numbers import Real
from typing import Any, Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import Config, Metrics

#: A report: its duration in seconds, and its metrics; or the error that the trial fails with after that time.
Item = tuple[float, Metrics | Exception]
#: A function of the config that yields items (a bare error takes no time), or a table: its rows, or its columns.
Reports = Callable[[Config], Iterable[Item | Exception]] | Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]
#: Returns the items of a config after so many reports.
Source = Callable[[Config, int], Iterator[Item]]

#: The column of a table that has the duration of each report, in seconds.
SECONDS: Final = "seconds"


def source_of(reports: Reports) -> Source:
    """Return the function that gives the items of a config.

    Raises:
        ConfigurationError: *reports* is neither a function nor a table with times.
    """
    given: Callable[[Config], Iterable[Item | Exception]]
    if callable(reports):
        given = reports
    elif isinstance(reports, Mapping):
        given = _Table(_rows(reports)).items_of
    elif isinstance(reports, Sequence) and not isinstance(reports, str | bytes):
        given = _Table(reports).items_of
    else:
        raise ConfigurationError(
            f"Simulated: reports={reports!r:.80} is neither a function of the config that gives (seconds, metrics), "
            "nor a table: a list of rows, or a dict of columns"
        )

    def source(config: Config, after: int) -> Iterator[Item]:
        items = given(dict(config))
        if not isinstance(items, Iterable):
            raise ConfigurationError(
                f"Simulated: the reports of {config!r} are {items!r:.80}; give a list or a generator of (seconds, metrics)"
            )
        return _after(_checked(items), after) if after else _checked(items)

    return source


def checked_seconds(what: str, seconds: Any) -> float:
    """Return a duration as a float.

    Raises:
        ConfigurationError: it is not a finite number of at least 0.
    """
    is_number = seconds.__class__ is float or (isinstance(seconds, Real) and not isinstance(seconds, bool))
    if is_number and 0 <= (number := float(seconds)) < math.inf:
        return number
    raise ConfigurationError(f"Simulated: {what} is {seconds!r:.80}; give a number of seconds, of at least 0")


def _checked(items: Iterable[Item | Exception]) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Exception):
            yield 0.0, item
            continue
        try:
            seconds, metrics = item
        except (TypeError, ValueError):
            raise ConfigurationError(f"Simulated: an item is {item!r:.80}; give (seconds, metrics)") from None
        yield checked_seconds("an item's time", seconds), metrics


def _after(items: Iterator[Item], reports: int) -> Iterator[Item]:
    """Return the items after so many reports; errors among these have happened already."""
    for item in items:
        reports -= not isinstance(item[1], Exception)
        if reports < 0:
            return chain((item,), items)
    return items


class _Table:
    """A table whose rows have a config's values, a report's duration and its metrics; a config's rows are in order.

    The rows are indexed once for each set of names that configs have, so that no look-up searches.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if not rows:
            raise ConfigurationError("Simulated: the table has no rows")
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise ConfigurationError(f"Simulated: row {number} of the table is {row!r:.80}, not a dict")
            checked_seconds(f"{SECONDS} in row {number} of the table", row.get(SECONDS))
        self._rows = rows
        self._index: dict[tuple[str, ...], dict[Any, list[Item]]] = {}

    def items_of(self, config: Config) -> list[Item]:
        """Return the items of a config.

        Raises:
            ConfigurationError: the table has no row for it.
        """
        names = tuple(sorted(config))
        index = self._index.get(names)
        if index is None:
            index = self._index[names] = self._index_by(names)
        items = index.get(_hashable(config))
        if items is None:
            raise ConfigurationError(
                f"Simulated: the table has no row for {config!r}; search over the values that it has"
            )
        return items

    def _index_by(self, names: tuple[str, ...]) -> dict[Any, list[Item]]:
        index: dict[Any, list[Item]] = {}
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


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[Mapping[str, Any]]:
    try:
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    except (TypeError, ValueError):
        raise ConfigurationError("Simulated: the table's columns are not lists of one length") from None


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple((name, _hashable(value[name])) for name in sorted(value))
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
