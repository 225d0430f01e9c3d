"""The tables of pages that the code has.

docs/cli.md has a comment in the place of the verbs of a section, and of the causes of ``mqtune why``. The rows of
docs/reference/errors.md get the causes of errors, which are their docstrings.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

from mqtune.cli import CAUSES, SECTIONS, group
from mqtune.core import errors

_PLACE: Final = re.compile(r"^<!-- (verbs|causes)(?:: (\w+))? -->$", re.MULTILINE)


_ERROR: Final = re.compile(r"^\|(?: error | `(\w+)` |---)(?=\|)", re.MULTILINE)


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command of a line, such as ``fleet drain gpu@node7``, and its arguments."""
    context = group.make_context("mqtune", [], resilient_parsing=True)
    command: click.Command = group
    while isinstance(command, click.Group) and words and (found := command.get_command(context, words[0])) is not None:
        command, words = found, words[1:]
    return command, words


def with_tables(page: str) -> str:
    """Return the text of a page with a table in place of each comment."""
    return _PLACE.sub(lambda found: _table(found[2]) if found[1] == "verbs" else _causes(), page)


def with_causes(page: str) -> str:
    """Return the text of a page with a column for the causes of errors, behind their names."""
    return _ERROR.sub(lambda found: f"{found[0]}|{_cause(found)}", page)


def _cause(found: re.Match[str]) -> str:
    if found[1] is None:
        return "---" if "-" in found[0] else " cause "
    lines = inspect.cleandoc(getattr(errors, found[1]).__doc__).splitlines()
    return f" {lines[0]} "


def _table(section: str) -> str:
    return _lines(["verb", "purpose"], _verbs(section))


def _verbs(section: str) -> Iterator[list[str]]:
    for verb, text in SECTIONS[section].items():
        command, _ = find_command(verb.split())
        nested = command.subcommand_metavar if isinstance(command, click.Group) else ""
        pieces = command.collect_usage_pieces(click.Context(command))
        arguments = [piece for piece in pieces if piece not in ("[OPTIONS]", nested)]
        yield [f"`{' '.join([verb, *arguments])}`", text]


def _causes() -> str:
    rows = ([f"`{name}`", cause.meaning, cause.way_out] for name, cause in CAUSES.items())
    return _lines(["cause", "meaning", "way out"], rows)


def _lines(head: list[str], rows: Iterator[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"|{'|'.join(cells)}|" for cells in lines)
