"""Games that were recorded: each scheduler decides and chooses as it did."""

from __future__ import annotations

import pytest
from played import FOLDER, KINDS, played


@pytest.mark.parametrize("kind", KINDS)
def test_a_scheduler_plays_its_recorded_games_as_it_did(kind: str) -> None:
    """Where the change is meant, `python tests/unit/schedulers/played.py` writes the files anew."""
    assert played(kind).splitlines() == (FOLDER / f"{kind}.txt").read_text().splitlines()
