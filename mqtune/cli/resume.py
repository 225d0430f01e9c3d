"""``mqtune resume``: goes on with an experiment without its script."""

from __future__ import annotations

import click

from mqtune.cli.output import output
from mqtune.cli.show import show_experiment
from mqtune.results.experiments import state_of_folder

__all__ = ["command"]


@click.command("resume")
@click.argument("name")
@click.option(
    "--broker",
    envvar="MQTUNE_BROKER",
    help="The Redis that has the experiment; without one, this machine, where it ran alone. Rather than here, where others "
    "can read it, give a password in $MQTUNE_BROKER.",
)
@click.option("--max-trials", type=click.IntRange(min=1), help="How many trials there are to be in all.")
def command(name: str, broker: str | None, max_trials: int | None) -> None:
    """Go on with experiment NAME where its last driver left it, after Ctrl-C, a crash or a power cut.

    Trials that run on a broker's workers run on meanwhile. One with a scheduler, searcher or function of your own needs
    the script that began it: run that again. It ends with exit code 130 after Ctrl-C, and 1 when no trial has a result.
    """
    from mqtune.tuner import Tuner  # noqa: PLC0415 - celery's import takes half a second, and --help needs none of it

    tuner = Tuner.attach(name, backend=broker, max_trials=max_trials)
    try:
        was_finished = tuner.is_finished
        results = tuner.run()
    finally:
        tuner.close()
    if was_finished:
        click.echo(f"experiment {name} is finished; --max-trials goes on beyond its {len(results)} trials")
    show_experiment(
        output(), results, state_of_folder(results.folder, results.outcome), str(results.folder), show_all=False
    )
    results.raise_if_failed()
