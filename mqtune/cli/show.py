"""``mqtune show``: shows an experiment or one of its trials."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mqtune.checkpoints import store_beside
from mqtune.checkpoints.registry import local_path
from mqtune.checkpoints.store import split_name, without_secrets
from mqtune.cli.conditions import Condition, condition_of, selected
from mqtune.cli.describe import described_experiment, described_trial
from mqtune.cli.machine_use import idle_warnings, sharing_of, usage_of, usage_text, use_text, uses_of, warning_of
from mqtune.cli.output import broker_option, json_option, output, print_json
from mqtune.cli.owners import has_others
from mqtune.cli.place import Place, complete_experiment, complete_trial, find_place, find_trial, newest_place, opened
from mqtune.cli.terms import STATUSES, in_order
from mqtune.core.errors import (
    BrokerUnavailable,
    CopyIncomplete,
    LogUnavailable,
)
from mqtune.core.experiment import Experiment
from mqtune.core.labels import Labels
from mqtune.core.machine import mqtune_home
from mqtune.core.text import counted, flatten, printable
from mqtune.core.trial import Attempt, AttemptEnd, Trial, is_in_memory
from mqtune.core.usage import LiveUse
from mqtune.journal.files.copy import JOURNAL_FILE
from mqtune.results.checkpoints import Which, checkpoint_of
from mqtune.results.display import best_text, counts_text, ranked, short_value, trial_table
from mqtune.results.experiments import duration
from mqtune.results.progress import deciders_of
from mqtune.results.results import Results, TrialResult

if TYPE_CHECKING:
    from mqtune.journal.exchange.logs import LogStream
    from mqtune.results.logs import AttemptOutput

#: Words for the ends of attempts whose names in the journal are less clear.
_ENDS: Final = {AttemptEnd.HANDED_BACK: "requeued"}
#: The most rows without --all.
_ROWS: Final = 10
#: The most lines of output that are shown, and the bytes that are read for them.
_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 16_000


@click.command("show")
@click.argument("name", required=False, shell_complete=complete_experiment)
@click.argument("trial", metavar="[TRIAL]", required=False, shell_complete=complete_trial)
@click.option("--all", "show_all", is_flag=True, help="Show all trials and all failures, not only the first ten.")
@click.option(
    "--status", "statuses", multiple=True, type=STATUSES, help="Only trials with this status; may be repeated."
)
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only trials with this tag; may be repeated.")
@click.option("--notes", default="", metavar="TEXT", help="Only trials with this text in their notes.")
@click.option(
    "--where",
    "wheres",
    multiple=True,
    metavar="CONDITION",
    help="Only trials that match, such as 'lr<0.1 or optimizer=sgd'.",
)
@click.option(
    "--sort",
    metavar="NAME",
    help="Sort by a metric (its best value comes first), a value of the config, or a column. By default the best "
    "trials come first.",
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--limit", type=click.IntRange(min=1), help="Show at most this many trials.")
@click.option("-f", "--follow", is_flag=True, help="Show the live table until the experiment has ended.")
@broker_option("Read from this Redis server. $MQTUNE_BROKER is used only for experiments that are not on this machine.")
@json_option
def command(
    name: str | None,
    trial: str | None,
    broker: str | None,
    statuses: tuple[str, ...],
    tags: tuple[str, ...],
    notes: str,
    wheres: tuple[str, ...],
    sort: str | None,
    limit: int | None,
    *,
    show_all: bool,
    reverse: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Show an experiment, by default the newest, and a table of its trials.

    NAME is its name or folder. With TRIAL, show that trial's attempts, its error and the end of its output. With
    --follow, Ctrl-C ends the command and not the experiment. Without a terminal, --follow prints a line every ten
    seconds; with --json, it prints a trial whenever its status changes.

    An experiment is read from the driver's copy on this machine, or from a broker. Only the broker knows how running
    trials use their machines.
    """
    asked = Selection(show_all, statuses, tags, notes, condition_of(wheres), sort, reverse, limit)
    if asked != BEST_TRIALS and (trial is not None or follow):
        raise click.UsageError("the table's options can't be combined with TRIAL or --follow; leave them out")
    if trial is not None and follow:
        raise click.UsageError(
            f"--follow shows the table; to follow a trial's output: mqtune logs {name} {trial} --follow"
        )
    place = newest_place(broker) if name is None else find_place(name, broker)
    if follow and _follow(place, as_json=as_json):
        return
    with opened(place) as view:
        results = view.results
        if trial is not None:
            result = results[find_trial(results.experiment, trial)]
            use = uses_of(place, [result.trial]).get(result.id)
            if as_json:
                print_json({**described_trial(result.trial, use), "best_checkpoint": _best_checkpoint(results, result)})
            else:
                _show_trial(output(), results, result, use, place)
        elif as_json:
            shown, _ = asked.trials(results.experiment)
            print_json({**described_experiment(view), "table": [described_trial(shown_trial) for shown_trial in shown]})
        else:
            warnings = idle_warnings(uses_of(place, results.experiment.trials.values()))
            show_experiment(output(), results, view.state, view.place, asked, warnings=warnings)


