"""Runs the cells of a notebook as its kernel does: in a ``__main__`` without a file, with the source of each cell at hand."""

from __future__ import annotations

import json
import linecache
import sys
from pathlib import Path
from typing import Final

#: For ``python -c``, with the path of a notebook as its argument; the project's folder is the first on the path again.
RUN_NOTEBOOK: Final = f"""
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})
from notebooks import run_notebook
sys.path.pop(0)
run_notebook(sys.argv.pop(1))
"""


def run_notebook(path: str) -> None:
    main = sys.modules["__main__"]
    main.__dict__.pop("__file__", None)
    cells = [cell for cell in json.loads(Path(path).read_text())["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        source, name = "".join(cell["source"]), f"<cell {number}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), vars(main))
