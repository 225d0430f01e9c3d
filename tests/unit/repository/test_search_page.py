"""The examples of docs/search.md run as far as they need no worker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

import mqtune

PAGE: Final = (Path(__file__).parents[3] / "docs" / "search.md").read_text()
BLOCKS: Final = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


# Of what Ax does by itself.
@pytest.mark.filterwarnings(r"ignore:::ax\b")
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in ("ax", "syne_tune"):
        if re.search(rf"integrations\.{extra}\w* ", BLOCKS[number]):
            # It also passes over what they warn of on import.
            pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("")

    exec(compile(BLOCKS[number], f"docs/search.md, example {number}", "exec"), {"mqtune": mqtune, "__name__": "page"})