def _follow(place: Place, *, as_json: bool) -> bool:
    """Follow an experiment. Return False if that is impossible, but its folder can be shown.

    Its own server may have ended, or its copy may lack entries.
    """
    from mqtune.cli.following import follow  # noqa: PLC0415 - only this needs redis

    try:
        follow(place, as_json=as_json)
    except (BrokerUnavailable, CopyIncomplete):
        if place.folder is None:
            raise
        return False
    return True


class Selection(NamedTuple):
    """Options that say which trials the table shows, and in which order."""

    show_all: bool = False
    statuses: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    notes: str = ""
    condition: Condition | None = None
    sort: str | None = None
    reverse: bool = False
    limit: int | None = None

    @property
    def is_filter(self) -> bool:
        """Whether trials are selected by their status, labels or a condition."""
        return bool(self.statuses or self.tags or self.notes or self.condition)

    def trials(self, experiment: Experiment) -> tuple[list[Trial], int]:
        """Return the trials that the table shows, and the number of further ones.

        Raises:
            ConfigurationError: no trial has a value of a name in the condition or in --sort.
        """
        all_trials = ranked(experiment) if self.sort is None else experiment.trials.values()
        trials = [
            trial
            for trial in selected(all_trials, self.condition)
            if (not self.statuses or trial.status.value in self.statuses) and trial.labels.match(self.tags, self.notes)
        ]
        if self.sort is not None:
            trials = in_order(experiment, trials, self.sort, reverse=self.reverse)
        elif self.reverse:
            trials.reverse()
        limit = self.limit or (len(trials) if self.show_all or self.is_filter else _ROWS)
        return trials[:limit], len(trials[limit:])


BEST_TRIALS: Final = Selection()


def show_experiment(
    console: Console,
    results: Results,
    state: str,
    place: str,
    asked: Selection = BEST_TRIALS,
    *,
    warnings: Sequence[str] = (),
) -> None:
    """Print an experiment: state, place, warnings, and trials."""
    experiment = results.experiment
    # An error of the selection is raised before anything is printed.
    shown, more = asked.trials(experiment)
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(experiment.created_at))
    by = f" by {printable(str(experiment.owner))}" if has_others([experiment.owner]) else ""
    console.print(Text(printable(results.name), "bold"), f"· {state} · started {started}{by}")
    if experiment.reason:
        console.print(printable(experiment.reason), style="yellow")
    console.print(f"{counts_text(experiment)} · {counted(experiment.reports, 'report')} · {printable(place)}")
    console.print(printable(str(deciders_of(results.definition))))
    _show_labels(console, experiment.labels)
    if experiment.unreadable:
        console.print(
            f"{counted(experiment.unreadable, 'report')} can't be read and "
            f"{'is' if experiment.unreadable == 1 else 'are'} omitted",
            style="yellow",
        )
    for change in experiment.code_changes:
        console.print(
            f"after {change.trials} trials the code changed: {printable(', '.join(change.files))}", style="yellow"
        )
    for warning in warnings:
        console.print(warning, style="yellow")
    budget = results.budget
    if budget.saved:
        total = budget.used + budget.saved
        saved = f"{budget.saved:,.15g} of {total:,.15g} {budget.unit} ({budget.saved / total:.0%})"
        console.print(f"early stopping saved {saved}")
    if best := best_text(experiment):
        console.print(best, style="bold green", no_wrap=True, overflow="ellipsis")
    if asked.is_filter and not shown:
        console.print("\nno trial matches")
    if shown:
        console.print()
        console.print(trial_table(experiment, shown, width=console.width))
    if more:
        console.print(f"… and {more} more", style="dim")
    _show_failed(console, results, show_all=asked.show_all)
    console.print()
    if shown:
        console.print(f"one trial: mqtune show {results.name} {shown[0].id}", style="dim")
    console.print(f"as a file: mqtune export {results.name} -o trials.csv", style="dim")


