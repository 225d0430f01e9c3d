"""Lazy package attributes: a name's module is imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def found_when_used(
    package: str, homes: Mapping[str, str], *, checked_early: tuple[str, ...] = (), is_public: bool = True
) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, which imports a name's module on first use.

    Args:
        homes: the defining module of each name. A module's own name maps to that module.
        checked_early: prefixes of modules with objects that a script makes before its Tuner. If such an object gets an
            invalid argument, the script ends with one line (see ``text.say_in_one_line``).
        is_public: whether the error for an unknown name suggests the nearest known names. Internal folders must answer
            cheaply, because `from folder import module` asks them for the module first.
    """

    def find(name: str) -> object:
        if name not in homes:
            if name.startswith("__") or not is_public:
                # Python itself looks up many of these, also in a trial's process.
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            from mqtune.core.names import OF_MODULES, no_attribute  # noqa: PLC0415 - no name of a sound script needs it

            raise no_attribute(f"module {package!r}", name, OF_MODULES)
        home = import_module(homes[name])
        is_module = home.__name__.rpartition(".")[2] == name
        if not is_module and homes[name].startswith(checked_early):
            from mqtune.core.text import say_in_one_line  # noqa: PLC0415 - a trial's process needs it for none of these

            say_in_one_line()
        value = home if is_module else getattr(home, name)
        vars(sys.modules[package])[name] = value
        return value

    return find


def facade_of(package: str, names: Mapping[str, tuple[str, ...]], *, is_public: bool = False) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a folder's ``__init__``. *names* has the names by module."""
    homes = {name: f"{package}.{module}" for module, of_module in names.items() for name in of_module}
    return found_when_used(package, homes, is_public=is_public)
