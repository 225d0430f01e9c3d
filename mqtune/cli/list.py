"""``mqtune list``: lists the experiments on this machine and on a broker."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mqtune.cli.describe import described_experiment
from mqtune.cli.output import broker_option, json_option, print_json, print_table
from mqtune.cli.owners import has_others, is_of, owner_of, owner_option
from mqtune.cli.place import Place, View, complete_experiment, find_place, is_asked_for, names_on, opened, state_text
from mqtune.cli.servers import client_of
from mqtune.cli.submit import state_on
from mqtune.core.errors import AccessDenied, BrokerUnavailable, MqtuneError
from mqtune.core.labels import Labels
from mqtune.core.machine import SERVER_FOLDER, mqtune_home
from mqtune.core.owner import NOBODY
from mqtune.core.text import printable
from mqtune.core.trial import TrialStatus
from mqtune.journal.files.copy import JOURNAL_FILE
from mqtune.results.display import short_config, short_value
from mqtune.results.experiments import duration, saved_experiments, script_in_words, state_of_folder, with_failures
from mqtune.results.results import SUMMARY_FILE, Results

if TYPE_CHECKING:
    from mqtune.client import ExperimentState
    from mqtune.services.submissions.board import SubmissionState

#: An experiment as plain values, as from ``Results.summary``.
_Summary = dict[str, Any]
_HEADS: Final = ("name", "owner", "started", "status", "trials", "failed", "best", "tags")
_COMPARED: Final = ("name", "status", "trials", "ran", "best", "trial", "config")
#: Columns that are shown only if any of their cells is not empty.
_SELDOM: Final = frozenset({"owner", "failed", "tags"})
#: A journal on a broker is read only if it has at most this many entries, which takes some tenths of a second.
ENTRIES: Final = 10_000
_NEEDED: Final = {"created_at", "owner", "outcome", "metric", "trials", "best", "progress"}


@click.command("list")
@click.argument("names", nargs=-1, metavar="[NAME]…", shell_complete=complete_experiment)
@click.option("--compare", is_flag=True, help="Compare results and run times of each NAME, or of all experiments.")
@broker_option("A Redis server; its experiments are listed, too.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only experiments with this tag; may be repeated.")
@click.option("--notes", default="", metavar="TEXT", help="Only experiments with this text in their notes.")
@owner_option
@json_option
def command(
    names: tuple[str, ...],
    broker: str | None,
    tags: tuple[str, ...],
    notes: str,
    owner: str,
    *,
    compare: bool,
    as_json: bool,
) -> None:
    """List the experiments on this machine, and then those on a broker; or only each NAME.

    The most recently active come first, and each is listed once. For experiments on a broker, best values are shown
    only if the journal is short. Owners are shown if any of them is somebody else.
    """
    if names or compare:
        with _opened(names or _all_names(broker), broker, is_strict=bool(names)) as views:
            _list_named(views, Labels(tags, notes), owner, compare=compare, as_json=as_json)
        return
    is_alone, is_filtered = broker is not None and is_asked_for(), bool(tags or notes)
    here = [] if is_alone else [described_here(folder) for folder in saved_experiments()]
    remote: list[_Summary] = []
    problem = None
    if broker:
        try:
            # Labels are only in the journal, so it is read even if it is long.
            remote = _described_on(broker, math.inf if is_filtered else ENTRIES)
        except MqtuneError as error:
            # The experiments on this machine are listed nevertheless.
            problem = error
    here, remote = listed_once(here, remote)
    if is_filtered:
        here, remote = ([summary for summary in some if _labels(summary).match(tags, notes)] for some in (here, remote))
    if owner:
        here, remote = ([summary for summary in some if is_of(owner_of(summary), owner)] for some in (here, remote))
        is_filtered = True
    if as_json:
        if problem is not None:
            raise problem
        print_json([*here, *remote])
        return
    if here:
        _print(here)
    elif is_filtered and not broker:
        click.echo(f"no experiment in {mqtune_home()} has {_wanted(owner)}")
    elif not is_filtered and not is_alone and not remote:
        more = "" if broker else "; try: mqtune demo"
        click.echo(f"no experiments in {mqtune_home()}{more}")
    if problem is not None:
        raise problem
    if broker:
        _print_broker(broker, remote, wanted=_wanted(owner) if is_filtered else "")


def _all_names(broker: str | None) -> tuple[str, ...]:
    """Return the names of the experiments on this machine and on a broker."""
    here = [] if broker is not None and is_asked_for() else [folder.name for folder in saved_experiments()]
    return tuple(dict.fromkeys([*here, *(names_on(broker) if broker else [])]))


def _wanted(owner: str) -> str:
    return "this owner, these tags and notes" if owner else "these tags and notes"


@contextlib.contextmanager
def _opened(names: tuple[str, ...], broker: str | None, *, is_strict: bool) -> Iterator[list[View]]:
    """Yield views of experiments. If not *is_strict*, unreadable ones are reported and left out."""
    views = []
    with contextlib.ExitStack() as stack:
        for name in names:
            try:
                views.append(stack.enter_context(opened(find_place(name, broker))))
            except MqtuneError as error:
                if is_strict:
                    raise
                click.echo(f"mqtune: {printable(name)} can't be read: {printable(str(error))}", err=True)
        yield views


def _list_named(views: list[View], labels: Labels, owner: str, *, compare: bool, as_json: bool) -> None:
    views = [view for view in views if view.results.experiment.labels.match(labels.tags, labels.notes)]
    views = [view for view in views if is_of(view.results.experiment.owner, owner)]
    described = [described_experiment(view) for view in views]
    if as_json:
        print_json(described)
    elif compare:
        print_table(_COMPARED, map(_comparison, views))
    else:
        _print(described)


def _comparison(view: View) -> list[str]:
    experiment, best = view.results.experiment, view.results.experiment.best
    best_cells = ["", "", ""]
    if best is not None:
        best_cells = [
            f"{printable(experiment.metric)}={short_value(best.best_value)}",
            best.id,
            short_config(best.config),
        ]
    elif front := experiment.pareto_front:
        best_cells[0] = f"Pareto front: {len(front)}"
    return [
        printable(experiment.name),
        view.state,
        str(len(experiment.trials)),
        duration(experiment.run_s),
        *best_cells,
    ]


def listed_once(here: list[_Summary], remote: list[_Summary]) -> tuple[list[_Summary], list[_Summary]]:
    """Return the experiments that are only on this machine, and those on a broker.

    If an experiment is in both, the broker's values count. The copy on this machine adds values, such as the best one,
    that were not read from a long journal on the broker.
    """
    on_broker = {summary["name"]: summary for summary in remote}
    copies = {
        summary["name"]: summary
        for summary in here
        if summary["name"] in on_broker and _is_copy(summary, on_broker[summary["name"]])
    }
    return (
        [summary for summary in here if summary["name"] not in copies],
        [summary if "error" in summary else {**copies.get(summary["name"], {}), **summary} for summary in remote],
    )


def _is_copy(here: _Summary, remote: _Summary) -> bool:
    """Return whether an experiment here is a copy of the one with this name on the broker.

    If that one can't be read, each experiment here without its own server counts as a copy.
    """
    if "error" in remote:
        return "place" in here and not (Path(here["place"]) / SERVER_FOLDER).is_dir()
    return here.get("created_at") == remote.get("created_at")


def _labels(described: _Summary) -> Labels:
    return Labels(tuple(described.get("tags", ())), str(described.get("notes", "")))


def _print(described: list[_Summary]) -> None:
    rows = list(map(_cells, described))
    shown = [head not in _SELDOM or any(row[index] for row in rows) for index, head in enumerate(_HEADS)]
    shown[_HEADS.index("owner")] = has_others(map(owner_of, described))
    print_table(list(compress(_HEADS, shown)), (compress(row, shown) for row in rows))


def described_here(folder: Path) -> dict[str, object]:
    """Return a summary of an experiment in a folder. If it can't be read, ``error`` says why."""
    try:
        summary = _summary(folder)
    except (MqtuneError, OSError) as error:
        return {"name": folder.name, "place": str(folder), "error": str(error)}
    state = with_failures(state_of_folder(folder, summary["outcome"]), summary.get("statuses", {}))
    return {**summary, "name": folder.name, "state": state, "place": str(folder)}


