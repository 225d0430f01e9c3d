"""``mqtune import``: another tool's experiment as a saved one, whose trials have ended."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.keys import is_name
from mqtune.core.machine import mqtune_home
from mqtune.core.text import counted, printable
from mqtune.results.display import counts_text
from mqtune.results.foreign import read_csv, write_foreign

if TYPE_CHECKING:
    from mqtune.results.foreign import Foreign

_TOOLS: Final = ("optuna", "ray", "syne-tune", "csv")
#: What no name of an experiment has.
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARS: Final = 100


@click.command("import")
@click.argument("source")
@click.option("--name", metavar="NAME", help="The experiment's name here; by default as there.")
@click.option("--from", "tool", type=click.Choice(_TOOLS), help="What SOURCE is of; by default it is looked at.")
@click.option("--metric", default="", metavar="NAME", help="What it optimises, where SOURCE does not say.")
@click.option("--mode", type=click.Choice(("min", "max")), help="Whether less is better, or more.")
@click.option("--study", default="", metavar="NAME", help="Which study of Optuna's, where there are several.")
def command(source: str, name: str | None, tool: str | None, metric: str, mode: str | None, study: str) -> None:
    """Save another tool's experiment as one of this machine: SOURCE is a folder of Ray Tune's or Syne Tune's, a storage of Optuna's, or a CSV file.

    A storage is a URL such as sqlite:///study.db, or a file. A CSV file has a row for each trial, and needs --metric and --mode.
    Trials that had not ended count as stopped early, or are left out. WarmStart("NAME") has a searcher learn from it.
    """
    foreign = _read(source, tool or _tool_of(source), metric, mode or "", study)
    wanted = name or _NOT_ALLOWED.sub("-", foreign.name).strip("-._")[:_NAME_CHARS]
    if not is_name(wanted):
        raise ConfigurationError(
            f"{wanted!r} can't name an experiment: give --name NAME, of letters, digits, dots and dashes"
        )
    try:
        results = write_foreign(foreign, mqtune_home() / wanted)
    except OSError as error:
        raise MqtuneError(f"{mqtune_home() / wanted} can't be written: {error}") from None
    click.echo(
        f"{wanted}: {counts_text(results.experiment)} · {counted(results.experiment.reports, 'report')} · {printable(str(results.folder))}"
    )


def _tool_of(source: str) -> str:
    from mqtune.integrations import ray_folder, syne_tune_folder  # noqa: PLC0415 - --help needs neither

    path = Path(source)
    if "://" in source:
        return "optuna"
    if path.is_dir():
        for name, module in (("syne-tune", syne_tune_folder), ("ray", ray_folder)):
            if module.is_folder(path):
                return name
        raise ConfigurationError(f"{source} is a folder neither of Ray Tune's nor of Syne Tune's")
    if not path.is_file():
        raise ConfigurationError(f"there is no {source}; give a folder, a file, or the URL of a storage of Optuna's")
    return "csv" if path.suffix == ".csv" else "optuna"


def _read(source: str, tool: str, metric: str, mode: str, study: str) -> Foreign:
    from mqtune.integrations import ray_folder, syne_tune_folder  # noqa: PLC0415 - as above

    path = Path(source)
    match tool:
        case "ray":
            return ray_folder.read_folder(path, metric, mode)
        case "syne-tune":
            return syne_tune_folder.read_folder(path, metric, mode)
        case "csv":
            return read_csv(path, metric, mode)
        case _:
            from mqtune.integrations.optuna_import import read_storage  # noqa: PLC0415 - Optuna need not be here

            return read_storage(source if "://" in source else path, study, metric)


COMMANDS: Final = {"import": command}
