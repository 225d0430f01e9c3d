"""Says how the Python and the packages of a worker differ from the driver's, whose code runs there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

#: How many differences are said; the first are those of what the trainable imports itself.
_SHOWN: Final = 5


def differences(environment: Mapping[str, object]) -> str:
    """Return in words in what an attempt's environment differs from this process's; empty if in nothing.

    Of Python the minor version counts. Packages that are not installed here, or that the trainable doesn't import, are
    left out.
    """
    found = list(_differing(environment))
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _differing(environment: Mapping[str, object]) -> Iterator[str]:
    there, here = str(environment.get("python", "")), ".".join(map(str, sys.version_info[:3]))
    if there and there.split(".")[:2] != here.split(".")[:2]:
        yield f"Python {there} (here {here})"
    packages = environment.get("packages")
    for name, has in packages.items() if isinstance(packages, dict) else ():
        own = _version_here(str(name))
        if own and own != has:
            yield f"{name} {has} (here {own})"


def _version_here(package: str) -> str:
    try:
        return version(package)
    except (PackageNotFoundError, ValueError):
        # Its distribution may have another name.
        return str(getattr(sys.modules.get(package), "__version__", ""))
