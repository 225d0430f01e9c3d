"""The words after the program: its arguments, and the domains written in place of values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from mqtune.cli.tune.domains import DOMAINS, domain_of
from mqtune.core.errors import SpaceError
from mqtune.search.kinds import Domain

#: An item of a ``Script``: a word, or several words that are passed or omitted together.
Item = str | list[str]

#: A word with a domain: the text before it, the name of its function, and its arguments.
_DOMAIN: Final = re.compile(r"(?P<begin>[^~]*)~(?P<function>[A-Za-z_]\w*)\s*(?P<call>\(.*)?", re.DOTALL)
#: An option, whose value is the next word.
_OPTION: Final = re.compile(r"-{1,2}(?P<name>[^\s=-][^\s=]*)")
#: Text right before its value, such as ``--lr=`` or Hydra's ``+optimizer.lr=``.
_ASSIGNED: Final = re.compile(r"[-+]*(?P<name>[^\s=+-][^\s=]*)=")
#: An option or a positional argument in Orion's spelling, ``--lr~uniform(0, 1)``.
_NAMED: Final = re.compile(r"(?P<dashes>-{0,2})(?P<name>[A-Za-z_][\w.-]*)")
#: Characters of arguments that a parameter's name can't have, as they separate paths or are in a script's templates.
_NOT_IN_NAMES: Final = re.compile(r"[/{}!:*]")
#: Words with a meaning of their own in a script's templates.
_RESERVED: Final = frozenset({"name", "value"})
#: Positions near both ends of a domain, from 0 to 1. If a domain has negative numbers, one is at one of these.
_ENDS: Final = (0.001, 0.999)


class Words:
    """The arguments of a program as items of a ``Script``, and the search space in them.

    ``--lr ~uniform(0, 1)``, ``--lr=~uniform(0, 1)``, ``lr=~uniform(0, 1)`` and, as in Orion, ``--lr~uniform(0, 1)``
    define the parameter ``lr``. ``lr~uniform(0, 1)`` is a positional argument with that name.

    Args:
        words: the words after the program.
        macros: returns the items that a macro stands for, or None if a word is not a macro.

    Raises:
        SpaceError: a domain is invalid, has no name, or has the name of another one.
    """

    def __init__(self, words: Sequence[str], macros: Callable[[str], Iterable[Item] | None] = lambda _: None) -> None:
        self.items: list[Item] = []
        #: The domains by parameter, in the order of the words.
        self.space: dict[str, Domain] = {}
        #: Lines for the user about arguments that a program may misread.
        self.notes: list[str] = []
        before = ""
        for word in words:
            items = macros(word)
            if items is not None:
                self.items += items
            elif (match := _domain_in(word)) is not None:
                self._add_domain(word, match, before)
            else:
                self.items.append(plain_word(word))
            before = word

    def _add_domain(self, word: str, match: re.Match[str], before: str) -> None:
        """Add a word that has a domain. *before* is the word before it, which may be its option."""
        begin, function, call = match["begin"], match["function"], match["call"] or ""
        if not call.endswith(")"):
            raise SpaceError(
                f"{word!r}: the arguments of {function} are missing or incomplete; quote the whole word: "
                f"'{begin}~{function}(…)'"
            )
        if not begin:
            option = _OPTION.fullmatch(before)
            if option is None:
                raise SpaceError(
                    f"{word!r} has no name, as it is not the value of an option; give it one: 'width~{function}{call}'"
                )
            name = _parameter_name(option["name"])
            self.items[-1] = [plain_word(before), f"{{{name}}}"]
        elif (option := _ASSIGNED.fullmatch(begin)) is not None:
            name = _parameter_name(option["name"])
            self.items.append(f"{plain_word(begin)}{{{name}}}")
        elif (option := _NAMED.fullmatch(begin)) is not None:
            name = _parameter_name(option["name"])
            self.items.append([begin, f"{{{name}}}"] if option["dashes"] else f"{{{name}}}")
        else:
            raise SpaceError(
                f"{word!r}: a domain must be the whole value of an argument; write --width '~{function}{call}'"
            )
        domain = _checked(word, f"{function}{call}", before if not begin else "")
        if name in self.space:
            raise SpaceError(f"{word!r}: the parameter {name!r} already has a domain; give each parameter its own name")
        self.space[name] = domain
        if not begin and before.startswith("--") and _has_negative_floats(domain):
            self.notes.append(
                f"{before} may be a number such as -1e-05, which Python's argparse takes for an option; write "
                f"'{before}={word}'"
            )


def _domain_in(word: str) -> re.Match[str] | None:
    """Return the parts of a word in which the user has written a domain, or None.

    Other words may have a tilde, too, such as ``~/data`` or ``notes.txt~``.
    """
    match = _DOMAIN.fullmatch(word)
    if match is None or match["function"] in DOMAINS:
        return match
    begin = match["begin"]
    is_value = not begin or begin.endswith("=") or bool(get_close_matches(match["function"], DOMAINS, n=1))
    return match if match["call"] and is_value else None


def _checked(word: str, text: str, option: str) -> Domain:
    try:
        return domain_of(text)
    except SpaceError as error:
        raise SpaceError(f"{option} '{word}': {error}".lstrip()) from None


def _parameter_name(name: str) -> str:
    """Return the name of the parameter for an argument's name, such as ``a.b`` for ``a/b``."""
    key = _NOT_IN_NAMES.sub(".", name)
    return f"{key}_" if key in _RESERVED else key


def plain_word(word: str) -> str:
    """Return a word as an item of a ``Script`` that passes it on unchanged: braces are doubled."""
    return word.replace("{", "{{").replace("}", "}}")


def _has_negative_floats(domain: Domain) -> bool:
    values = domain.values() if domain.size is not None and domain.size <= 1 / _ENDS[0] else map(domain.at, _ENDS)
    return any(isinstance(value, float) and value < 0 for value in values)