def _described_on(url: str, most: float) -> list[_Summary]:
    """Return summaries of a broker's experiments.

    They are brief for journals with more than *most* entries. If an experiment can't be read, ``error`` says why.
    """
    summaries: list[_Summary] = []
    with client_of(url) as client:
        for experiment in client.experiments():
            try:
                if (state := experiment.state()) is not None:
                    summaries.append(described_there(state, url, client.place, most))
                elif (submitted := state_on(experiment.name, url)) is not None:
                    # The script has not begun the experiment yet, and may never do so.
                    summaries.append(_described_submission(experiment.name, submitted, client.place))
            except (BrokerUnavailable, AccessDenied):
                raise
            except MqtuneError as error:
                # Another program or version may have written it.
                summaries.append({"name": experiment.name, "place": client.place, "error": str(error)})
    return summaries


def _described_submission(name: str, state: SubmissionState, place: str) -> _Summary:
    owner, at = (NOBODY, state.began) if state.submission is None else (state.submission.owner, state.submission.at)
    plain = {"name": name, "outcome": "", "created_at": at, "owner": owner._asdict(), "metric": ""}
    return {**plain, "state": script_in_words(state), "place": place}


def described_there(state: ExperimentState, url: str, place: str, most: float = ENTRIES) -> _Summary:
    """Return a summary of an experiment on a broker.

    It is brief if the journal has more than *most* entries: for instance, it lacks the best value.
    """
    if state.entries <= most:
        with opened(Place(state.name, None, url)) as view:
            return described_experiment(view)
    plain = {"name": state.name, "outcome": state.outcome, "created_at": state.created_at}
    plain["owner"] = state.owner._asdict()
    return {**plain, "metric": state.metric, "state": state_text(state), "place": place}


