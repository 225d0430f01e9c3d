"""``mqtune list``: the experiments on this machine."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table
from rich.text import Text

from mqtune.callbacks.view import printable, short_value
from mqtune.cli.output import output
from mqtune.errors import MqtuneError
from mqtune.home import mqtune_home
from mqtune.journal.file import JOURNAL_FILE
from mqtune.results import SUMMARY_FILE, Results
from mqtune.saved import saved_experiments, standing

__all__ = ["command"]

_NEEDED: Final = {"created_at", "outcome", "metric", "trials", "best"}


@click.command("list")
def command() -> None:
    """List the experiments on this machine, that with the newest event first."""
    folders = saved_experiments()
    if not folders:
        click.echo(f"no experiments in {mqtune_home()}; try: mqtune demo")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("name", "begun", "status", "trials", "best"):
        table.add_column(head, header_style="bold", no_wrap=True, justify="right" if head == "trials" else "left")
    for folder in folders:
        table.add_row(*map(Text, _row(folder)))
    output().print(table)


def _row(folder: Path) -> list[str]:
    name = printable(folder.name)
    try:
        summary = _summary(folder)
    except (MqtuneError, OSError) as error:
        return [name, "", f"can't be read: {printable(str(error))}", "", ""]
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(summary["created_at"]))
    best = summary["best"]
    value = "" if best is None else f"{printable(summary['metric'])}={short_value(best['value'])}"
    return [name, begun, standing(folder, summary["outcome"]), str(summary["trials"]), value]


def _summary(folder: Path) -> dict[str, Any]:
    """Return what the driver saved when it ended, or, if events came after that, what they amount to now."""
    saved = folder / SUMMARY_FILE
    if saved.exists() and saved.stat().st_mtime_ns >= (folder / JOURNAL_FILE).stat().st_mtime_ns:
        # A file that another version wrote, or somebody, is no reason not to list the experiment.
        with contextlib.suppress(ValueError):
            summary = json.loads(saved.read_text(encoding="utf-8"))
            if isinstance(summary, dict) and summary.keys() >= _NEEDED:
                return summary
    return Results.load(folder).summary()
