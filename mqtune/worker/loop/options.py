"""Declares the options that an operator gives a worker: the worker's own, and those of its services.

An option is a field of a dataclass: of ``WorkerSettings``, or of a service's ``ServiceSettings``. Each is an option of
``mqtune worker``, and can also be given by an environment variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final

_KEY: Final = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The option that an operator uses for a field.

    Attributes:
        help: its effect, in a sentence.
        name: the name of the option without dashes, and of its variable without ``MQTUNE_``; empty for the field's.
        range: the smallest and the largest value; None without limits.
        metavar: the name of the value in help texts; empty for the name of its type.
        is_hidden: whether help texts leave it out.
    """

    help: str = ""
    name: str = ""
    range: tuple[int, int] | None = None
    metavar: str = ""
    is_hidden: bool = False


def option(
    default: Any = MISSING,
    help: str = "",  # noqa: A002 - as click calls it
    *,
    make_default: Callable[[], Any] | Any = MISSING,
    is_secret: bool = False,
    **details: Any,
) -> Any:
    """Declare a field as an option.

    Args:
        default: the value without the option.
        help: its effect, in a sentence.
        make_default: returns a default that depends on the machine.
        is_secret: whether the field is left out of texts that describe the settings.
        details: further attributes of ``Option``.
    """
    kept = {_KEY: Option(help=help, **details)}
    return field(default=default, default_factory=make_default, repr=not is_secret, metadata=kept)


def options_of(kind: type[Any]) -> Iterator[tuple[Field[Any], Option]]:
    """Yield the fields of a dataclass that are options, in their order."""
    for declared in fields(kind):
        if _KEY in declared.metadata:
            yield declared, declared.metadata[_KEY]