def _print_broker(url: str, remote: list[_Summary], *, wanted: str) -> None:
    from mqtune.journal.server.connection import redact  # noqa: PLC0415 - as above

    of_these = f" with {wanted}" if wanted else ""
    click.echo(f"\non {printable(redact(url))}{':' if remote else f': no experiments{of_these}'}")
    if remote:
        _print(remote)
        click.echo("details: mqtune show --broker … NAME")


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _cells(summary: _Summary) -> list[str]:
    if "error" in summary:
        return [printable(summary["name"]), "", "", f"can't be read: {printable(summary['error'])}", "", "", "", ""]
    best, metric = summary.get("best"), printable(str(summary["metric"]))
    value = f"{metric}={short_value(best['value'])}" if best else "" if "best" in summary else metric
    if front := summary.get("pareto_front"):
        value = f"Pareto front: {len(front)}"
    tags = printable(", ".join(map(str, summary.get("tags", ()))))
    started, trials = _time(summary["created_at"]), str(summary.get("trials", ""))
    failed = str(summary.get("statuses", {}).get(TrialStatus.FAILED.value, ""))
    owner = printable(str(owner_of(summary)))
    return [printable(summary["name"]), owner, started, printable(summary["state"]), trials, failed, value, tags]


def _summary(folder: Path) -> _Summary:
    """Return the summary that the driver saved, or a new one if the journal is newer."""
    saved = folder / SUMMARY_FILE
    if saved.exists() and saved.stat().st_mtime_ns >= (folder / JOURNAL_FILE).stat().st_mtime_ns:
        # A malformed file, or one of another program, is ignored.
        with contextlib.suppress(ValueError):
            summary = json.loads(saved.read_text(encoding="utf-8"))
            if isinstance(summary, dict) and summary.keys() >= _NEEDED:
                return summary
    return Results.load(folder).summary()
