"""The version of mqtune; drivers and workers meet only within one minor version."""

from typing import Final

__version__: Final = "0.1.0"
