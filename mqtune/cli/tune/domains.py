"""Domains of a search space that are written as texts, such as ``loguniform(1e-5, 1e-1)``.

A text is parsed and never evaluated. It calls a function of search spaces with plain values.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import Final

import mqtune
from mqtune.core.errors import ConfigurationError, SpaceError
from mqtune.core.text import names_in_words
from mqtune.search import domains
from mqtune.search.kinds import Domain

#: The functions whose arguments are the values to choose from.
_OF_VALUES: Final[dict[str, Callable[[list[object]], Domain]]] = {
    function.__name__: function for function in (domains.choice, domains.grid_search, domains.ordinal)
}
#: All other functions of search spaces, except sample_from, which takes a function.
_OF_NUMBERS: Final[dict[str, Callable[..., Domain]]] = {
    name: function
    for name, function in vars(domains).items()
    if name in mqtune.__all__ and name not in (*_OF_VALUES, "sample_from")
}
DOMAINS: Final = (*_OF_NUMBERS, *_OF_VALUES)
#: Names in other tuners, if they are not similar to the name here.
_ELSEWHERE: Final = {
    "categorical": "choice",
    "gaussian": "normal",
    "discrete": "ordinal",
    "int": "randint",
    "int_uniform": "randint",
    "float": "uniform",
    "log_uniform_values": "loguniform",
}
_CALL: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)
_KEYWORD: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", re.DOTALL)
_CLOSED_BY: Final = {"[": "]", "{": "}", "(": ")"}
_QUOTES: Final = ('"', "'")
_WORDS: Final[dict[str, object]] = {
    **dict.fromkeys(("true", "True"), True),
    **dict.fromkeys(("false", "False"), False),
    **dict.fromkeys(("null", "None"), None),
}
_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_WHOLE_NUMBER: Final = re.compile(r"[-+]?\d+", re.ASCII)
#: The deepest nesting of a value's brackets.
_MOST_LEVELS: Final = 20


def domain_of(text: str) -> Domain:
    """Return the domain of a text such as ``choice(cnn, mlp)``.

    Raises:
        SpaceError: the text is not a call of a function of search spaces, or the function refuses its arguments.
    """
    match = _CALL.fullmatch(text)
    if match is None:
        raise SpaceError(f"{text!r} is not a domain; write one such as 'uniform(0, 1)' or 'choice(a, b)', in quotes")
    name, inner = match.groups()
    if name not in DOMAINS:
        raise SpaceError(f"{name}: there is no such domain; {_hint(name)}")
    parts = list(_parts(inner, text))
    if name in _OF_VALUES:
        values = [value_of(part) for part in parts]
        # In Python's spelling, choice([a, b]), the values are one list.
        is_list = len(values) == 1 and isinstance(values[0], list)
        return _OF_VALUES[name](values[0] if is_list else values)  # type: ignore[arg-type]
    return _of_numbers(name, parts)


def _hint(name: str) -> str:
    if name == "fidelity":
        return "give --max-t N, the last step of a trial, and --step, the metric that counts the steps"
    if name == "sample_from":
        return "a function of your own needs a script: mqtune.Tuner(mqtune.Script(…), …)"
    likely = _ELSEWHERE.get(name) or next(iter(get_close_matches(name, DOMAINS, n=1)), "")
    return f"do you mean {likely}{_signature(likely)}?" if likely else f"domains are {names_in_words(DOMAINS)}"


def hint_for(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a question with the known name that is most similar to *name*, or else *otherwise*."""
    near = get_close_matches(name, known, n=1)
    return f"do you mean {near[0]}?" if near else otherwise


def _signature(name: str) -> str:
    """Return the arguments of a domain's function in parentheses, for people."""
    if name in _OF_VALUES:
        return "(a, b, …)"
    return f"({', '.join(inspect.signature(_OF_NUMBERS[name]).parameters)})"


def _of_numbers(name: str, parts: list[str]) -> Domain:
    function, given, named = _OF_NUMBERS[name], list[object](), dict[str, object]()
    for part in parts:
        if (keyword := _KEYWORD.fullmatch(part)) is not None:
            named[keyword[1]] = value_of(keyword[2])
        else:
            given.append(value_of(part))
    try:
        inspect.signature(function).bind(*given, **named)
    except TypeError as error:
        # Some functions know an argument of another library, and raise an error with a hint.
        if named:
            _ask_for_hint(function, given, named)
        raise SpaceError(f"{name}: {error}; write {name}{_signature(name)}") from None
    return function(*given, **named)


def _ask_for_hint(function: Callable[..., Domain], given: list[object], named: dict[str, object]) -> None:
    try:
        function(*given, **named)
    except TypeError:
        pass
    except SpaceError:
        raise
    except ConfigurationError as error:
        raise SpaceError(str(error).replace("mqtune.", "")) from None


def value_of(text: str, level: int = 0) -> object:
    """Return the value that a text stands for: a number, a list, a JSON object, or a text.

    Quotes around a text are removed. *level* is the number of lists around the value.

    Raises:
        SpaceError: a quote or a bracket is not closed, or there are too many brackets or digits.
    """
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE_NUMBER.fullmatch(text):
        try:
            return int(text)
        except ValueError:
            raise SpaceError(f"a whole number has {len(text):,} digits; give a smaller one") from None
    if _NUMBER.fullmatch(text):
        return float(text)
    if text.startswith(_QUOTES):
        return _unquoted(text)
    if text.startswith("[") and text.endswith("]"):
        if level >= _MOST_LEVELS:
            raise SpaceError(f"a value has more than {_MOST_LEVELS} levels of brackets")
        return [value_of(part, level + 1) for part in _parts(text[1:-1], text)]
    if text.startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpaceError(f"{text!r} is not a JSON object: {error}") from None
    return text


def _unquoted(text: str) -> str:
    quote, inner = text[0], text[1:-1]
    is_closed = len(text) > 1 and text.endswith(quote) and quote not in re.sub(r"\\.", "", inner)
    if not is_closed:
        raise SpaceError(
            f"{text!r} has text after its quotes, or a quote that is not closed; write {quote}a text{quote}"
        )
    return re.sub(r"\\(.)", r"\1", inner)


def _parts(text: str, whole: str) -> Iterator[str]:
    """Yield the parts of a text between its commas, except within brackets or quotes.

    Raises:
        SpaceError: a part is empty, or a bracket or a quote of *whole* is not closed.
    """
    if not text.strip():
        return
    part, opened, quote, is_escaped = "", "", "", False
    for char in text:
        if quote:
            if char == quote and not is_escaped:
                quote = ""
            is_escaped = char == "\\" and not is_escaped
        elif char in _QUOTES and not part.strip():
            quote = char
        elif char in _CLOSED_BY:
            opened += char
        elif char in _CLOSED_BY.values():
            if not opened or char != _CLOSED_BY[opened[-1]]:
                raise SpaceError(f"{whole!r} has a {char!r} that closes nothing")
            opened = opened[:-1]
        elif char == "," and not opened:
            yield _checked(part, whole)
            part = ""
            continue
        part += char
    if opened or quote:
        raise SpaceError(f"{whole!r} has a {(quote or opened[-1])!r} that is not closed")
    # As in Python, a comma may be at the end.
    if part.strip():
        yield part


def _checked(part: str, whole: str) -> str:
    if not part.strip():
        raise SpaceError(f"{whole!r} has nothing between two commas; write '' for an empty text")
    return part
