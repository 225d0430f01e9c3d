"""``mqtune export``: an experiment's trials, attempts or reports as a file for other programs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from mqtune.cli.output import broker_option, say
from mqtune.cli.place import find_place, name_argument, opened
from mqtune.core.errors import MqtuneError
from mqtune.results.frames import Row, Rows, attempt_rows, report_rows, trial_rows
from mqtune.results.results import Results, csv_text, json_text

_FORMATS: Final = ("csv", "jsonl", "parquet", "optuna")
_ROWS: Final = ("trials", "attempts", "reports")
#: What the names of files of a format end with, where that is not the format's name.
_ENDINGS: Final = {"pq": "parquet", "json": "jsonl", "log": "optuna"}


@click.command("export")
@name_argument
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file; by default standard output.",
)
@click.option(
    "--format", "wanted", type=click.Choice(_FORMATS), help="By default what the file's name ends with, or csv."
)
@click.option("--rows", type=click.Choice(_ROWS), default="trials", show_default=True, help="What a row, or line, is.")
@broker_option("The Redis server that has the experiment, unless it is on this machine.")
def command(name: str, path: Path | None, wanted: str | None, rows: Rows, broker: str | None) -> None:
    """Write an experiment as CSV, JSON lines, Parquet, or a journal of Optuna's (JournalFileBackend).

    Parquet needs pandas and pyarrow; Optuna's journal, which has a study of the experiment's name, Optuna.
    """
    ending = "" if path is None else path.suffix.removeprefix(".")
    format_ = wanted or _ENDINGS.get(ending, ending if ending in _FORMATS else "csv")
    if path is None and format_ in ("parquet", "optuna"):
        raise click.UsageError(f"{format_} is not for a terminal; give --output FILE")
    with opened(find_place(name, broker)) as view:
        if path is None:
            for part in _text(view.results, format_, rows):
                say(part, nl=False)
        else:
            _write(view.results, path, format_, rows)


def _text(results: Results, format_: str, rows: Rows) -> Iterable[str]:
    found = _rows(results, rows)
    return [csv_text([*found])] if format_ == "csv" else (f"{json_text(row)}\n" for row in found)


def _rows(results: Results, rows: Rows) -> Iterable[Row]:
    if rows == "trials":
        return trial_rows(results.experiment)
    return attempt_rows(results.experiment) if rows == "attempts" else report_rows(results.reports())


def _write(results: Results, path: Path, format_: str, rows: Rows) -> None:
    try:
        if format_ == "parquet":
            _write_parquet(results, path, rows)
        elif format_ == "optuna":
            from mqtune.integrations.optuna_study import write_journal  # noqa: PLC0415 - Optuna need not be here

            write_journal(results.to_optuna_study(), results.name, path)
        else:
            with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(_text(results, format_, rows))
    except OSError as error:
        raise MqtuneError(f"{path} can't be written: {error}") from None


def _write_parquet(results: Results, path: Path, rows: Rows) -> None:
    frame = results.dataframe(rows)
    try:
        frame.to_parquet(path, index=False)
    except ImportError:
        raise MqtuneError("Parquet needs pyarrow: pip install pyarrow, or use --format csv") from None