def _show_labels(console: Console, labels: Labels) -> None:
    if labels.tags:
        console.print("tags:", printable(", ".join(labels.tags)))
    if labels.notes:
        console.print("notes:", printable(labels.notes))


def _show_failed(console: Console, results: Results, *, show_all: bool) -> None:
    failed = results.errors
    shown = failed if show_all else failed[:_ROWS]
    if shown:
        console.print("\nfailed", style="bold red")
    for result in shown:
        console.print(f"  {result.id}  {printable(result.reason)}")
    if len(failed) > len(shown):
        console.print(f"  … and {len(failed) - len(shown)} more", style="dim")


def _show_trial(console: Console, results: Results, result: TrialResult, use: LiveUse | None, place: Place) -> None:
    objective = results.experiment.objective
    best = f"best {printable(objective.metrics[0])}={short_value(result.value)}"
    if not objective.is_single:
        best = ", ".join(
            f"{printable(name)}={short_value(result.metrics.get(name, math.nan))}" for name in objective.metrics
        )
    why = f" ({printable(result.reason)})" if result.reason else ""
    console.print(Text(f"trial {result.id}", "bold"), f"of {results.name} · {result.status.name}{why}")
    late = f", {result.trial.late_reports} late" if result.trial.late_reports else ""
    console.print(f"{counted(result.trial.reports, 'report')}{late} · {best}")
    _show_labels(console, result.trial.labels)
    metrics_title = "metrics of its best report" if objective.is_single else "metrics of the report that is ranked"
    for title, values in (("config", result.config), (metrics_title, result.metrics)):
        if values:
            console.print(f"\n{title}", style="bold")
        for key, value in flatten(values):
            console.print(f"  {printable(key)} = {printable(repr(value))}")
    console.print("\nattempts", style="bold")
    console.print(_attempts_table(result.attempts, _now(results)))
    _show_checkpoint(console, results, result, place)
    _show_usage(console, result.attempts, use)
    if (asked := result.attempts[-1].resources if result.attempts else None) is not None:
        console.print(f"  needs {asked}")
    for attempt in result.attempts:
        if attempt.working_dir:
            console.print(Text(f"\nfolder of attempt {attempt.number}", "bold"), printable(attempt.working_dir))
    for attempt in result.attempts:
        if attempt.retired:
            console.print(f"\nthe process of attempt {attempt.number} was not reused: {printable(attempt.retired)}")
    for attempt in result.attempts:
        _show_output(console, results.name, result, attempt)


def _best_checkpoint(results: Results, result: TrialResult) -> dict[str, str | None] | None:
    """Return the id and place of a trial's best checkpoint, or None without checkpoints.

    With several metrics it is the newest one. A dict has no place.
    """
    id_ = checkpoint_of(results.experiment, result.trial, _which(results))
    if not id_:
        return None
    return {"id": id_, "place": None if is_in_memory(id_) else f"{_store_of(results)}/{id_}"}


def _which(results: Results) -> Which:
    return "best" if results.experiment.objective.is_single else "newest"


def _store_of(results: Results) -> str:
    """Return the folder or URL of an experiment's checkpoint store, without secrets."""
    place, _ = split_name(store_beside(results.definition.get("store", ""), results.folder))
    # It is not opened: that could import a package, or wait for a server.
    return local_path(place) or without_secrets(place)


