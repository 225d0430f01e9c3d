"""Where commands print."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console

__all__ = ["output"]

#: How wide a table may be where there is no terminal that would break its lines.
_FILE_WIDTH: Final = 240


def output() -> Console:
    """Return a console on standard output that prints text as it is."""
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)
