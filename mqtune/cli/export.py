"""``mqtune export``: writes trials, attempts or reports to files or tools."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol, cast

import click

from mqtune.cli.archive import copy_there
from mqtune.cli.output import broker_option, one_of, say, writing
from mqtune.cli.place import find_place, name_argument, opened
from mqtune.core.entry_points import EXPORTERS, LOGGERS, load_point, names_in
from mqtune.core.errors import MqtuneError
from mqtune.results.frames import Row, Rows, attempt_rows, report_rows, trial_rows
from mqtune.results.results import Results, csv_text, json_text


class _Logger(Protocol):
    def write(self, results: Results) -> None: ...


#: Formats that no partner library adds.
_FORMATS: Final = ("csv", "jsonl", "parquet", "mqtune")
_TEXTS: Final = frozenset({"csv", "jsonl"})
_ROWS: Final = ("trials", "attempts", "reports")
#: Formats by those file endings that are not the format's name.
_ENDINGS: Final = {"pq": "parquet", "log": "optuna"}


def _formats() -> list[str]:
    return [*_FORMATS, *names_in(EXPORTERS)]


@click.command("export")
@name_argument
@click.option("-o", "--output", "path", type=click.Path(path_type=Path), help="The file; by default standard output.")
@click.option(
    "--format",
    "wanted",
    **one_of(_formats),
    metavar="FORMAT",
    help="csv, jsonl, parquet, optuna, syne-tune or mqtune; by default the ending of the file's name, or csv.",
)
@click.option("--rows", type=click.Choice(_ROWS), help="Write a row, or line, for each of these; by default trials.")
@click.option(
    "--to",
    "tools",
    multiple=True,
    metavar="TOOL[=PLACE]",
    help="Write into a tool: tensorboard=FOLDER, mlflow=ADDRESS, wandb=PROJECT, opentelemetry=ADDRESS; may be "
    "repeated. A file is then written only if --output, --format or --rows is given, too.",
)
@broker_option("The Redis server that has the experiment, unless it is on this machine.")
def command(
    name: str, path: Path | None, wanted: str | None, rows: Rows | None, tools: tuple[str, ...], broker: str | None
) -> None:
    """Write an experiment to a file, to a folder, or into another tool.

    The format parquet needs pandas and pyarrow. optuna writes a journal for Optuna's JournalFileBackend, with a study
    of the experiment's name. mqtune writes a copy of the experiment's folder, for `mqtune show FOLDER` and other
    commands. --to needs mqtune's extra for the tool, and skips rows that the tool already has.
    """
    if tools:
        _log(name, broker, [_logger(tool) for tool in tools])
        if path is None and wanted is None and rows is None:
            return
    format_ = wanted or _format_of(path)
    if path is None and format_ not in _TEXTS:
        raise click.UsageError(f"{format_} can't be written to a terminal; give --output FILE")
    if path is not None and format_ == "mqtune":
        copy_there(find_place(name, broker), path)
        return
    rows = rows or "trials"
    with opened(find_place(name, broker)) as view:
        if path is None:
            for part in _text(view.results, format_, rows):
                say(part, nl=False)
        else:
            _write(view.results, path, format_, rows)
            content = rows if format_ in ("csv", "jsonl", "parquet") else "trials and their reports"
            say(f"{path}: the {content} of {view.results.name} as {format_}")


def _format_of(path: Path | None) -> str:
    """Return the format for a file's ending. It is CSV without a file or an ending."""
    ending = "" if path is None else path.suffix.removeprefix(".").lower()
    format_ = _ENDINGS.get(ending, ending or "csv")
    if format_ not in _FORMATS and format_ not in _formats():
        raise click.UsageError(
            f"{path}: no format has the ending .{ending}; end the name with .csv, .jsonl or .parquet, or give --format"
        )
    return format_


def _logger(tool: str) -> _Logger:
    name, _, place = tool.partition("=")
    if name not in (names := names_in(LOGGERS)):
        raise click.UsageError(f"unknown tool {name!r}; tools are {', '.join(names)}")
    return cast("_Logger", load_point(LOGGERS, name)(*filter(None, [place])))


def _log(name: str, broker: str | None, loggers: list[_Logger]) -> None:
    with opened(find_place(name, broker)) as view:
        for logger in loggers:
            try:
                logger.write(view.results)
            except MqtuneError:
                raise
            except Exception as error:
                raise MqtuneError(f"{type(logger).__name__}: {error}") from error
            click.echo(f"{view.results.name}: {len(view.results)} trials are in {type(logger).__name__}")


def _text(results: Results, format_: str, rows: Rows) -> Iterable[str]:
    table = _rows(results, rows)
    return [csv_text([*table])] if format_ == "csv" else (f"{json_text(row)}\n" for row in table)


def _rows(results: Results, rows: Rows) -> Iterable[Row]:
    if rows == "trials":
        return trial_rows(results.experiment)
    return attempt_rows(results.experiment) if rows == "attempts" else report_rows(results.reports())


def _write(results: Results, path: Path, format_: str, rows: Rows) -> None:
    with writing(path):
        if format_ == "parquet":
            _write_parquet(results, path, rows)
        elif format_ not in _TEXTS:
            load_point(EXPORTERS, format_).export(results, path)
        else:
            with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(_text(results, format_, rows))


def _write_parquet(results: Results, path: Path, rows: Rows) -> None:
    frame = results.dataframe(rows)
    for name in frame.columns[frame.dtypes == "object"]:
        frame[name] = _of_one_type(frame[name])
    try:
        frame.to_parquet(path, index=False)
    except ImportError:
        raise MqtuneError("Parquet needs pyarrow: pip install pyarrow, or use --format csv") from None


def _of_one_type(values: Iterable[object]) -> list[object]:
    """Return a column whose values have one type. Lists, dicts and mixed values become JSON."""
    column = [None if value != value else value for value in values]  # noqa: PLR0124 - NaN is not itself
    types = {type(value) for value in column if value is not None}
    if len(types) <= 1 and not types & {list, dict}:
        return column
    return [value if isinstance(value, str | None) else json_text(value) for value in column]
