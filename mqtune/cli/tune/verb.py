"""The command ``mqtune tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mqtune.cli.output import broker_option, one_of, say
from mqtune.core.errors import RunInterrupted, SpaceError
from mqtune.core.text import printable
from mqtune.search.base import searcher_names


class _TuneCommand(click.Command):
    """A command whose error about an unknown option says where the program's own options go."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(
                f"{error.format_message()} The program and its options come last, after --: "
                "mqtune tune --max-trials 50 --minimize loss -- python train.py --lr '~loguniform(1e-5, 1e-1)'",
                ctx,
            ) from None


@click.command("tune", cls=_TuneCommand)
@click.argument("words", nargs=-1, metavar="[FILE] [-- PROGRAM [ARGUMENT]…]")
@click.option("--max-trials", type=click.IntRange(min=1), help="The number of trials. A grid's is known by default.")
@click.option("--minimize", multiple=True, metavar="METRIC", help="The metric that should be small; may be repeated.")
@click.option("--maximize", multiple=True, metavar="METRIC", help="The metric that should be large; may be repeated.")
@click.option(
    "--pattern",
    "patterns",
    multiple=True,
    metavar="REGEX",
    help="Read metrics from output that matches: 'epoch (?P<epoch>[0-9]+): loss (?P<loss>[^ ]+)'; may be repeated. By "
    "default, metrics are read from lines that are JSON objects.",
)
@click.option(
    "--step", metavar="METRIC", help="The metric that counts a trial's steps, by which ASHA stops bad trials."
)
@click.option("--max-t", type=click.FloatRange(min=0, min_open=True), help="The last step of a trial, for ASHA.")
@click.option(
    "--scheduler", metavar="TEXT", help="A scheduler instead of ASHA, as in a script: 'MedianStopping()' or 'FIFO()'."
)
@click.option(
    "--searcher", metavar="NAME", **one_of(searcher_names), help="The searcher; by default a model, or else random."
)
@click.option("--fixed", multiple=True, metavar="NAME=VALUE", help="Give a parameter one value; may be repeated.")
@click.option(
    "--env", "variables", multiple=True, metavar="NAME=VALUE", help="Set a variable in trials; may be repeated."
)
@click.option("--cpus", type=click.IntRange(min=1), default=1, show_default=True, help="CPU cores of each trial.")
@click.option(
    "--gpus", type=click.FloatRange(min=0), default=0, show_default=True, help="GPUs of each trial, such as 2 or 0.5."
)
@click.option("--max-concurrent", type=click.IntRange(min=1), help="The most trials that run at the same time.")
@click.option("--time-limit", metavar="TIME", help="Stop the experiment after this time, such as 90s, 30m or 2h.")
@click.option("--name", help="The experiment's name. By default the same command always has the same name.")
@click.option("--store", metavar="URL", help="A folder that all workers reach, for checkpoints of mqtune.report.")
@broker_option("The workers' Redis server; by default trials run on this machine.")
def command(
    words: tuple[str, ...], broker: str | None, store: str | None, max_concurrent: int | None, **options: Any
) -> None:
    """Tune an unchanged PROGRAM: write domains in place of values of its arguments.

    mqtune tune --max-trials 50 --minimize loss -- python train.py --lr '~loguniform(1e-5, 1e-1)'

    The same command continues the experiment. The run ends if the first three trials fail before any report. FILE is a
    sweep of Weights & Biases in YAML or JSON; options have precedence over it. Domains are the same as in scripts, such
    as '~choice(cnn, mlp)' and '~randint(1, 8)'. See docs/how-to/tune.md and docs/how-to/from-wandb.md.
    """
    from mqtune.cli.tune.plan import Options, Plan  # noqa: PLC0415 - --help needs none of it
    from mqtune.cli.tune.wandb_file import is_sweep_file, read_sweep  # noqa: PLC0415

    has_file = bool(words) and is_sweep_file(words[0])
    sweep = read_sweep(Path(words[0])) if has_file else None
    try:
        plan = Plan(words[1:] if has_file else words, Options(**options), sweep)
        arguments = plan.arguments()
    except SpaceError as error:
        raise click.UsageError(str(error)) from None
    for note in plan.notes:
        click.echo(f"mqtune: {printable(note)}", err=True)
    from mqtune.cli.tune.command_tuner import CommandTuner  # noqa: PLC0415 - as above
    from mqtune.driver.setup.options import Checkpoints, Process, RunOptions  # noqa: PLC0415

    tuner = CommandTuner(
        plan.metrics,
        **arguments,
        backend=broker or None,
        checkpoints=Checkpoints(store),
        # The unchanged program has no argument for a checkpoint's folder.
        process=Process(env=plan.env, pass_checkpoint_dir=False),
        run=RunOptions(max_concurrent=max_concurrent, notes=(sweep.notes or None) if sweep is not None else None),
    )
    try:
        results = tuner.run()
    except RunInterrupted:
        say("The same command continues the experiment, too.")
        raise
    if not tuner.has_stepped:
        say(
            f"experiment {results.name} is finished; for more trials, give --max-trials with more than its "
            f"{len(results)}; to start over: mqtune delete {results.name}"
        )
    say(f"look at it again: mqtune show {results.name}")
    results.raise_if_failed()
