"""Converts configs to arrays of numbers from 0 to 1 and back, for models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mqtune.core.errors import SpaceError
from mqtune.core.trial import Config
from mqtune.search.kinds import Choice, Domain, Entries, Ordinal
from mqtune.search.space import Space
from mqtune.search.values import copy_value

_IS: Final = "="


class Encoding:
    """Converts configs of a space to rows of numbers from 0 to 1, and back.

    A domain with an order has one column: the share of samples that are lower than the value. For multiples, integers
    and ordinals it is the middle of the range of shares that have this value. A ``choice`` has a column for each value:
    1 for the chosen value, else 0. Constants, computed values and domains with a single value have no column. If a
    config lacks a value, because a choice has another entry, its columns are NaN.

    Any row of numbers from 0 to 1 can be decoded. For a choice the largest of its columns counts. The space's
    constraint may refuse the result (``Space.allows``). Encoding and decoding preserves listed values and multiples
    exactly, and other floats up to rounding. Values of a normal distribution must lie within about five standard
    deviations of the mean.

    Attributes:
        columns: the names of the columns. They are paths, such as ``optimizer/0/lr``. For a choice the index of the
            value follows: ``optimizer=0``.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._codecs = {path: _codec(domain) for path, domain in space.domains.items()}
        widths = [codec.width for codec in self._codecs.values()]
        ends = pairwise(accumulate(widths, initial=0))
        self._slices = {path: slice(*codec_end) for path, codec_end in zip(self._codecs, ends, strict=True)}
        self.columns = [name for path, codec in self._codecs.items() for name in codec.names(path)]

    def encode(self, configs: Iterable[Mapping[str, Any]]) -> NDArray[np.float64]:
        """Return an array with a row for each config.

        Raises:
            SpaceError: a config is not in the space, or lacks a value.
        """
        rows = [self._row(config) for config in configs]
        return np.array(rows, dtype=float).reshape(len(rows), len(self.columns))

    def _row(self, config: Mapping[str, Any]) -> list[float]:
        values, row = self._space.values(config), [np.nan] * len(self.columns)
        for path in self._space.walk(values):
            if (codec := self._codecs.get(path)) is not None:
                if path not in values:
                    raise SpaceError(f"the config lacks {self._space.places[path]}")
                row[self._slices[path]] = codec.encode(values[path])
        return row

    def decode(self, rows: ArrayLike) -> list[Config]:
        """Return the config of each row.

        Raises:
            SpaceError: a row has another number of columns, or a number that is needed is not from 0 to 1.
        """
        numbers = np.asarray(rows, dtype=float)
        if numbers.ndim != 2 or numbers.shape[1] != len(self.columns):  # noqa: PLR2004 - rows and columns
            raise SpaceError(
                f"the array of shape {numbers.shape} does not have rows of {len(self.columns)} columns, one for each "
                "config"
            )
        # Lists are many times faster than NumPy arrays for single numbers.
        return [self._config(row) for row in numbers.tolist()]

    def _config(self, row: list[float]) -> Config:
        values: dict[str, object] = {}
        for path in self._space.walk(values):
            if (codec := self._codecs.get(path)) is not None:
                cells = row[self._slices[path]]
                if not all(0 <= cell <= 1 for cell in cells):
                    raise SpaceError(f"{self._space.places[path]}: {cells} is not from 0 to 1")
                values[path] = codec.decode(cells)
        return self._space.config_of(values)


class _Codec:
    """Converts a value to one column, and back: the share of samples that are lower."""

    width = 1

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    def names(self, path: str) -> list[str]:
        return [path]

    def encode(self, value: Any) -> list[float]:
        return [self.domain.share(value)]

    def decode(self, cells: list[float]) -> object:
        return self.domain.at(cells[0])


class _OneHot(_Codec):
    """Converts a choice to a column for each value, and back. A single value has no column."""

    def __init__(self, domain: Domain) -> None:
        super().__init__(domain)
        self.values = list(domain.values())
        self.width = len(self.values) if len(self.values) > 1 else 0
        self._places = [domain.share(value) for value in self.values]

    def names(self, path: str) -> list[str]:
        return [f"{path}{_IS}{index}" for index in range(self.width)]

    def encode(self, value: Any) -> list[float]:
        place = self.domain.share(value)
        return [float(place == own_place) for own_place in self._places][: self.width]

    def decode(self, cells: list[float]) -> object:
        return copy_value(self.values[cells.index(max(cells)) if cells else 0])


def _codec(domain: Domain) -> _Codec:
    is_choice = isinstance(domain, Entries) or (isinstance(domain, Choice) and not isinstance(domain, Ordinal))
    return _OneHot(domain) if is_choice or domain.size == 1 else _Codec(domain)
