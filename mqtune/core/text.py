"""Text for people: configs and metrics in a few words, as a message must stay short, and streams that can show any text."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, Final

__all__ = ["in_words", "name_in_words", "names_in_words", "printable", "replace_unencodable"]

#: More would not be read, and would travel with each task and each heartbeat of it.
_MOST_CHARS: Final = 1_000
#: Names that a message names, and how much of each.
_MOST_NAMES: Final = 20
_NAME_CHARS: Final = 100


def printable(text: str) -> str:
    """Return *text* with what would steer a terminal made visible; lines and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def in_words(values: Mapping[str, Any]) -> str:
    """Return values on one line, such as ``lr=0.01 width=64``; of many, or of long ones, the beginning."""
    text = " ".join(_parts(values))
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"


def name_in_words(name: object) -> str:
    """Return a name as ``'a'``; of a long one, the beginning."""
    text = repr(name)
    return text if len(text) <= _NAME_CHARS else f"{text[: _NAME_CHARS - 1]}…"


def names_in_words(names: Collection[str]) -> str:
    """Return names as ``'a', 'b'``; of many, or of long ones, the beginning."""
    shown = ", ".join(map(name_in_words, islice(names, _MOST_NAMES)))
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown


def replace_unencodable(stream: object) -> None:
    """Have a text stream show a character that its encoding lacks, as ASCII lacks "·", as a question mark; no error is raised then."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="replace")


def _parts(values: Mapping[str, Any]) -> list[str]:
    parts, left = [], _MOST_CHARS
    for name, value in values.items():
        parts.append(f"{name}={_short(value)}")
        left -= len(parts[-1])
        if left < 0:
            break
    return parts


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    # A list of a million numbers must not be written out only to be cut.
    return str(value[:_MOST_CHARS] if isinstance(value, list | str | bytes) else value)
