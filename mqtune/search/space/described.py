"""Search spaces made again from their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from mqtune.core.errors import SpaceError
from mqtune.search.space import functions
from mqtune.search.space.domains import Domain
from mqtune.search.space.space import SEPARATOR, Space

__all__ = ["domain_of", "nested", "space_of"]

_FUNCTIONS: Final[dict[str, Callable[..., Domain]]] = {
    name: getattr(functions, name) for name in functions.__all__ if name != functions.sample_from.__name__
}


def space_of(description: Mapping[str, Any]) -> Space:
    """Return the space that ``Space.describe`` described.

    Raises:
        SpaceError: it has a ``sample_from``, whose function stands in the user's code alone.
    """
    return Space(nested({path: _entry(path, entry) for path, entry in description.items()}))


def domain_of(description: Mapping[str, Any]) -> Domain:
    """Return the domain that ``Domain.describe`` described.

    Raises:
        SpaceError: it is a ``sample_from``, or none that this version knows.
    """
    arguments = dict(description)
    name = arguments.pop("domain", "")
    if name not in _FUNCTIONS:
        raise SpaceError(f"{name}({', '.join(map(str, arguments.values()))}) can't be made without your code")
    return _FUNCTIONS[name](**arguments)


def nested(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by path as the nested dicts that the paths stand for."""
    tree: dict[str, Any] = {}
    for path, value in entries.items():
        *folders, name = path.split(SEPARATOR)
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[name] = value
    return tree


def _entry(path: str, description: Mapping[str, Any]) -> Any:
    if "constant" in description:
        return description["constant"]
    try:
        return domain_of(description)
    except SpaceError as error:
        raise SpaceError(f"{path}: {error}") from None