def _show_checkpoint(console: Console, results: Results, result: TrialResult, place: Place) -> None:
    """Show a trial's best checkpoint, and the command that copies or prints it."""
    checkpoint, which = _best_checkpoint(results, result), _which(results)
    if checkpoint is None:
        return
    console.print(f"\n{which} checkpoint", style="bold")
    console.print(f"  {printable(checkpoint['place'] or checkpoint['id'] or '')}", soft_wrap=True)
    exported = "" if place.folder is not None else f"mqtune export {place.name} --format mqtune -o copy && "
    folder = "copy" if place.folder is None else str(place.folder)
    source = place.name if place.folder == mqtune_home() / place.name else folder
    got = f"mqtune.Results.load({source!r}).get_checkpoint({result.id!r}, {which!r}"
    copied = f"{got}, target='model')" if checkpoint["place"] else f"print({got}).data)"
    verb = "copy" if checkpoint["place"] else "print"
    console.print(f'  {verb} it: {exported}python -c "import mqtune; {copied}"', style="dim", soft_wrap=True)


def _now(results: Results) -> float:
    """Return the current time by the clock of the experiment's events.

    It may be another machine's clock. The time is the newest event's, plus the seconds since the journal's file was
    changed.
    """
    trials = results.experiment.trials.values()
    changed = [trial.history[-1].at for trial in trials]
    newest = max(results.experiment.created_at or 0.0, *changed, *(trial.last_timestamp for trial in trials))
    return newest + max(0.0, time.time() - (results.folder / JOURNAL_FILE).stat().st_mtime)


def _attempts_table(attempts: list[Attempt], now: float) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("", "worker", "devices", "process", "started", "ran", "end", "exit"):
        table.add_column(head, header_style="bold", no_wrap=True)
    for attempt in attempts:
        started, ended = attempt.started_at, attempt.ended_at
        left = f"code {attempt.exit_code}" if attempt.exit_code is not None else ""
        cells = (
            f"  {attempt.number}",
            printable(attempt.worker),
            ",".join(attempt.devices),
            str(attempt.pid or ""),
            "" if started is None else time.strftime("%H:%M:%S", time.localtime(started)),
            "" if started is None else duration(max(0.0, (now if ended is None else ended) - started)),
            "" if attempt.end is None else _ENDS.get(attempt.end, attempt.end.value),
            f"signal {attempt.signal}" if attempt.signal is not None else left,
        )
        table.add_row(*map(Text, cells))
        for task in attempt.further_tasks:
            table.add_row(f"    seat {task.number}", Text(printable(task.worker)), Text(",".join(task.devices)))
    return table


def _show_usage(console: Console, attempts: list[Attempt], use: LiveUse | None) -> None:
    title = "\nusage"
    for attempt in attempts:
        live = use if attempt is attempts[-1] else None
        lines = [(usage_text(usage_of(attempt, live)), "")]
        lines += [(f"now {use_text(live)}" if live is not None else "", ""), (sharing_of(attempt, live), "dim")]
        lines += [(warning_of(attempt, live), "yellow")]
        for line, style in lines:
            if line:
                console.print(title, style="bold") if title else None
                console.print(f"  {attempt.number}  {line}", style=style)
                title = ""


def _show_output(console: Console, name: str, result: TrialResult, attempt: Attempt) -> None:
    """Show an attempt's error. If it is the last attempt, show the end of its output, too."""
    if attempt.error:
        console.print(f"\nattempt {attempt.number}", style="bold red")
        console.print(printable(attempt.error.rstrip()))
    if attempt is not result.attempts[-1]:
        return
    from mqtune.results.logs import AttemptOutput  # noqa: PLC0415 - only this needs redis

    streams: list[tuple[LogStream, str]] = [("stdout", attempt.stdout_path), ("stderr", attempt.stderr_path)]
    for stream, path in streams:
        lines = _end_of(AttemptOutput(name, result.id, attempt, stream)).splitlines()[-_TAIL_LINES:]
        if lines:
            console.print(Text(f"\n{stream}", "bold"), printable(path))
        for line in lines:
            console.print(f"  {printable(line)}", soft_wrap=True)


def _end_of(printed: AttemptOutput) -> str:
    """Return the end of an attempt's output, from its file if that is here, or from the journal."""
    data = b""
    if printed.is_here:
        with contextlib.suppress(LogUnavailable):
            data = printed.chunk(-_TAIL_BYTES).data
    return (data or printed.tail).decode(errors="replace")
