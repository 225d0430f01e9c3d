"""``mqtune compare``: experiments side by side."""

from __future__ import annotations

import contextlib

import click

from mqtune.cli.describe import described_experiment
from mqtune.cli.output import broker_option, json_option, print_json, print_table
from mqtune.cli.place import View, complete_experiment, find_place, opened
from mqtune.core.text import printable
from mqtune.results.display import short_config, short_value
from mqtune.results.experiments import duration


@click.command("compare")
@click.argument("names", nargs=-1, required=True, metavar="NAME…", shell_complete=complete_experiment)
@broker_option("The Redis server that has the experiments that are not on this machine.")
@json_option
def command(names: tuple[str, ...], broker: str | None, *, as_json: bool) -> None:
    """Show experiments side by side: what each has found, and what that took."""
    with contextlib.ExitStack() as stack:
        views = [stack.enter_context(opened(find_place(name, broker))) for name in names]
        if as_json:
            print_json([described_experiment(view) for view in views])
            return
        print_table(("name", "status", "trials", "ran", "best", "trial", "config"), map(_row, views))


def _row(view: View) -> list[str]:
    experiment, best = view.results.experiment, view.results.experiment.best
    found = ["", "", ""]
    if best is not None:
        found = [f"{printable(experiment.metric)}={short_value(best.best_value)}", best.id, short_config(best.config)]
    elif front := experiment.pareto_front:
        found[0] = f"Pareto front: {len(front)}"
    return [printable(experiment.name), view.state, str(len(experiment.trials)), duration(experiment.run_s), *found]
