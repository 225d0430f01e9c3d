"""Compares the Python and packages of a worker with the driver's."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

#: Maximum number of listed differences. The trainable's own imports come first.
_SHOWN: Final = 5


def differences(environment: Mapping[str, object]) -> str:
    """Return in words how an attempt's Python and packages differ from this process's.

    Empty if they don't. Python versions differ if the minor version does. Only packages that the trainable imports, and
    that are installed here, are compared.
    """
    differing = list(_differing(environment))
    more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return ", ".join(differing[:_SHOWN]) + more


def _differing(environment: Mapping[str, object]) -> Iterator[str]:
    recorded, here = str(environment.get("python", "")), ".".join(map(str, sys.version_info[:3]))
    if recorded and recorded.split(".")[:2] != here.split(".")[:2]:
        yield f"Python {recorded} (here {here})"
    packages = environment.get("packages")
    for name, has in packages.items() if isinstance(packages, dict) else ():
        own = _version_here(str(name))
        if own and own != has:
            yield f"{name} {has} (here {own})"


def _version_here(package: str) -> str:
    try:
        return version(package)
    except (PackageNotFoundError, ValueError):
        # The distribution's name may differ from the module's.
        return str(getattr(sys.modules.get(package), "__version__", ""))
