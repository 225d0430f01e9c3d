"""``mqtune list``: the experiments on this machine and on a broker."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mqtune.cli.describe import described_experiment
from mqtune.cli.output import broker_option, json_option, print_json, print_table
from mqtune.cli.place import Place, opened
from mqtune.core.errors import AccessDenied, BrokerUnavailable, MqtuneError
from mqtune.core.machine import mqtune_home
from mqtune.core.text import printable
from mqtune.core.trial import NO_LABELS, Labels
from mqtune.journal.copy import JOURNAL_FILE
from mqtune.results.display import short_value
from mqtune.results.experiments import saved_experiments, state_in_words, state_of_folder
from mqtune.results.results import SUMMARY_FILE, Results

if TYPE_CHECKING:
    from mqtune.client import ExperimentHandle, ExperimentState

#: Plain values, as ``Results.summary`` has them.
_Summary = dict[str, Any]
_HEADS: Final = ("name", "started", "status", "trials", "best", "tags")
#: The most entries of a journal on a broker that are read to know its best value: some tenths of a second.
_ENTRIES: Final = 10_000
_NEEDED: Final = {"created_at", "outcome", "metric", "trials", "best"}


@click.command("list")
@broker_option("A Redis server whose experiments are listed too.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TAG",
    help="List only experiments with this tag; may be repeated.",
)
@click.option("--notes", default="", metavar="TEXT", help="List only experiments with this text in their notes.")
@json_option
def command(broker: str | None, tags: tuple[str, ...], notes: str, *, as_json: bool) -> None:
    """List the experiments on this machine, those with the newest event first, and then those on a broker.

    On a broker the best value is shown where the journal is short enough to be read for that.
    """
    is_filtered = bool(tags or notes)
    folders = [each for each in saved_experiments() if not is_filtered or _labels(each).match(tags, notes)]
    if as_json:
        there = _described_on(broker, tags, notes) if broker else []
        print_json([*map(described_here, folders), *there])
        return
    if folders:
        _print([_row(folder) for folder in folders])
    elif is_filtered and not broker:
        click.echo(f"no experiment in {mqtune_home()} has these tags and notes")
    elif not is_filtered:
        more = "" if broker else "; try: mqtune demo"
        click.echo(f"no experiments in {mqtune_home()}{more}")
    if broker:
        _list_broker(broker, tags, notes)


def _print(rows: list[list[str]]) -> None:
    # No column for tags unless there are some.
    width = len(_HEADS) if any(row[-1] for row in rows) else len(_HEADS) - 1
    print_table(_HEADS[:width], (row[:width] for row in rows))


def _labels(folder: Path) -> Labels:
    with contextlib.suppress(MqtuneError, OSError):
        summary = _summary(folder)
        return Labels(tuple(summary.get("tags", ())), str(summary.get("notes", "")))
    return NO_LABELS


def described_here(folder: Path) -> dict[str, object]:
    """Return what is known of an experiment on this machine; if it can't be read, why."""
    try:
        summary = _summary(folder)
    except (MqtuneError, OSError) as error:
        return {"name": folder.name, "place": str(folder), "error": str(error)}
    return {**summary, "state": state_of_folder(folder, summary["outcome"]), "place": str(folder)}


def _described_on(url: str, tags: tuple[str, ...], notes: str) -> list[dict[str, object]]:
    """Return the experiments on a broker with these labels; of those with a long journal, unless that is needed, little."""
    from mqtune.client import Client  # noqa: PLC0415 - only this needs redis

    found: list[dict[str, object]] = []
    with Client(url) as there:
        for experiment in there.experiments():
            try:
                described = _described_there(experiment, url, there.place, tags, notes)
            except (BrokerUnavailable, AccessDenied):
                raise
            except MqtuneError as error:
                # Others can write to a broker too, or have a later version; that must not hide the rest.
                labelled = bool(tags or notes)
                described = None if labelled else {"name": experiment.name, "place": there.place, "error": str(error)}
            if described is not None:
                found.append(described)
    return found


def _described_there(
    experiment: ExperimentHandle, url: str, place: str, tags: tuple[str, ...], notes: str
) -> dict[str, object] | None:
    """Return what is known of an experiment on a broker; None if it has not begun, or has other labels."""
    if (state := experiment.state()) is None:
        return None
    if not tags and not notes:
        return described_there(state, url, place)
    with opened(Place(experiment.name, None, url)) as view:
        return described_experiment(view) if view.results.experiment.labels.match(tags, notes) else None


def described_there(state: ExperimentState, url: str, place: str) -> dict[str, object]:
    """Return what is known of an experiment on a broker, without reading a long journal."""
    if state.entries <= _ENTRIES:
        with opened(Place(state.name, None, url)) as view:
            return described_experiment(view)
    words = state_in_words(state.outcome, is_driven=state.is_driven, age_s=state.age_s)
    plain = {"name": state.name, "outcome": state.outcome, "created_at": state.created_at}
    return {**plain, "metric": state.metric, "state": words, "place": place}


def _list_broker(url: str, tags: tuple[str, ...], notes: str) -> None:
    from mqtune.journal.connection import redact  # noqa: PLC0415 - as above

    found = _described_on(url, tags, notes)
    click.echo(f"\non {printable(redact(url))}{':' if found else ': no experiments'}")
    if found:
        _print(list(map(_cells, found)))
        click.echo("details: mqtune show --broker … NAME")


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _row(folder: Path) -> list[str]:
    try:
        summary = _summary(folder)
    except (MqtuneError, OSError) as error:
        return _cells({"name": folder.name, "error": str(error)})
    return _cells({**summary, "name": folder.name, "state": state_of_folder(folder, summary["outcome"])})


def _cells(summary: _Summary) -> list[str]:
    if "error" in summary:
        return [printable(summary["name"]), "", f"can't be read: {printable(summary['error'])}", "", "", ""]
    best, metric = summary.get("best"), printable(str(summary["metric"]))
    value = f"{metric}={short_value(best['value'])}" if best else "" if "best" in summary else metric
    if front := summary.get("pareto_front"):
        value = f"Pareto front: {len(front)}"
    tags = printable(", ".join(map(str, summary.get("tags", ()))))
    started, trials = _time(summary["created_at"]), str(summary.get("trials", ""))
    return [printable(summary["name"]), started, summary["state"], trials, value, tags]


def _summary(folder: Path) -> _Summary:
    """Return the summary that the driver saved, or a new one if events came after it."""
    saved = folder / SUMMARY_FILE
    if saved.exists() and saved.stat().st_mtime_ns >= (folder / JOURNAL_FILE).stat().st_mtime_ns:
        # A malformed file, or one of another version, is ignored.
        with contextlib.suppress(ValueError):
            summary = json.loads(saved.read_text(encoding="utf-8"))
            if isinstance(summary, dict) and summary.keys() >= _NEEDED:
                return summary
    return Results.load(folder).summary()
