"""``mqtune trials``: the trials of an experiment, filtered and sorted."""

from __future__ import annotations

import click

from mqtune.cli.describe import described_trial
from mqtune.cli.output import broker_option, json_option, output, print_json
from mqtune.cli.place import find_place, name_argument, opened
from mqtune.cli.steer import STATUSES
from mqtune.cli.terms import conditions_of, in_order, selected
from mqtune.results.display import trial_table


@click.command("trials")
@name_argument
@click.option(
    "--status", "statuses", multiple=True, type=STATUSES, help="Only those with this status; may be repeated."
)
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only those with this tag; may be repeated.")
@click.option("--where", "wheres", multiple=True, metavar="CONDITION", help="Only those for which it holds: 'lr<0.1'.")
@click.option(
    "--sort", metavar="NAME", help="Sort by a metric, a value of the config, or a column; the best metric comes first."
)
@click.option("--reverse", is_flag=True, help="Sort the other way round.")
@click.option("--limit", type=click.IntRange(min=1), help="Show so many at most.")
@broker_option("The Redis server that has the experiment, unless it is on this machine.")
@json_option
def command(
    name: str,
    statuses: tuple[str, ...],
    tags: tuple[str, ...],
    wheres: tuple[str, ...],
    sort: str | None,
    broker: str | None,
    limit: int | None,
    *,
    reverse: bool,
    as_json: bool,
) -> None:
    """List the trials of an experiment, in the order in which they were begun."""
    if reverse and sort is None:
        raise click.UsageError("--reverse is for --sort")
    with opened(find_place(name, broker)) as view:
        experiment = view.results.experiment
        trials = selected(experiment.trials.values(), conditions_of(wheres))
        trials = [trial for trial in trials if not statuses or trial.status.value in statuses]
        trials = [trial for trial in trials if trial.labels.match(tags)]
        if sort is not None:
            trials = in_order(experiment, trials, sort, reverse=reverse)
        if as_json:
            print_json([described_trial(trial) for trial in trials[:limit]])
        elif trials:
            console = output()
            console.print(trial_table(experiment, trials[:limit], width=console.width))
        else:
            click.echo(f"no trial of {view.results.name} matches", err=True)
