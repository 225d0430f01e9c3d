"""The conditions of ``--where`` and of the live page's filter.

A condition compares a name with a value (``lr<0.1``). ``and``, ``or``, ``not`` and parentheses combine conditions. A
Pratt parser reads them. Its errors point at the wrong character.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import click

from mqtune.cli.terms import ABSENT, check_known, value_in, value_of
from mqtune.core.errors import ConfigurationError
from mqtune.core.text import flatten
from mqtune.core.trial import Trial, is_number
from mqtune.results.display import short_value

_OPERATORS: Final[dict[str, Callable[..., bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_ORDERS: Final = frozenset({"<", "<=", ">", ">="})
#: Double-quoted texts have JSON's escapes, single-quoted ones none. Words have no characters of operators.
_TOKEN: Final = re.compile(
    r"""(?P<compare><=|>=|!=|==|=|<|>)|(?P<and>&&)|(?P<or>\|\|)|(?P<open>\()|(?P<close>\))"""
    r"""|(?P<quoted>"(?:[^"\\]|\\.)*"|'[^']*')|(?P<word>[\w.+\-/@:]+)""",
    re.DOTALL,
)
_KEYWORDS: Final = frozenset({"and", "or", "not"})
#: How closely operators bind: a larger number binds more closely.
_POWERS: Final = {"or": 1, "and": 2}
_NOT_POWER: Final = 3
#: The deepest nesting, far below Python's own limit of recursion.
_DEEPEST: Final = 50
_JSON: Final = json.JSONDecoder()


class Comparison(NamedTuple):
    """A comparison of a trial's column, parameter or metric with a value."""

    name: str
    operator: str
    value: object

    def check(self, values: Sequence[object]) -> None:
        """Check that the comparison does not order numbers, *values*, relative to a text.

        Raises:
            ConfigurationError: it does.
        """
        if self.operator in _ORDERS and isinstance(self.value, str) and values and all(map(is_number, values)):
            raise ConfigurationError(
                f"'{self.name}{self.operator}{self.value}' compares numbers with a text; give a number, such as "
                f"'{self.name}{self.operator}{short_value(values[0])}'"
            )

    def holds(self, left: object) -> bool:
        """Return whether the comparison holds for *left*."""
        right = self.value
        if is_number(left) != is_number(right) or isinstance(left, str) != isinstance(right, str):
            # A user may write the option "8" as 8. Values of other types are compared as texts, without an order.
            left, right = str(left), str(right)
            if self.operator in _ORDERS:
                return False
        try:
            return bool(_OPERATORS[self.operator](left, right))
        except TypeError:
            return False


class TextSearch(NamedTuple):
    """A search for a text in a trial's id, status, config, worker, labels and reason."""

    text: str


class Not(NamedTuple):
    """A negated condition."""

    operand: Condition


class And(NamedTuple):
    """Conditions that must all hold."""

    operands: tuple[Condition, ...]


class Or(NamedTuple):
    """Conditions of which at least one must hold."""

    operands: tuple[Condition, ...]


Condition: TypeAlias = Comparison | TextSearch | Not | And | Or


def condition_of(texts: Iterable[str]) -> Condition | None:
    """Join texts such as ``lr<0.1 and width>=64`` by "and". Return None without texts.

    Raises:
        click.UsageError: a text is not a condition.
    """
    conditions = [_Parser(text, has_searches=False).parse() for text in texts]
    return _joined("and", conditions) if conditions else None


def filter_of(text: str) -> Condition:
    """Return the condition of a filter on the live page, such as ``adam and lr<0.1``.

    A trial meets a word that is not part of a comparison if one of its texts contains the word.

    Raises:
        click.UsageError: the text is not a condition.
    """
    return _Parser(text, has_searches=True).parse()


class _Token(NamedTuple):
    kind: str
    value: object
    begin: int
    end: int


