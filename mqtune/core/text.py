"""Text for people: values in a few words, streams that can show any text, and errors on one line."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from mqtune.core.errors import ConfigurationError, MqtuneError, UserCodeFailed

#: The maximum length of such a text: it is sent with each task and each heartbeat.
_MOST_CHARS: Final = 1_000
#: Names that a message names, and how much of each.
_MOST_NAMES: Final = 20
_NAME_CHARS: Final = 100


def printable(text: str) -> str:
    """Return *text* with what would steer a terminal made visible; lines and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


#: What a text begins with that a spreadsheet takes for a formula, and the mark before it that says that it is none.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_NO_FORMULA: Final = "'"


def cell_text(text: str) -> str:
    """Return *text* for a cell of a CSV file, marked where a spreadsheet would run it.

    An error of a trial may be a formula.
    """
    is_formula = text.lstrip(_NO_FORMULA).startswith(_FORMULA) and not _is_numeral(text)
    return f"{_NO_FORMULA}{text}" if is_formula else text


def text_of_cell(cell: str) -> str:
    """Return the text that ``cell_text`` has made a cell of."""
    text = cell.removeprefix(_NO_FORMULA)
    return text if cell_text(text) == cell else cell


def _is_numeral(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def flatten(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of a nested dict under names such as ``layers.width``; an empty dict is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def put(tree: dict[str, Any], name: str, value: object, separator: str = ".") -> None:
    """Put a value under a name such as ``layers.width`` into a nested dict.

    Raises:
        ConfigurationError: a part of the name has a value that is no dict.
    """
    *outer, last = name.split(separator)
    for key in outer:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise ConfigurationError(f"{name}: {key} has a value of its own")
    tree[last] = value


def nested(values: Mapping[str, object], separator: str = ".") -> dict[str, Any]:
    """Return values under names such as ``layers.width`` as the nested dict that they stand for.

    Raises:
        ConfigurationError: a part of a name has a value of its own.
    """
    tree: dict[str, Any] = {}
    for name, value in values.items():
        put(tree, name, value, separator)
    return tree


def cell_value(text: str) -> object:
    """Return what a cell of a table holds: JSON, a value as Python writes it, or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return text


#: Values as Python, pandas and R write them.
_WORDS: Final = {
    "True": True,
    "False": False,
    "TRUE": True,
    "FALSE": False,
    "None": None,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
}


def in_words(values: Mapping[str, object]) -> str:
    """Return values on one line, such as ``lr=0.01 width=64``; of many, or of long ones, the beginning."""
    text = " ".join(_parts(values))
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"


def name_in_words(name: object) -> str:
    """Return a name as ``'a'``; of a long one, the beginning."""
    text = repr(name)
    return text if len(text) <= _NAME_CHARS else f"{text[: _NAME_CHARS - 1]}…"


def counted(number: int, name: str) -> str:
    """Return a number of things, such as ``1 report`` or ``1,200 reports``."""
    return f"{number:,} {name if number == 1 else name + 's'}"


def names_in_words(names: Collection[str]) -> str:
    """Return names as ``'a', 'b'``; of many, or of long ones, the beginning."""
    shown = ", ".join(map(name_in_words, islice(names, _MOST_NAMES)))
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown


def there_are(names: Collection[str]) -> str:
    """Return which there are, for an error about a name that is none of them."""
    if not names:
        return "there are none"
    return f"there {'is' if len(names) == 1 else 'are'} {names_in_words(names)}"


def replace_unencodable(stream: object) -> None:
    """Have a text stream show a character that its encoding lacks, as ASCII lacks "·", as a question mark.

    No error is raised then.
    """
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="replace")


def _parts(values: Mapping[str, object]) -> list[str]:
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


_PACKAGE: Final = str(Path(__file__).parents[1])
_LIBRARY: Final = str(Path(os.__file__).parent)


def say_in_one_line() -> None:
    """Have errors that mqtune raises on purpose end a script with one line, which names where in the script it was.

    Before it stands the traceback of what a scheduler, searcher or rule of the user's raised, if that is the cause.

    Other errors, and those that user code raised, keep their traceback. Nothing changes in Python's development mode
    (``python -X dev``), nor where somebody has another hook.
    """
    if sys.excepthook is sys.__excepthook__ and not sys.flags.dev_mode:
        sys.excepthook = _show


def _own(frames: Iterable[traceback.FrameSummary]) -> Iterator[traceback.FrameSummary]:
    """Yield the frames of a script.

    The standard library's are nobody's, nor are those of code without a file that mqtune has called.
    """
    is_mqtune = False
    for frame in frames:
        name = frame.filename
        if name.startswith(_PACKAGE):
            is_mqtune = True
        elif (name.startswith(_LIBRARY) and "site-packages" not in name) or (is_mqtune and name.startswith("<")):
            continue
        else:
            is_mqtune = False
            yield frame


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    frames = traceback.extract_tb(trace)
    own = list(_own(frames))
    if not isinstance(error, MqtuneError) or not frames or frames[-1] in own:
        sys.__excepthook__(kind, error, trace)
        return
    if isinstance(error, UserCodeFailed) and error.__cause__ is not None:
        # Where in the user's scheduler, searcher or rule it was.
        cause = traceback.TracebackException.from_exception(error.__cause__)
        theirs = [frame for frame in cause.stack if not frame.filename.startswith(_PACKAGE)]
        cause.stack = traceback.StackSummary.from_list(theirs)
        print(*cause.format(), sep="", end="", file=sys.stderr)
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    print(f"mqtune: {kind.__name__}: {error}{place}", file=sys.stderr)
