"""``mqtune show``: an experiment or one of its trials, from this machine's copy or from its broker."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mqtune.cli.describe import described_experiment, described_trial
from mqtune.cli.output import broker_option, json_option, output, print_json, say
from mqtune.cli.place import Place, complete_experiment, complete_trial, find_place, find_trial, newest_place, opened
from mqtune.cli.usage import idle_warnings, sharing_of, usage_of, usage_text, use_text, uses_of, warning_of
from mqtune.core.errors import ConfigurationError
from mqtune.core.machine import end_of_file
from mqtune.core.text import counted, flatten, printable
from mqtune.core.trial import Attempt, Labels
from mqtune.core.usage import LiveUse
from mqtune.journal.copy import JOURNAL_FILE
from mqtune.results.display import best_text, counts_text, ranked, short_value, trial_table
from mqtune.results.experiments import duration
from mqtune.results.results import Results, TrialResult

#: The number of trials in the table, and of failed ones below it, without --all.
_ROWS: Final = 10
#: The number of lines of a trial's output that are shown, and of bytes of a file that are read to find them.
_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 16_000


@click.command("show")
@click.argument("name", required=False, shell_complete=complete_experiment)
@click.argument("trial_id", metavar="[TRIAL]", required=False, shell_complete=complete_trial)
@click.option("--trial", metavar="ID", help="The same as TRIAL.")
@click.option("--all", "show_all", is_flag=True, help="Show all trials, not only the best.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Show all trials with this tag; may be repeated.")
@click.option("--notes", default="", metavar="TEXT", help="Show all trials with this text in their notes.")
@click.option("--csv", "as_csv", is_flag=True, help="Print one row per trial as CSV.")
@click.option("--jsonl", "as_jsonl", is_flag=True, help="Print one object per report as JSON lines.")
@broker_option("Read from this Redis server. That of $MQTUNE_BROKER is used only for what is not on this machine.")
@json_option
def command(
    name: str | None,
    trial_id: str | None,
    trial: str | None,
    broker: str | None,
    tags: tuple[str, ...],
    notes: str,
    *,
    show_all: bool,
    as_csv: bool,
    as_jsonl: bool,
    as_json: bool,
) -> None:
    """Show an experiment that is running or has ended: NAME, or its folder; by default the newest.

    With TRIAL, one trial: its attempts, its error and the end of its output.

    It is read from the driver's copy on this machine, without a broker; or from a broker, on any machine. What a running trial uses
    of its machine is known to its broker alone.
    """
    if as_csv + as_jsonl + as_json > 1:
        raise click.UsageError(
            "--csv prints one row per trial and --jsonl one object per report; give only one of them, or --json"
        )
    trial = trial if trial_id is None else trial_id
    if (tags or notes) and (as_csv or as_jsonl or trial is not None):
        raise ConfigurationError("--tag and --notes filter the table; leave out --csv, --jsonl and --trial")
    place = newest_place(broker) if name is None else find_place(name, broker)
    with opened(place) as view:
        results = view.results
        found = None if trial is None else results[find_trial(results.experiment, trial)]
        if as_csv:
            say(results.csv(), nl=False)
        elif as_jsonl:
            for line in results.jsonl():
                say(line, nl=False)
        elif as_json:
            print_json(
                described_experiment(view) if found is None else described_trial(found.trial, _use(place, found))
            )
        elif found is not None:
            _show_trial(output(), results, found, _use(place, found))
        else:
            warnings = idle_warnings(uses_of(place, results.experiment.trials.values()))
            show_experiment(
                output(), results, view.state, view.place, show_all=show_all, tags=tags, notes=notes, warnings=warnings
            )


def _use(place: Place, found: TrialResult) -> LiveUse | None:
    return uses_of(place, [found.trial]).get(found.id)


# An experiment.


def show_experiment(
    console: Console,
    results: Results,
    state: str,
    place: str,
    *,
    show_all: bool,
    tags: tuple[str, ...] = (),
    notes: str = "",
    warnings: Sequence[str] = (),
) -> None:
    """Print an experiment: its state, its place, warnings, and its best trials, or all, or those with these labels."""
    experiment = results.experiment
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(experiment.created_at))
    console.print(Text(printable(results.name), "bold"), f"· {state} · started {started}")
    if experiment.reason:
        console.print(printable(experiment.reason), style="yellow")
    console.print(f"{counts_text(experiment)} · {counted(experiment.reports, 'report')} · {printable(place)}")
    _show_labels(console, experiment.labels)
    if experiment.unreadable:
        console.print(
            f"{counted(experiment.unreadable, 'report')} can't be read and {'is' if experiment.unreadable == 1 else 'are'} omitted",
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
        console.print(f"early stopping saved {budget.saved:g} of {total:g} iterations ({budget.saved / total:.0%})")
    if best := best_text(experiment):
        console.print(best, style="bold green", no_wrap=True, overflow="ellipsis")
    trials = [trial for trial in ranked(experiment) if trial.labels.match(tags, notes)]
    shown = trials if show_all or tags or notes else trials[:_ROWS]
    if (tags or notes) and not shown:
        console.print("\nno trial has these tags and notes")
    if shown:
        console.print()
        console.print(trial_table(experiment, shown, width=console.width))
    if len(trials) > len(shown):
        console.print(f"… and {len(trials) - len(shown)} more", style="dim")
    _show_failed(console, results, show_all=show_all)
    console.print()
    if trials:
        console.print(f"one trial: mqtune show {results.name} {trials[0].id}", style="dim")
    console.print(f"as a file: mqtune show {results.name} --csv", style="dim")


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


# A trial.


def _show_trial(console: Console, results: Results, result: TrialResult, use: LiveUse | None) -> None:
    objective = results.experiment.objective
    found = f"best {printable(objective.metrics[0])}={short_value(result.value)}"
    if not objective.is_single:
        found = ", ".join(
            f"{printable(name)}={short_value(result.metrics.get(name, math.nan))}" for name in objective.metrics
        )
    why = f" ({printable(result.reason)})" if result.reason else ""
    console.print(Text(f"trial {result.id}", "bold"), f"of {results.name} · {result.status.name}{why}")
    late = f", {result.trial.late_reports} late" if result.trial.late_reports else ""
    console.print(f"{counted(result.trial.reports, 'report')}{late} · {found}")
    _show_labels(console, result.trial.labels)
    at = "metrics at its best" if objective.is_single else "metrics of the report that counts"
    for title, values in (("config", result.config), (at, result.metrics)):
        if values:
            console.print(f"\n{title}", style="bold")
        for key, value in flatten(values):
            console.print(f"  {printable(key)} = {printable(repr(value))}")
    console.print("\nattempts", style="bold")
    console.print(_attempts_table(result.attempts, _now(results)))
    _show_usage(console, result.attempts, use)
    for attempt in result.attempts:
        if attempt.working_dir:
            console.print(Text(f"\nfolder of attempt {attempt.number}", "bold"), printable(attempt.working_dir))
    for attempt in result.attempts:
        if attempt.retired:
            console.print(
                f"\nthe process of attempt {attempt.number} took no other trial: {printable(attempt.retired)}"
            )
    for attempt in result.attempts:
        _show_output(console, attempt, last=attempt is result.attempts[-1])


def _now(results: Results) -> float:
    """Return the current time by the clock of the experiment's events, which need not be this machine's.

    It is the time of the newest event, and the time that has passed here since the journal was written.
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
            "" if attempt.end is None else attempt.end.value.replace("_", " "),
            f"signal {attempt.signal}" if attempt.signal is not None else left,
        )
        table.add_row(*map(Text, cells))
    return table


def _show_usage(console: Console, attempts: list[Attempt], use: LiveUse | None) -> None:
    """Show what each attempt used of its machine, the last one of which uses what *use* says."""
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


def _show_output(console: Console, attempt: Attempt, *, last: bool) -> None:
    """Show an attempt's error and, of the last one, the end of its output."""
    if attempt.error:
        console.print(f"\nattempt {attempt.number}", style="bold red")
        console.print(printable(attempt.error.rstrip()))
    if not last:
        return
    for name, path, tail in (
        ("stdout", attempt.stdout_path, attempt.stdout_tail),
        ("stderr", attempt.stderr_path, attempt.stderr_tail),
    ):
        lines = (_end_of(path) or tail).splitlines()[-_TAIL_LINES:]
        if lines:
            console.print(Text(f"\n{name}", "bold"), printable(path))
        for line in lines:
            console.print(f"  {printable(line)}", soft_wrap=True)


def _end_of(path: str) -> str:
    """Return the end of a file; nothing when it is on another machine."""
    with contextlib.suppress(OSError):
        return end_of_file(path, _TAIL_BYTES)
    return ""
