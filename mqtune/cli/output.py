"""Output of commands, and the options that several of them have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, TypeVar

import click
from rich.console import Console

from mqtune.core.text import printable
from mqtune.results.results import json_text

_Command = TypeVar("_Command", bound=Callable[..., object])

#: The width of a table that is not printed to a terminal.
_FILE_WIDTH: Final = 240


def broker_option(help: str, *, required: bool = False) -> Callable[[_Command], _Command]:  # noqa: A002 - as in click
    """Return the option --broker, which $MQTUNE_BROKER stands in for."""
    return click.option(
        "--broker", metavar="URL", envvar="MQTUNE_BROKER", show_envvar=True, required=required, help=help
    )


def json_option(command: Callable[..., object]) -> Callable[..., object]:
    """Add the option --json, which arrives as *as_json*."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def print_json(value: object) -> None:
    """Print one JSON document; numbers that JSON has not are texts, such as "NaN"."""
    say(json_text(value, indent=2))


def output() -> Console:
    """Return a console on standard output that prints text as it is."""
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def say(text: str, *, nl: bool = True) -> None:
    """Print text of others: unchanged to a file or a pipe; on a terminal, with control characters made visible."""
    # click would strip some of it on the way into a file.
    click.echo(printable(text) if sys.stdout.isatty() else text, nl=nl, color=True)
