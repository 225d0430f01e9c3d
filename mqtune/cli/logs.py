"""``mqtune logs``: what a trial prints, while it runs and afterwards, wherever its worker is."""

from __future__ import annotations

import codecs
import sys

import click

from mqtune.results.display import printable

__all__ = ["command"]


@click.command("logs")
@click.argument("name")
@click.argument("trial")
@click.option("--stderr", is_flag=True, help="What it prints on stderr, and not on stdout.")
@click.option("--attempt", type=click.IntRange(min=1), help="Which of its attempts; by default the last.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the attempt has ended.")
@click.option(
    "--offset",
    type=int,
    default=0,
    metavar="BYTES",
    help="How many bytes to leave out; below 0, how many of the end to show.",
)
@click.option(
    "--broker",
    envvar="MQTUNE_BROKER",
    help="The Redis that the workers use, for a trial on another machine. Rather than here, where others can read it, give a "
    "password in $MQTUNE_BROKER.",
)
def command(
    name: str, trial: str, *, stderr: bool, attempt: int | None, follow: bool, offset: int, broker: str | None
) -> None:
    """Print what TRIAL of experiment NAME prints.

    It is read where it is: on this machine, in a folder that the worker shares with it, or over the broker from the
    machine of its worker. In a terminal, what would steer that is made visible; elsewhere the bytes are as they are.
    """
    from mqtune.results.logs import follow_log  # noqa: PLC0415 - --help needs none of it

    is_terminal = sys.stdout.isatty()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for data in follow_log(
        name,
        trial,
        "stderr" if stderr else "stdout",
        attempt=attempt,
        offset=offset,
        follow=follow,
        broker=broker or None,
    ):
        click.echo(printable(decoder.decode(data)) if is_terminal else data, nl=False)
