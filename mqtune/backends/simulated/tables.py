"""Tables of recorded curves: rows, columns, data frames, and CSV or Parquet files."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.text import cell_value


@runtime_checkable
class Frame(Protocol):
    """A data frame of pandas or polars, or a PyArrow table."""

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of its rows and columns."""


#: A row of a table: one report.
Row = Mapping[str, Any]
#: A table: its rows, its columns, a data frame, or a file.
Rows = Mapping[str, Sequence[object]] | Sequence[Row] | Frame | str | Path
#: Methods that return a data frame's rows as dicts, for polars, PyArrow and pandas, with their arguments.
_METHODS: Final = {"to_dicts": (), "to_pylist": (), "to_dict": ("records",)}


def rows_of(table: Rows) -> Sequence[Row]:
    """Return a table's rows.

    Raises:
        ConfigurationError: *table* is not a table, its columns differ in length, or the file can't be read.
        MqtuneError: the file is a Parquet file, and no library for it is installed.
    """
    if isinstance(table, str | Path):
        return _rows_of_file(Path(table))
    if isinstance(table, Mapping):
        return _rows_of_columns(table)
    if isinstance(table, Sequence) and not isinstance(table, bytes | str):
        return table
    for method, arguments in _METHODS.items():
        if isinstance(table, Frame) and hasattr(table, method):
            rows: Sequence[Row] = getattr(table, method)(*arguments)
            return [{str(name): value for name, value in row.items() if value is not None} for row in rows]
    raise ConfigurationError(
        f"Simulated: reports={table!r:.80} is neither a function of the config that returns (seconds, metrics), nor a "
        "table: a list of rows, a dict of columns, a data frame, or the path of a CSV or Parquet file"
    )


def _rows_of_columns(columns: Mapping[str, Sequence[object]]) -> list[Row]:
    try:
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    except (TypeError, ValueError):
        raise ConfigurationError("Simulated: the table's columns are not lists of equal length") from None


def _rows_of_file(path: Path) -> Sequence[Row]:
    if path.suffix in (".parquet", ".pq"):
        return rows_of(_parquet(path))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigurationError(f"Simulated: the table {path} can't be read: {error}") from error
    # An empty cell is a missing value.
    return [{name: cell_value(text) for name, text in row.items() if name and text} for row in rows]


def _parquet(path: Path) -> Frame:
    try:
        frame: Frame = import_module("pandas").read_parquet(path)
    except ImportError:
        raise MqtuneError(
            f"{path}: Parquet needs pandas and pyarrow: pip install pandas pyarrow, or give CSV"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"Simulated: the table {path} can't be read: {error}") from error
    return frame
