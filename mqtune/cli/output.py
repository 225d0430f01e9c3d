"""Output of commands."""

from __future__ import annotations

import sys
from typing import Final

import click
from rich.console import Console

from mqtune.core.text import printable

__all__ = ["output", "say"]

#: The width of a table that is not printed to a terminal.
_FILE_WIDTH: Final = 240


def output() -> Console:
    """Return a console on standard output that prints text as it is."""
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def say(text: str, *, nl: bool = True) -> None:
    """Print text of others: unchanged to a file or a pipe; on a terminal, with control characters made visible."""
    # click would strip some of it on the way into a file.
    click.echo(printable(text) if sys.stdout.isatty() else text, nl=nl, color=True)
