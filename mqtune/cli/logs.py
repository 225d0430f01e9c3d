"""``mqtune logs``: prints a trial's output, while it runs and afterwards, wherever its worker is."""

from __future__ import annotations

import codecs
import sys

import click

from mqtune.cli.output import broker_option
from mqtune.cli.place import name_argument, trial_argument, whole_name
from mqtune.core.text import printable


@click.command("logs")
@name_argument
@trial_argument
@click.option("--stderr", is_flag=True, help="Print stderr instead of stdout.")
@click.option("--attempt", type=click.IntRange(min=1), help="Number of the attempt; by default the last.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the attempt has ended.")
@click.option(
    "--offset",
    type=int,
    default=0,
    metavar="BYTES",
    help="Bytes to skip; if negative, bytes to print from the end.",
)
@broker_option("The Redis server that the workers use, for a trial that ran on another machine.")
def command(
    name: str, trial: str, *, stderr: bool, attempt: int | None, follow: bool, offset: int, broker: str | None
) -> None:
    """Print the output of TRIAL of experiment NAME.

    It is read from a file on this machine, from a folder shared with the worker, or from the worker through the broker. In a
    terminal, control characters are escaped; elsewhere the bytes are unchanged.
    """
    from mqtune.results.logs import follow_log  # noqa: PLC0415 - --help needs none of it

    is_terminal = sys.stdout.isatty()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for data in follow_log(
        whole_name(name, broker),
        trial,
        "stderr" if stderr else "stdout",
        attempt=attempt,
        offset=offset,
        follow=follow,
        broker=broker or None,
    ):
        click.echo(printable(decoder.decode(data)) if is_terminal else data, nl=False)
