"""The version of mqtune; drivers and workers meet only within one minor version."""

from typing import Final

__version__: Final = "0.2.0"


def meets(version: str) -> bool:
    """Whether what is of this version works together with this one: both are of one minor version."""
    return version.split(".")[:2] == __version__.split(".")[:2]
