"""Names of a package that are found when they are used: who needs one of them does not wait for the imports of all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def found_when_used(
    package: str, homes: Mapping[str, str], meant: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``.

    Args:
        package: its name.
        homes: the module in which each of its names is defined; a name that is a module's own has that module.
        meant: how things are called here that have other names in other libraries.
    """

    def find(name: str) -> Any:
        if name not in homes:
            # It imports much that a trial may not need.
            from mqtune.core.text import no_attribute  # noqa: PLC0415

            raise no_attribute(f"module {package!r}", name, meant or {})
        home = import_module(homes[name])
        value = home if home.__name__.rpartition(".")[2] == name else getattr(home, name)
        vars(sys.modules[package])[name] = value
        return value

    return find
