"""What docs/extensions.md shows works: its searcher keeps the contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

import mqtune
from mqtune.testing.searchers import NewSearcher, SearcherContract

PAGE: Final = (Path(__file__).parents[3] / "docs" / "extensions.md").read_text()
(BLOCK,) = (
    block for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "Kernel" in block
)
PLACES: dict[str, Any] = {"__name__": "page"}
exec(compile(BLOCK, "docs/extensions.md", "exec"), PLACES)
KernelSearcher: Final = PLACES["KernelSearcher"]


class TestKernelSearcher(SearcherContract):
    space: ClassVar[dict[str, Any]] = {
        "lr": mqtune.loguniform(1e-4, 1),
        "opt": mqtune.choice([{"name": "adam"}, {"name": "sgd", "momentum": mqtune.uniform(0, 1)}]),
    }

    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        found: NewSearcher = KernelSearcher
        return found
