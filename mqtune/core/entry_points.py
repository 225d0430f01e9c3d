"""Entry points of packages that extend mqtune, and imports of optional libraries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.version import install_command

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Classes of searchers and schedulers, by kind.
SEARCHERS: Final = "mqtune.searchers"
SCHEDULERS: Final = "mqtune.schedulers"
#: Objects with ``export(results, path)``, by format.
EXPORTERS: Final = "mqtune.exporters"
#: Objects with ``recognizes(source)`` and ``read(source, metric, mode, study)``, by tool.
IMPORTERS: Final = "mqtune.importers"
#: Classes with ``write(results)``, by tool. The constructor gets the target, such as a folder, if the user names one.
LOGGERS: Final = "mqtune.loggers"


@cache
def _points_in(group: str) -> dict[str, EntryPoint]:
    """Return a group's entry points by name. The first call reads a file of each package."""
    # Imported here, because most commands need no entry point.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {point.name: point for point in sorted(entry_points(group=group), key=lambda point: point.name)}


def names_in(group: str) -> list[str]:
    """Return the sorted names of a group's entry points."""
    return [*_points_in(group)]


def load_point(group: str, name: str) -> Any:
    """Return the object of an entry point.

    Raises:
        ConfigurationError: the entry point does not exist or can't be imported. The text says what to install.
    """
    point = _points_in(group).get(name)
    if point is None:
        raise ConfigurationError(
            f"no installed package adds {name!r} to {group}; there are: {', '.join(_points_in(group)) or 'none'}"
        )
    try:
        return point.load()
    except ImportError as error:
        package = point.dist.name if point.dist is not None else "its package"
        way_out = install_command(name) if package == "mqtune" else f"reinstall {package}"
        raise ConfigurationError(f"{name} can't be imported ({error}); {way_out}") from error


def is_added(group: str, kind: type) -> bool:
    """Whether an entry point of a group names this class. Imports nothing."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    return any(point.value == path for point in _points_in(group).values())


@contextlib.contextmanager
def importing(library: str, extra: str) -> Iterator[None]:
    """Within the block, turn an ImportError into one that says how to install a library.

    Raises:
        ConfigurationError: the library can't be imported.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"{library} can't be imported ({error}); {install_command(extra)}") from error
