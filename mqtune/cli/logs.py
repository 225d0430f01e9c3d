"""``mqtune logs``: prints a trial's output, while it runs and afterwards, wherever its worker is."""

from __future__ import annotations

import codecs
import sys

import click

from mqtune.results.display import printable

__all__ = ["command"]


@click.command("logs")
@click.argument("name")
@click.argument("trial")
@click.option("--stderr", is_flag=True, help="Print stderr instead of stdout.")
@click.option("--attempt", type=click.IntRange(min=1), help="The attempt's number; by default the last.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the attempt has ended.")
@click.option(
    "--offset",
    type=int,
    default=0,
    metavar="BYTES",
    help="The number of bytes to skip; if negative, the number of bytes at the end to show.",
)
@click.option(
    "--broker",
    envvar="MQTUNE_BROKER",
    help="The Redis that the workers use, for a trial on another machine. Give a password in $MQTUNE_BROKER rather than here, "
    "where others can read it.",
)
def command(
    name: str, trial: str, *, stderr: bool, attempt: int | None, follow: bool, offset: int, broker: str | None
) -> None:
    """Print the output of TRIAL of experiment NAME.

    It is read on this machine, in a folder that the worker shares with it, or over the broker from its worker. In a
    terminal, control characters are made visible; elsewhere the bytes are unchanged.
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
