"""``mqtune import``: imports another tool's experiment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from mqtune.cli.output import one_of, writing
from mqtune.core.entry_points import IMPORTERS, load_point, names_in
from mqtune.core.errors import ConfigurationError
from mqtune.core.keys import is_name
from mqtune.core.machine import mqtune_home
from mqtune.core.text import counted, printable
from mqtune.results.display import counts_text
from mqtune.results.foreign import read_csv, write_foreign

if TYPE_CHECKING:
    from mqtune.results.foreign import Foreign

_CSV: Final = "csv"
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARS: Final = 100


@click.command("import")
@click.argument("source")
@click.option("--name", metavar="NAME", help="Name of the experiment here; by default its name in SOURCE.")
@click.option(
    "--from",
    "tool",
    **one_of(lambda: [_CSV, *names_in(IMPORTERS)]),
    metavar="TOOL",
    help="The tool that wrote SOURCE: optuna, ray, syne-tune or csv; by default detected.",
)
@click.option("--metric", default="", metavar="NAME", help="The optimised metric, if SOURCE does not say.")
@click.option("--mode", type=click.Choice(("min", "max")), help="Whether to minimise or maximise the metric.")
@click.option("--study", default="", metavar="NAME", help="The Optuna study, if there are several.")
def command(source: str, name: str | None, tool: str | None, metric: str, mode: str | None, study: str) -> None:
    """Import another tool's experiment to this machine.

    SOURCE is a folder of Ray Tune or Syne Tune, an Optuna storage (a file, or a URL such as sqlite:///study.db), or a
    CSV file. A CSV file has a row for each trial, and needs --metric and --mode. Unfinished trials count as stopped
    early, or are left out. A searcher can learn from the imported trials: WarmStart("NAME").
    """
    foreign = _read(source, tool or _tool_of(source), metric, mode or "", study)
    wanted = name or _NOT_ALLOWED.sub("-", foreign.name).strip("-._")[:_NAME_CHARS]
    if not is_name(wanted):
        raise ConfigurationError(
            f"{wanted!r} can't be an experiment's name: give --name NAME, of letters, digits, dots and dashes"
        )
    with writing(mqtune_home() / wanted):
        results = write_foreign(foreign, mqtune_home() / wanted)
    click.echo(
        f"{wanted}: {counts_text(results.experiment)} · {counted(results.experiment.reports, 'report')} · "
        f"{printable(str(results.folder))}"
    )


def _tool_of(source: str) -> str:
    path = Path(source)
    if path.suffix == ".csv" and path.is_file():
        return _CSV
    missing: ConfigurationError | None = None
    for tool in names_in(IMPORTERS):
        try:
            if load_point(IMPORTERS, tool).recognizes(source):
                return tool
        except ConfigurationError as error:
            # This tool's library is missing. Another tool may have written the source.
            missing = error
    if missing is not None and not path.is_dir() and ("://" in source or path.exists()):
        raise missing
    if path.is_dir():
        raise ConfigurationError(f"{source} is not a folder of Ray Tune or Syne Tune")
    raise ConfigurationError(f"{source} does not exist; give a folder, a file, or the URL of an Optuna storage")


def _read(source: str, tool: str, metric: str, mode: str, study: str) -> Foreign:
    if tool == _CSV:
        return read_csv(Path(source), metric, mode)
    foreign: Foreign = load_point(IMPORTERS, tool).read(source, metric, mode, study)
    return foreign


COMMANDS: Final = {"import": command}
