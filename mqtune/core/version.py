"""The version of mqtune; drivers and workers meet only within one minor version."""

from typing import Final

__version__: Final = "0.2.0"

#: The way out where two versions don't meet.
UPGRADE: Final = "upgrade the older one: docs/how-to/upgrade.md"


def minor(version: str) -> str:
    """Return the minor version of a version, such as 0.2 of 0.2.1."""
    return ".".join(version.split(".")[:2])


def meets(version: str) -> bool:
    """Whether what is of this version works together with this one: both are of one minor version."""
    return minor(version) == minor(__version__)
