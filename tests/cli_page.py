"""The tables of docs/cli.md: the verbs with their arguments, and the causes of ``mqtune why``.

    python tests/cli_page.py

writes the tables of the page anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from mqtune.cli import CAUSES, SECTIONS, group

__all__ = ["PAGE", "find_command", "with_tables"]

PAGE: Final = Path(__file__).parents[1] / "docs" / "cli.md"
_HEADING: Final = re.compile(r"^## (.*)$", re.MULTILINE)


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command of a line, such as ``fleet drain gpu@node7``, and its arguments."""
    context = group.make_context("mqtune", [], resilient_parsing=True)
    command: click.Command = group
    while isinstance(command, click.Group) and words and (found := command.get_command(context, words[0])) is not None:
        command, words = found, words[1:]
    return command, words


def with_tables(page: str) -> str:
    """Return the text of a page with its tables as the code has them."""
    return "".join(map(_with_table, re.split(r"^(?=## )", page, flags=re.MULTILINE)))


def _with_table(part: str) -> str:
    """Replace the rows of the first table of a section that the code has; its head stays."""
    heading = _HEADING.match(part)
    rows = [*_rows(heading[1])] if heading is not None else []
    if not rows:
        return part
    lines = "".join(f"|{'|'.join(cells)}|\n" for cells in rows)
    return re.sub(r"^(\|(?:-+\|)+\n)(?:\|.*\n)*", lambda found: found[1] + lines, part, count=1, flags=re.MULTILINE)


def _rows(section: str) -> Iterator[list[str]]:
    for verb, text in SECTIONS.get(section, {}).items():
        command, _ = find_command(verb.split())
        pieces = command.collect_usage_pieces(click.Context(command))
        arguments = [
            piece
            for piece in pieces
            if piece not in ("[OPTIONS]", command.subcommand_metavar if isinstance(command, click.Group) else "")
        ]
        yield [f"`{' '.join([verb, *arguments])}`".replace("|", "\\|"), text]
    if section == "Causes":
        for name, cause in CAUSES.items():
            yield [f"`{name}`", cause.meaning]


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
