"""``mqtune list``: the experiments on this machine and on a broker."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.table import Table
from rich.text import Text

from mqtune.cli.output import broker_option, output
from mqtune.core.errors import MqtuneError
from mqtune.core.machine import mqtune_home
from mqtune.core.text import printable
from mqtune.core.trial import NO_LABELS, Labels
from mqtune.journal.copy import JOURNAL_FILE
from mqtune.results.display import short_value
from mqtune.results.experiments import saved_experiments, state_in_words, state_of_folder
from mqtune.results.results import SUMMARY_FILE, Results

if TYPE_CHECKING:
    from mqtune.client import ExperimentState

_HEADS: Final = ("name", "started", "status", "trials", "best", "tags")
_NEEDED: Final = {"created_at", "outcome", "metric", "trials", "best"}


@click.command("list")
@broker_option("A Redis server whose experiments are listed too.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TAG",
    help="List only experiments of this machine with this tag; may be repeated.",
)
@click.option(
    "--notes", default="", metavar="TEXT", help="List only experiments of this machine with this text in their notes."
)
def command(broker: str | None, tags: tuple[str, ...], notes: str) -> None:
    """List the experiments on this machine, those with the newest event first, and then those on a broker."""
    is_filtered = bool(tags or notes)
    folders = [each for each in saved_experiments() if not is_filtered or _labels(each).match(tags, notes)]
    if folders:
        rows = [_row(folder) for folder in folders]
        # No column for tags unless there are some.
        width = len(_HEADS) if any(row[-1] for row in rows) else len(_HEADS) - 1
        _print_table(_HEADS[:width], (row[:width] for row in rows))
    elif is_filtered:
        click.echo(f"no experiment in {mqtune_home()} has these tags and notes")
    else:
        more = "" if broker else "; try: mqtune demo"
        click.echo(f"no experiments in {mqtune_home()}{more}")
    if broker and not is_filtered:
        _list_broker(broker)


def _labels(folder: Path) -> Labels:
    with contextlib.suppress(MqtuneError, OSError):
        summary = _summary(folder)
        return Labels(tuple(summary.get("tags", ())), str(summary.get("notes", "")))
    return NO_LABELS


def _list_broker(url: str) -> None:
    from mqtune.client import Client  # noqa: PLC0415 - only this needs redis

    with Client(url) as there:
        states = [state for experiment in there.experiments() if (state := experiment.state()) is not None]
        click.echo(f"\non {printable(there.place)}{':' if states else ': no experiments'}")
    if states:
        _print_table(("name", "started", "status", "metric"), map(_row_of, states))
        click.echo("details: mqtune show --broker … NAME")


def _row_of(state: ExperimentState) -> list[str]:
    words = state_in_words(state.outcome, is_driven=state.is_driven, age_s=state.age_s)
    return [printable(state.name), _time(state.created_at), words, printable(state.metric)]


def _print_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head, header_style="bold", no_wrap=True, justify="right" if head == "trials" else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    output().print(table)


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _row(folder: Path) -> list[str]:
    name = printable(folder.name)
    try:
        summary = _summary(folder)
    except (MqtuneError, OSError) as error:
        return [name, "", f"can't be read: {printable(str(error))}", "", "", ""]
    best = summary["best"]
    value = "" if best is None else f"{printable(summary['metric'])}={short_value(best['value'])}"
    if front := summary.get("pareto_front"):
        value = f"Pareto front: {len(front)}"
    state, tags = state_of_folder(folder, summary["outcome"]), ", ".join(map(str, summary.get("tags", ())))
    return [name, _time(summary["created_at"]), state, str(summary["trials"]), value, printable(tags)]


def _summary(folder: Path) -> dict[str, Any]:
    """Return the summary that the driver saved, or a new one if events came after it."""
    saved = folder / SUMMARY_FILE
    if saved.exists() and saved.stat().st_mtime_ns >= (folder / JOURNAL_FILE).stat().st_mtime_ns:
        # A malformed file, or one of another version, is ignored.
        with contextlib.suppress(ValueError):
            summary = json.loads(saved.read_text(encoding="utf-8"))
            if isinstance(summary, dict) and summary.keys() >= _NEEDED:
                return summary
    return Results.load(folder).summary()
