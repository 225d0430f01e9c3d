"""The page of the command line, and the tables of pages that the code has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[1] / "docs"
sys.path.append(str(DOCS / "_site"))

from tables import find_command, with_causes, with_tables  # noqa: E402 - it is beside the hook of the site

__all__ = ["PAGE", "find_command", "with_causes", "with_tables"]

PAGE: Final = DOCS / "cli.md"
