"""A session without a file, such as a notebook's."""

from __future__ import annotations

import linecache
import sys
from types import ModuleType

import pytest


def run_cells(monkeypatch: pytest.MonkeyPatch, *cells: str) -> ModuleType:
    """Run cells as a notebook does, and return its ``__main__``."""
    main = ModuleType("__main__")
    for number, cell in enumerate(cells):
        name = f"<cell {number} of {id(main)}>"
        monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
        exec(compile(cell, name, "exec"), vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main
