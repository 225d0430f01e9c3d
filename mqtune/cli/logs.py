"""``mqtune logs``: prints a trial's output."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable

import click

from mqtune.cli.output import broker_option, json_option, say
from mqtune.cli.place import find_place, find_trial, name_argument, opened, trial_argument, whole_name
from mqtune.cli.terms import BEST
from mqtune.core.errors import ConfigurationError
from mqtune.core.submission import DRIVER
from mqtune.core.text import printable
from mqtune.results.results import json_text


@click.command("logs")
@name_argument
@trial_argument
@click.option("--stderr", is_flag=True, help="Print stderr instead of stdout.")
@click.option("--attempt", type=click.IntRange(min=1), help="Number of the attempt; by default the last.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the attempt has ended.")
@click.option(
    "--offset", type=int, default=0, metavar="BYTES", help="Bytes to skip; if negative, bytes to print from the end."
)
@broker_option("The Redis server that the workers use, for a trial that ran on another machine.")
@json_option
def command(
    name: str,
    trial: str,
    *,
    stderr: bool,
    attempt: int | None,
    follow: bool,
    offset: int,
    broker: str | None,
    as_json: bool,
) -> None:
    """Print the output of TRIAL of experiment NAME. driver as TRIAL means its submitted script.

    A trial over several machines has an output for each seat: 7 means seat 0, and 7~1 means seat 1. The output is read
    from a file on this machine or in a folder shared with the worker. Otherwise the worker sends it through the broker.
    In a terminal, control characters are escaped; elsewhere bytes are unchanged. --json prints an object, and with
    --follow one object per line.
    """
    from mqtune.results.logs import follow_driver, follow_log  # noqa: PLC0415 - --help needs none of it

    name, stream = whole_name(name, broker), "stderr" if stderr else "stdout"
    if trial == BEST:
        with opened(find_place(name, broker)) as view:
            trial = find_trial(view.results.experiment, trial)
    if trial == DRIVER:
        if stderr or attempt is not None:
            raise click.UsageError(
                "a submitted script has one output, which is its latest run's; leave out --stderr and --attempt"
            )
        pieces = follow_driver(name, _known_broker(name, broker), offset=offset, follow=follow)
    else:
        pieces = follow_log(
            name,
            trial,
            "stderr" if stderr else "stdout",
            attempt=attempt,
            offset=offset,
            follow=follow,
            broker=broker or None,
        )
    if as_json:
        number, mark, task = trial.partition("~")
        named = f"{number.zfill(4)}{mark}{task}" if number.isdecimal() else trial
        head = {"experiment": name, "trial": named, "stream": stream}
        texts = map(_decoder().decode, pieces)
        for text in texts if follow else ["".join(texts)]:
            say(json_text({**head, "text": text}))
        return
    if not print_output(pieces) and offset <= 0:
        # Otherwise a silent trial would look like a broken command.
        printer, hint = ("its script", "") if trial == DRIVER else (f"trial {trial}", _other_stream(stderr=stderr))
        click.echo(f"{printer} has printed nothing{hint}", err=True)


def _other_stream(*, stderr: bool) -> str:
    return " to stderr; leave out --stderr for its stdout" if stderr else " to stdout; its stderr: --stderr"


def print_output(pieces: Iterable[bytes]) -> bool:
    """Print output as it arrives. Return whether there was any."""
    decode, is_terminal, is_any = _decoder().decode, sys.stdout.isatty(), False
    for data in pieces:
        is_any = is_any or bool(data)
        click.echo(printable(decode(data)) if is_terminal else data, nl=False)
    return is_any


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


def _known_broker(name: str, broker: str | None) -> str:
    if not broker:
        raise ConfigurationError(
            f"the script submitted as {name!r} is on a broker; give its URL: --broker URL or $MQTUNE_BROKER"
        )
    return broker
