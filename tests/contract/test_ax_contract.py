"""The contract of searchers, on Ax."""

from __future__ import annotations

import pytest

from mqtune.testing.searchers import NewSearcher, SearcherContract

pytest.importorskip("ax")

from mqtune.integrations.ax import AxSearcher


# Of what Ax does by itself.
@pytest.mark.filterwarnings(r"ignore:::ax\b")
class TestAxSearcher(SearcherContract):
    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        # The others take a second for each suggestion.
        return lambda: AxSearcher("random_search")
