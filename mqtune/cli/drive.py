"""``mqtune drive``: continues an experiment without its script."""

from __future__ import annotations

import logging

import click

from mqtune.cli.output import broker_option, output
from mqtune.cli.place import name_argument, whole_name
from mqtune.cli.show import show_experiment
from mqtune.core.json_lines import JsonLines, LogFormat
from mqtune.results.experiments import state_of_folder, with_failures


@click.command("drive")
@name_argument
@broker_option("The Redis server that has the experiment; by default its own, on this machine.")
@click.option("--max-trials", type=click.IntRange(min=1), help="Total number of trials to run.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar="MQTUNE_LOG_FORMAT",
    show_envvar=True,
    default="text",
    show_default=True,
    help="Log warnings as text, or as one JSON object per line.",
)
def command(name: str, broker: str | None, max_trials: int | None, log_format: LogFormat) -> None:
    """Continue experiment NAME where its last driver stopped, without its script.

    The last driver may have ended by Ctrl-C, a crash or a power failure. Trials on a broker's workers have kept running
    since. If the experiment uses your own scheduler, searcher or function, run its script again instead. The exit code
    is 130 after Ctrl-C, and 1 if no trial has a result or every trial failed.
    """
    from mqtune.tuner import Tuner  # noqa: PLC0415 - celery's import takes half a second, and --help needs none of it

    name = whole_name(name, broker)
    if log_format == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines(experiment=name))
        logging.basicConfig(handlers=[handler], level=logging.WARNING)
    tuner = Tuner.attach(name, backend=broker, max_trials=max_trials)
    try:
        was_finished = tuner.is_finished
        results = tuner.run()
    finally:
        tuner.close()
    if was_finished:
        click.echo(f"experiment {name} has finished; to run more than its {len(results)} trials, give --max-trials")
    state = with_failures(state_of_folder(results.folder, results.outcome), results.experiment.statuses)
    show_experiment(output(), results, state, str(results.folder))
    results.raise_if_failed()
