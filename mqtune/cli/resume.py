"""``mqtune resume``: continues an experiment without its script, or resumes paused trials of one that is driven."""

from __future__ import annotations

import click

from mqtune.cli.output import broker_option, json_option, output
from mqtune.cli.place import whole_name
from mqtune.cli.show import show_experiment
from mqtune.cli.steer import Choice, config_option, reason_option, steer_trials, timeout_option, trial_options
from mqtune.cli.terms import config_of
from mqtune.results.experiments import state_of_folder


@click.command("resume")
@trial_options
@broker_option("The Redis server that has the experiment; by default this machine's own.")
@click.option(
    "--max-trials", type=click.IntRange(min=1), help="Number of trials in all, of an experiment that is continued."
)
@config_option
@click.option(
    "--checkpoint", metavar="best|ID", help="Where trials go on from; by default from their newest checkpoint."
)
@reason_option
@timeout_option
@json_option
def command(
    name: str,
    broker: str | None,
    max_trials: int | None,
    configs: tuple[str, ...],
    checkpoint: str | None,
    *,
    as_json: bool,
    choice: Choice,
    reason: str,
    timeout_s: float,
) -> None:
    """Continue experiment NAME where its last driver stopped, or resume its paused trials TRIAL….

    Without trials, this process becomes the driver: after Ctrl-C, a crash or a power failure of the last one. Trials on a broker's
    workers keep running without a driver. An experiment with a scheduler, searcher or function of your own needs its script: run
    that again. The exit code is 130 after Ctrl-C, and 1 if no trial has a result.

    With trials, or --all, --where or --status, the experiment's driver is asked to resume them.
    """
    config = config_of(configs) or None
    if choice.trials or choice.by_rule:
        if max_trials is not None:
            raise click.UsageError("--max-trials is for an experiment that is continued; leave out the trials")
        how: dict[str, object] = {"config": config, "checkpoint": checkpoint, "reason": reason, "timeout_s": timeout_s}
        steer_trials("resume", name, broker, choice, how, as_json=as_json)
    elif config or checkpoint or as_json or reason:
        raise click.UsageError("--config, --checkpoint, --reason and --json are for trials: name them")
    else:
        _continue(name, broker, max_trials)


def _continue(name: str, broker: str | None, max_trials: int | None) -> None:
    from mqtune.tuner import Tuner  # noqa: PLC0415 - celery's import takes half a second, and --help needs none of it

    name = whole_name(name, broker)
    tuner = Tuner.attach(name, backend=broker, max_trials=max_trials)
    try:
        was_finished = tuner.is_finished
        results = tuner.run()
    finally:
        tuner.close()
    if was_finished:
        click.echo(f"experiment {name} is finished; give --max-trials to run more than its {len(results)} trials")
    show_experiment(
        output(), results, state_of_folder(results.folder, results.outcome), str(results.folder), show_all=False
    )
    results.raise_if_failed()
