"""Printing, questions, and options that commands share."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mqtune.core.errors import MqtuneError
from mqtune.core.text import printable
from mqtune.core.timing import Timing
from mqtune.results.results import json_text

_Command = TypeVar("_Command", bound=Callable[..., object])

#: The width of a table that is not printed to a terminal, in characters.
_FILE_WIDTH: Final = 240


def one_of(names: Callable[[], Sequence[str]]) -> dict[str, Any]:
    """Return the arguments of an option whose value is one of *names*.

    *names* is called only when the option is used or completed.
    """

    def check(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
        if value is not None and value not in (known := names()):
            raise click.BadParameter(f"{value!r} is not one of {', '.join(known)}")
        return value

    def complete(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return {"callback": check, "shell_complete": complete}


def broker_option(help: str, *, required: bool = False) -> Callable[[_Command], _Command]:  # noqa: A002 - as in click
    """Return the option --broker, with $MQTUNE_BROKER as its default."""
    return click.option(
        "--broker", metavar="URL", envvar="MQTUNE_BROKER", show_envvar=True, required=required, help=help
    )


def timing_of_command() -> Timing:
    """Return the timing with which the running command was started, or the default."""
    context = click.get_current_context(silent=True)
    return (context and context.find_object(Timing)) or Timing()


def json_option(command: Callable[..., object]) -> Callable[..., object]:
    """Add the option --json, passed as *as_json*."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def print_json(value: object) -> None:
    """Print one JSON document. NaN and infinities become texts."""
    say(json_text(value, indent=2))


def output() -> Console:
    """Return a console on standard output, without markup."""
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def say(text: str, *, nl: bool = True) -> None:
    """Print a text of a user's or a trial's. On a terminal, control characters are made visible."""
    # Without color=True, click would strip escape sequences from a text that goes to a file.
    click.echo(printable(text) if sys.stdout.isatty() else text, nl=nl, color=True)


@contextlib.contextmanager
def writing(path: Path, more: str = "") -> Iterator[None]:
    """Turn an OSError in the block into an error that names the written path, with *more* at the end.

    Raises:
        MqtuneError: the path can't be written.
    """
    try:
        yield
    except OSError as error:
        raise MqtuneError(f"{path} can't be written: {error}{more}") from error


#: Columns of numbers, columns that are cut, and columns omitted on narrow terminals.
_NUMBERS: Final = frozenset(
    {"trials", "attempts", "experiments", "failed", "busy", "slots", "workers", "waiting", "reports"}
    | {"GPU-hours", "slot-hours", "kWh", "waited"}
)
_CUT: Final = frozenset({"status", "config", "queue", "note", "tags"})
_WIDE: Final = frozenset({"started", "ran", "gpus", "devices"})
_NARROW: Final = 80


def print_table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table. Control characters in its cells must already be visible."""
    console = output()
    shown = [head not in _WIDE or console.width >= _NARROW for head in heads]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in compress(heads, shown):
        # In a narrow terminal, rich first shrinks columns that may wrap. Their cells are cut instead.
        justify: Literal["left", "right"] = "right" if head in _NUMBERS else "left"
        table.add_column(head, header_style="bold", no_wrap=head not in _CUT, justify=justify)
    for row in rows:
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in compress(row, shown)))
    console.print(table)


def is_wanted(parts: list[str], *, verb: str = "delete", dry_run: bool, yes: bool) -> bool:
    """Print the parts to delete or archive, and ask. Return whether the user agreed."""
    for part in parts:
        say(f"{f'would {verb}' if dry_run else verb}  {part}")
    question = "Really? This can't be undone" if verb == "delete" else "Really?"
    return not dry_run and is_confirmed(question, yes=yes)


def is_confirmed(question: str, *, yes: bool) -> bool:
    """Ask a yes-or-no question and return the answer. With *yes*, return True without asking.

    Raises:
        click.UsageError: there is no terminal to ask on.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("can't ask for confirmation without a terminal; pass --yes")
    # The question goes to standard error, as standard output is for results.
    return click.confirm(question, err=True)
