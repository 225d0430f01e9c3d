"""Templates of a script's arguments, and patterns that find metrics in its output.

This module does no I/O.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mqtune.core.errors import ConfigurationError
from mqtune.trainable.json_reports import JSON_LINES, JsonReports

#: An item of a command: usually one word, or several that are left out together.
Item = tuple[str, ...]
#: A report read from a script's output.
Report = dict[str, int | float | str]

#: Limits of a command from a message: far more than a Linux command line needs.
_MOST_ITEMS: Final = 1_000
_MOST_CHARS: Final = 100_000
#: Limits of patterns from a message: enough for each metric of a program, and quick to compile.
_MOST_PATTERNS: Final = 32
_MOST_PATTERN_CHARS: Final = 1_000
#: Patterns are searched only in this many first characters of a line. An inefficient pattern would take minutes for a
#: line of a megabyte.
MATCHED_CHARS: Final = 10_000
#: The fields of an item that is repeated for each parameter.
_NAME: Final = "name"
_VALUE: Final = "value"
_EACH: Final = frozenset({_NAME, _VALUE})
_MODULE_OPTION: Final = "-m"
_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_BRACES: Final = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")
_FIELD: Final = re.compile(r"\{([^{}!:*]+)(\*)?(!json)?(?::(-.*?)(?:/(-.*))?)?\}")
_FORMS: Final = (
    "write {lr}, {value}, {layers*}, {value!json} or {amp:--amp}, and {{ or }} for a brace; see docs/how-to/tune.md"
)
_WHOLE_NUMBER: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)


class Script:
    r"""A program as a trainable, with its arguments, and patterns for metrics in its output.

    The program need not know mqtune: ``Script(["./train", "--{name}={value}"], metrics=r"val loss
    (?P<val_loss>\S+)")``. docs/how-to/tune.md has all forms of arguments.

    Args:
        command: the program and its arguments. The program is a path, such as ``./train`` or ``train.py``, or ``-m``
            and the name of a module below the current folder. If no argument has ``{…}``, the config follows as
            ``--name value``.
        metrics: a regular expression, or several, with a named group for each metric: ``(?P<val_loss>\S+)``. They are
            searched in each line of the program's output and errors. See docs/how-to/tune.md for several patterns.
            "json" reads lines that are JSON objects with the metric instead.

    Raises:
        ConfigurationError: an argument is an invalid template, or a pattern does not compile or has no named group.
    """

    __slots__ = ("items", "metrics", "module", "program")

    def __init__(self, command: Sequence[str | Sequence[str]], *, metrics: str | Sequence[str] = ()) -> None:
        items = _checked_items(command)
        #: Path of the program; empty for a module.
        self.program = ""
        #: Name of the module; empty for a path.
        self.module = ""
        begin = items[0]
        if begin == (_MODULE_OPTION,):
            if len(items) < 2 or len(items[1]) != 1 or not _MODULE.fullmatch(items[1][0]):  # noqa: PLR2004
                raise ConfigurationError(
                    f"command={command!r}: give a module's name after '-m', such as ['-m', 'package.train']"
                )
            self.module = items[1][0]
        elif len(begin) == 1:
            self.program = begin[0]
        else:
            raise ConfigurationError(f"command={command!r}: the first item is the program, such as './train'")
        #: The items after the program.
        self.items: tuple[Item, ...] = items[2:] if self.module else items[1:]
        #: The patterns.
        self.metrics: tuple[str, ...] = (metrics,) if isinstance(metrics, str) else _checked_texts("metrics", metrics)
        ArgumentTemplate(self.items)
        reader_of(self.metrics)
        if not are_items(self.items):
            raise ConfigurationError(
                f"command has more than {_MOST_ITEMS:,} items or {_MOST_CHARS:,} characters, or a NUL; have the "
                "program read a file"
            )

    def __repr__(self) -> str:
        command = [self.program] if self.program else [_MODULE_OPTION, self.module]
        items = [item[0] if len(item) == 1 else list(item) for item in self.items]
        return f"Script({[*command, *items]!r}, metrics={list(self.metrics)!r})"


def _checked_items(command: object) -> tuple[Item, ...]:
    if isinstance(command, str | os.PathLike):
        raise ConfigurationError(f"command={command!r}: give a list, [{str(command)!r}, '--{{name}}={{value}}']")
    if not isinstance(command, Sequence) or not command:
        raise ConfigurationError(f"command={command!r} is not a list of a program and its arguments")
    items = []
    for item in command:
        if isinstance(item, os.PathLike):
            item = os.fspath(item)  # noqa: PLW2901
        words = (item,) if isinstance(item, str) else _checked_texts("command", item)
        if not words:
            raise ConfigurationError(f"command={command!r} has an empty list")
        items.append(words)
    return tuple(items)


def _checked_texts(name: str, given: object) -> tuple[str, ...]:
    if isinstance(given, re.Pattern):
        raise ConfigurationError(f"{name}={given!r}: give the pattern as text, with flags in it, such as '(?i)loss'")
    texts = tuple(given) if isinstance(given, Sequence) else ()
    if not isinstance(given, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(f"{name}: {given!r} is neither text nor a list of texts")
    return texts


def are_items(given: object) -> bool:
    """Whether a value from a message has the form of a list of items.

    ``ArgumentTemplate`` checks more.
    """
    if not isinstance(given, list | tuple) or len(given) > _MOST_ITEMS:
        return False
    if not all(isinstance(item, list | tuple) and item for item in given):
        return False
    return _are_texts([word for item in given for word in item], _MOST_ITEMS, _MOST_CHARS)


def are_patterns(given: object) -> bool:
    """Whether a value from a message has the form of a list of patterns.

    They are not compiled.
    """
    return _are_texts(given, _MOST_PATTERNS, _MOST_PATTERNS * _MOST_PATTERN_CHARS)


def _are_texts(given: object, most: int, most_chars: int) -> bool:
    if not isinstance(given, list | tuple) or len(given) > most:
        return False
    return all(isinstance(text, str) and "\0" not in text for text in given) and sum(map(len, given)) <= most_chars


# Arguments.


def plain_arguments(config: Mapping[str, object]) -> list[str]:
    """Return a config as arguments ``--name value``.

    A value that begins with a dash is written as ``--name=value``. Text stays as it is, including spaces, quotes and
    newlines: there is no shell. Numbers, booleans and None are in Python's notation, and lists and dicts are JSON.

    Raises:
        ConfigurationError: a value can't be an argument.
    """
    arguments = []
    for name, value in config.items():
        text = _argument_text(name, value)
        # Python's argparse takes -1e-05, -inf and -O2 for options.
        arguments += [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
    return arguments


def _argument_text(name: str, value: object, *, as_json: bool = False) -> str:
    if as_json:
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = json.dumps(value) if isinstance(value, list | dict) else str(value)
    if isinstance(value, bytes) or "\0" in text:
        raise ConfigurationError(
            f"the config's {name!r} is {value!r}, which can't be an argument of a script; give text without NUL"
        )
    return text


@dataclass(frozen=True, slots=True)
class _Field:
    """One ``{…}`` in a word of a command.

    Attributes:
        name: name of a parameter; or "name" or "value", in an item that is repeated for each parameter.
        repeats: whether the word is repeated for each entry of a list.
        as_json: whether the value is written as JSON.
        flags: the words for True and False. Both are empty unless the field is a flag.
    """

    name: str
    repeats: bool
    as_json: bool
    flags: tuple[str, str]

    @property
    def is_flag(self) -> bool:
        return bool(self.flags[0])

    def text(self, value: object) -> str:
        return _argument_text(self.name, value, as_json=self.as_json)

    def flag(self, value: object) -> str:
        if value is None:
            return ""
        if not isinstance(value, bool):
            raise ConfigurationError(
                f"the config's {self.name!r} is {value!r}, and the flag {self.flags[0]} needs True, False or None; "
                "give mqtune.choice([True, False])"
            )
        return self.flags[not value]


@dataclass(frozen=True, slots=True)
class _Word:
    """One word of a command: texts and fields."""

    source: str
    parts: tuple[str | _Field, ...]

    @classmethod
    def of(cls, source: str) -> _Word:
        parts: list[str | _Field] = []
        end = 0
        for braces in _BRACES.finditer(source):
            parts.append(source[end : braces.start()])
            end = braces.end()
            brace = braces[0]
            if brace in ("{{", "}}"):
                parts.append(brace[0])
                continue
            field = _FIELD.fullmatch(brace)
            if field is None:
                raise ConfigurationError(f"the argument {source!r} has {brace!r}, which is no field: {_FORMS}")
            name, star, as_json, flag, other = field.groups()
            parts.append(_Field(name, star is not None, as_json is not None, (flag or "", other or "")))
        parts.append(source[end:])
        return cls(source, tuple(part for part in parts if part))

    @property
    def fields(self) -> list[_Field]:
        return [part for part in self.parts if isinstance(part, _Field)]

    @property
    def is_value(self) -> bool:
        """Whether it is one field without other text."""
        return len(self.parts) == len(self.fields) == 1

    def fill(self, values: Mapping[str, object]) -> Iterator[str]:
        """Yield the word filled with values: none for an absent flag, several for a repeated list."""
        if any(field.is_flag for field in self.fields):
            (flag,) = self.fields
            yield from filter(None, [flag.flag(values[flag.name])])
            return
        repeated = next((field.name for field in self.fields if field.repeats), None)
        value = None if repeated is None else values[repeated]
        for row in [{**values, repeated: item} for item in value] if repeated and isinstance(value, list) else [values]:
            yield "".join(part if isinstance(part, str) else part.text(row[part.name]) for part in self.parts)


@dataclass(frozen=True, slots=True)
class _WordGroup:
    """An item of a command: words that are left out together."""

    words: tuple[_Word, ...]

    @classmethod
    def of(cls, item: Item) -> _WordGroup:
        group = cls(tuple(map(_Word.of, item)))
        for word in group.words:
            fields = word.fields
            if sum(field.repeats for field in fields) > 1:
                raise ConfigurationError(f"the argument {word.source!r} repeats two lists; repeat one")
            for field in fields:
                if field.is_flag and (field.repeats or field.as_json or not word.is_value or len(item) > 1):
                    raise ConfigurationError(
                        f"the argument {list(item)!r} has a flag and more; make it an item of its own: "
                        f"'{{{field.name}:{field.flags[0]}}}'"
                    )
                if field.name in _EACH and field.is_flag:
                    raise ConfigurationError(
                        f"the argument {word.source!r} is a flag for each parameter; name its parameter: "
                        "'{amp:--amp}'"
                    )
                if field.name == _NAME and (field.repeats or field.as_json):
                    raise ConfigurationError(f"the argument {word.source!r}: a name is only written as {{name}}")
        return group

    @property
    def fields(self) -> list[_Field]:
        return [field for word in self.words for field in word.fields]

    @property
    def names(self) -> set[str]:
        return {field.name for field in self.fields}

    @property
    def is_for_each(self) -> bool:
        return bool(self.names & _EACH)

    def fill(self, values: Mapping[str, object]) -> list[str]:
        """Return the filled words of the item. A value None without JSON leaves all of them out."""
        if any(values[field.name] is None and not field.as_json for field in self.fields):
            return []
        return [text for word in self.words for text in word.fill(values)]


class ArgumentTemplate:
    """The arguments of a command, to be filled from a config.

    Args:
        items: the items after the program; see ``Script``.

    Raises:
        ConfigurationError: an item is an invalid template.
    """

    def __init__(self, items: Iterable[Item]) -> None:
        self._groups = list(map(_WordGroup.of, _joined(items)))
        for group in self._groups:
            if group.is_for_each and group.names != _EACH:
                source = [word.source for word in group.words]
                raise ConfigurationError(
                    f"the argument {source!r} is repeated for each parameter, and needs {{name}} and {{value}}, and no "
                    "other: write '--{name}={value}', or '--{name}', '{value}'"
                )
        self._named = {name for group in self._groups if not group.is_for_each for name in group.names}
        self._has_all = any(group.is_for_each for group in self._groups)

    @property
    def has_fields(self) -> bool:
        """Whether any item has a field such as ``{lr}``.

        If none has, ``fill`` adds the whole config as options after the items.
        """
        return self._has_all or bool(self._named)

    def check(self, names: Collection[str]) -> None:
        """Check that each parameter has an argument, and that each named parameter exists.

        Raises:
            ConfigurationError: a parameter has no argument, or an argument names a missing parameter.
        """
        if not self.has_fields:
            return
        if missing := sorted(self._named.difference(names)):
            raise ConfigurationError(
                f"the command of the script names {missing[0]!r}, and the parameters are {sorted(names)}; "
                f"take {{{missing[0]}}} out of it, or add it to the space"
            )
        if not self._has_all and (left := sorted(set(names).difference(self._named))):
            raise ConfigurationError(
                f"no argument of the script has the parameter {left[0]!r}; add one, such as "
                f"'--{left[0]}={{{left[0]}}}', "
                "or '--{name}={value}' for each parameter that no other names"
            )

    def fill(self, config: Mapping[str, object]) -> list[str]:
        """Return the arguments for a config.

        Raises:
            ConfigurationError: a parameter has no argument, a named one is missing, or a value can't be an argument.
        """
        self.check(config)
        words: list[str] = []
        before = ""
        for group in self._groups:
            if group.is_for_each:
                rows = [{_NAME: name, _VALUE: value} for name, value in config.items() if name not in self._named]
                filled = [word for row in rows for word in group.fill(row)]
            else:
                filled = group.fill(config)
                self._check_option(before, group, config)
            words += filled
            before = "" if group.fields else group.words[-1].source
        return words if self.has_fields else [*words, *plain_arguments(config)]

    @staticmethod
    def _check_option(before: str, group: _WordGroup, config: Mapping[str, object]) -> None:
        """Raise ConfigurationError if a value None would leave the option *before* without a value."""
        word = group.words[0]
        if not (before.startswith("-") and word.is_value):
            return
        (field,) = word.fields
        if config[field.name] is None and not field.is_flag and not field.as_json:
            source = word.source
            raise ConfigurationError(
                f"{source} is None, which would leave {before!r} without a value; write both as one list, "
                f"[{before!r}, {source!r}], and both are left out"
            )


def _joined(items: Iterable[Item]) -> list[Item]:
    """Join an item that is only a parameter's name with the next item, if that is only its value."""
    joined: list[Item] = []
    for item in items:
        before = joined[-1] if joined else ()
        if len(before) == 1 == len(item) and _names_in(before) == {_NAME} and _names_in(item) == {_VALUE}:
            joined[-1] = (*before, *item)
        else:
            joined.append(item)
    return joined


def _names_in(item: Item) -> set[str]:
    return {field.name for word in item for field in _Word.of(word).fields}


# Metrics.


class OutputPatterns:
    """Reads reports from the lines of one stream of output.

    With one pattern each matching line is a report. With several patterns, the newest value of each group is collected
    over lines. The collected values become a report when all groups have one, or when a group matches again and the
    optimised metrics are among them. At the end of the output, the remaining values are a report if they include these
    metrics.

    Args:
        patterns: regular expressions with named groups.
        metric: names of the optimised metrics.

    Raises:
        ConfigurationError: there are too many patterns, or one is too long, does not compile, or has no named group.
    """

    def __init__(self, patterns: Sequence[str], metric: Collection[str] = ()) -> None:
        if len(patterns) > _MOST_PATTERNS:
            raise ConfigurationError(f"metrics has {len(patterns)} patterns; give up to {_MOST_PATTERNS}")
        self._patterns = list(map(_compiled, patterns))
        self._groups = {name for pattern in self._patterns for name in pattern.groupindex}
        self._wanted = self._groups.intersection(metric)
        self._gathered: Report = {}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def read(self, line: str) -> Iterator[Report]:
        """Read a line. Yield a report if the line completes one."""
        report: Report = {}
        for pattern in self._patterns:
            if (match := pattern.search(line[:MATCHED_CHARS])) is not None:
                report |= {name: _value(text) for name, text in match.groupdict().items() if text is not None}
        if not report:
            return
        if len(self._patterns) == 1:
            yield report
            return
        if self._gathered.keys() & report.keys() and self._has_metric():
            yield self._gathered
            self._gathered = {}
        self._gathered |= report
        if self._gathered.keys() >= self._groups:
            yield self._gathered
            self._gathered = {}

    def finish(self) -> Iterator[Report]:
        """Yield the last report at the end of the output, if there is one."""
        if self._gathered and self._has_metric():
            yield self._gathered
        self._gathered = {}

    def _has_metric(self) -> bool:
        return self._gathered.keys() >= self._wanted


def reader_of(metrics: Sequence[str], metric: Collection[str] = ()) -> OutputPatterns | JsonReports:
    """Return the reader of reports in one stream of a script's output.

    Args:
        metrics: the ``metrics`` of the script.
        metric: names of the optimised metrics.

    Raises:
        ConfigurationError: as ``OutputPatterns``.
    """
    return JsonReports(metric) if tuple(metrics) == (JSON_LINES,) else OutputPatterns(metrics, metric)


def _compiled(pattern: str) -> re.Pattern[str]:
    shown = reprlib.repr(pattern)
    if len(pattern) > _MOST_PATTERN_CHARS:
        raise ConfigurationError(f"the pattern {shown} of metrics is longer than {_MOST_PATTERN_CHARS:,} characters")
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigurationError(f"the pattern {shown} of metrics is not a regular expression: {error}") from None
    if not compiled.groupindex:
        raise ConfigurationError(
            rf"the pattern {shown} of metrics names no metric; name its group, such as (?P<loss>\S+)"
        )
    return compiled


def _value(text: str) -> int | float | str:
    """Convert a matched text to a number, or return it as it is.

    nan and infinities are numbers. A whole number of more than 18 digits becomes a float.
    """
    stripped = text.strip()
    if _WHOLE_NUMBER.fullmatch(stripped):
        return int(stripped)
    try:
        # Only Python reads 1_000 as a number.
        return text if "_" in stripped else float(stripped)
    except ValueError:
        return text