class _Parser:
    def __init__(self, text: str, *, has_searches: bool) -> None:
        self._text = text
        self._has_searches = has_searches
        self._tokens = self._split()
        self._next = 0
        self._depth = 0

    def parse(self) -> Condition:
        condition = self._expression(0)
        if self._peek().kind != "end":
            raise self._unexpected("expected 'and', 'or' or the end")
        return condition

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        ends = len(self._text.rstrip())
        position = 0
        while position < ends:
            if self._text[position].isspace():
                position += 1
                continue
            tokens.append(self._token_at(position))
            position = tokens[-1].end
        return [*tokens, _Token("end", None, len(self._text), len(self._text))]

    def _token_at(self, position: int) -> _Token:
        char = self._text[position]
        if char in "[{":
            try:
                decoded, end = _JSON.raw_decode(self._text, position)
            except (ValueError, RecursionError):
                raise self._error("this is not a JSON list or object", position) from None
            return _Token("json", decoded, position, end)
        match = _TOKEN.match(self._text, position)
        if match is None and char in "\"'":
            raise self._error("this quote is not closed", position)
        if match is None:
            raise self._error(f"{char!r} has no meaning here; put it in quotes if it belongs to a text", position)
        kind, text = str(match.lastgroup), match.group()
        if kind == "word" and text.lower() in _KEYWORDS:
            kind = text.lower()
        value: object = text
        if kind == "quoted":
            try:
                value = json.loads(text, strict=False) if char == '"' else text[1:-1]
            except ValueError:
                raise self._error("a backslash in double quotes is written twice", position) from None
        return _Token(kind, value, position, match.end())

    def _peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _next_token(self) -> _Token:
        token = self._peek()
        self._next += 1
        return token

    def _expression(self, power: int) -> Condition:
        """Parse an operand, and the operators after it that bind more closely than *power*."""
        left = self._operand()
        while _POWERS.get(kind := self._peek().kind, 0) > power:
            self._next_token()
            left = _joined(kind, [left, self._expression(_POWERS[kind])])
        return left

    def _operand(self) -> Condition:
        token = self._peek()
        if token.kind in ("not", "open"):
            self._next_token()
            self._depth += 1
            if self._depth > _DEEPEST:
                raise self._error("this is nested too deeply", token.begin)
            inner = self._expression(_NOT_POWER if token.kind == "not" else 0)
            self._depth -= 1
            if token.kind == "not":
                return Not(inner)
            if self._peek().kind != "close":
                raise self._unexpected("expected 'and', 'or' or ')'")
            self._next_token()
            return inner
        if token.kind not in ("word", "quoted"):
            raise self._unexpected("expected a condition such as 'lr<0.1'")
        if self._has_searches and self._peek(1).kind != "compare":
            return self._search()
        return self._comparison()

    def _comparison(self) -> Comparison:
        name = self._next_token()
        if self._peek().kind != "compare":
            raise self._unexpected(f"expected <, <=, >, >=, = or != after {self._shown(name)}")
        sign = self._next_token()
        value = self._peek()
        if value.kind not in ("word", "quoted", "json"):
            raise self._unexpected(f"expected a value after {self._shown(sign)}")
        self._next_token()
        return Comparison(
            str(name.value), str(sign.value), value_of(str(value.value)) if value.kind == "word" else value.value
        )

    def _search(self) -> TextSearch:
        first = last = self._next_token()
        while first.kind == last.kind == self._peek().kind == "word" and self._peek(1).kind != "compare":
            last = self._next_token()
        text = str(first.value) if first.kind == "quoted" else self._text[first.begin : last.end]
        return TextSearch(text.casefold())

    def _shown(self, token: _Token) -> str:
        return "the end" if token.kind == "end" else f"'{self._text[token.begin : token.end]}'"

    def _unexpected(self, expected: str) -> click.UsageError:
        token = self._peek()
        return self._error(f"{expected}, found {self._shown(token)}", token.begin)

    def _error(self, reason: str, position: int) -> click.UsageError:
        # The mark below must stand under its character, so each takes one column.
        shown = "".join(char if char.isprintable() else " " for char in self._text)
        return click.UsageError(f"not a condition: {reason}\n  {shown}\n  {' ' * position}^")


def _joined(word: str, conditions: Sequence[Condition]) -> Condition:
    """Join conditions by "and" or "or". A chain of the same word becomes one condition."""
    kind = And if word == "and" else Or
    operands: list[Condition] = []
    for condition in conditions:
        operands += condition.operands if isinstance(condition, kind) else [condition]
    return operands[0] if len(operands) == 1 else kind(tuple(operands))


def selected(trials: Iterable[Trial], condition: Condition | None) -> list[Trial]:
    """Return the trials that meet a condition, or all if it is None.

    A trial without a compared value meets neither the comparison nor its opposite.

    Raises:
        ConfigurationError: no trial has a value of a compared name, or numbers are compared with a text.
    """
    all_trials = list(trials)
    if condition is None:
        return all_trials
    return [trial for trial, is_true in zip(all_trials, _verdicts(condition, all_trials), strict=True) if is_true]


def _verdicts(condition: Condition, trials: Sequence[Trial]) -> list[bool | None]:
    """Return whether each trial meets the condition, or None if it lacks a value."""
    match condition:
        case Comparison(name):
            values = [value_in(trial, name) for trial in trials]
            present = [value for value in values if value is not ABSENT]
            check_known(name, trials, present)
            condition.check(present)
            return [None if value is ABSENT else condition.holds(value) for value in values]
        case TextSearch(text):
            return [text in _text_of(trial) for trial in trials]
        case Not(operand):
            return [None if verdict is None else not verdict for verdict in _verdicts(operand, trials)]
        case And(operands) | Or(operands):
            decisive = isinstance(condition, Or)
            rows = zip(*(_verdicts(operand, trials) for operand in operands), strict=True)
            return [decisive if decisive in row else None if None in row else not decisive for row in rows]


def _text_of(trial: Trial) -> str:
    config = " ".join(f"{name}={short_value(value)}" for name, value in flatten(trial.config))
    worker = trial.attempts[-1].worker if trial.attempts else ""
    labels = " ".join((*trial.labels.tags, trial.labels.notes))
    return f"{trial.id} {trial.status.value.replace('_', ' ')} {config} {worker} {labels} {trial.reason}".casefold()
