"""Text for people: short forms of values, safe streams, and errors on one line."""

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

#: Maximum length of values in words, which are sent with each task and each heartbeat.
_MOST_CHARS: Final = 1_000
#: Limits of names in a message: their number, and the length of each.
_MOST_NAMES: Final = 20
_NAME_CHARS: Final = 100


def printable(text: str) -> str:
    """Escape characters that would control a terminal, except line breaks and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


#: First characters of a spreadsheet formula, and the mark that prevents its evaluation.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_NO_FORMULA: Final = "'"
#: The classes of most values. None of them is a mapping.
_LEAVES: Final = frozenset({bool, float, int, str})


def cell_text(text: str) -> str:
    """Return *text* for a CSV cell, marked if a spreadsheet would evaluate it.

    This matters because a trial's error text may be a formula.
    """
    is_formula = text.lstrip(_NO_FORMULA).startswith(_FORMULA) and not _is_numeral(text)
    return f"{_NO_FORMULA}{text}" if is_formula else text


def text_of_cell(cell: str) -> str:
    """Return the text from which ``cell_text`` has made a cell."""
    text = cell.removeprefix(_NO_FORMULA)
    return text if cell_text(text) == cell else cell


def _is_numeral(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def flatten(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of a nested dict under names such as ``layers.width``.

    An empty dict is a value.
    """
    for key, value in values.items():
        # The first check is the fast way for most values.
        if value.__class__ not in _LEAVES and isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def put(tree: dict[str, Any], name: str, value: object, separator: str = ".") -> None:
    """Put a value under a name such as ``layers.width`` into a nested dict.

    Raises:
        ConfigurationError: a part of the name has a value that is not a dict.
    """
    *outer, last = name.split(separator)
    for key in outer:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise ConfigurationError(f"{name}: {key} has a value already, which is not a dict")
    tree[last] = value


def nested(values: Mapping[str, object], separator: str = ".") -> dict[str, Any]:
    """Return values under names such as ``layers.width`` as a nested dict.

    Raises:
        ConfigurationError: a part of a name has a value that is not a dict.
    """
    tree: dict[str, Any] = {}
    for name, value in values.items():
        put(tree, name, value, separator)
    return tree


def cell_value(text: str) -> object:
    """Return the value of a table cell: JSON, a known word, or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return text


#: Values that Python, pandas and R write as words into table cells.
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
    """Return values on one line, such as ``lr=0.01 width=64``, shortened if long."""
    text = " ".join(_parts(values))
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"


def name_in_words(name: object) -> str:
    """Return a name as ``'a'``, shortened if long."""
    text = repr(name)
    return text if len(text) <= _NAME_CHARS else f"{text[: _NAME_CHARS - 1]}…"


def counted(number: int, name: str) -> str:
    """Return a count with its noun, such as ``1 report`` or ``1,200 reports``."""
    return f"{number:,} {name if number == 1 else name + 's'}"


def names_in_words(names: Collection[str]) -> str:
    """Return names as ``'a', 'b'``, shortened if many or long."""
    shown = ", ".join(map(name_in_words, islice(names, _MOST_NAMES)))
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown


def there_are(names: Collection[str]) -> str:
    """Return "there are 'a', 'b'", for an error about an unknown name."""
    if not names:
        return "there are none"
    return f"there {'is' if len(names) == 1 else 'are'} {names_in_words(names)}"


def replace_unencodable(stream: object) -> None:
    """Make a text stream print "?" for characters that its encoding lacks.

    By default, printing "·" to an ASCII stream is an error.
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
    # Cut first: to write out a list of a million numbers takes long.
    return str(value[:_MOST_CHARS] if isinstance(value, list | str | bytes) else value)


_PACKAGE: Final = str(Path(__file__).parents[1])
_LIBRARY: Final = str(Path(os.__file__).parent)


def say_in_one_line() -> None:
    """Make mqtune's errors end a script with one line that names the script's line.

    If an error in a user's scheduler, searcher or rule is the cause, its traceback is printed first. Other errors, and
    those that the user's own code raises, keep their traceback. Nothing changes in Python's development mode (``python
    -X dev``), or if ``sys.excepthook`` was replaced.
    """
    if sys.excepthook is sys.__excepthook__ and not sys.flags.dev_mode:
        sys.excepthook = _print_error


def _script_frames(frames: Iterable[traceback.FrameSummary]) -> Iterator[traceback.FrameSummary]:
    """Yield the frames of a script, without those of mqtune and of the standard library.

    Code without a file counts as mqtune's if mqtune calls it.
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


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    frames = traceback.extract_tb(trace)
    own = list(_script_frames(frames))
    if not isinstance(error, MqtuneError) or not frames or frames[-1] in own:
        sys.__excepthook__(kind, error, trace)
        return
    if isinstance(error, UserCodeFailed) and error.__cause__ is not None:
        # Print where the user's scheduler, searcher or rule failed.
        cause = traceback.TracebackException.from_exception(error.__cause__)
        theirs = [frame for frame in cause.stack if not frame.filename.startswith(_PACKAGE)]
        cause.stack = traceback.StackSummary.from_list(theirs)
        print(*cause.format(), sep="", end="", file=sys.stderr)
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    print(f"mqtune: {kind.__name__}: {error}{place}", file=sys.stderr)
