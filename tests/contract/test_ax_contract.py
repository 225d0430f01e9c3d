"""The contracts of searchers and schedulers, on Ax."""

from __future__ import annotations

import pytest

from mqtune.testing.schedulers import NewScheduler, SchedulerContract
from mqtune.testing.searchers import NewSearcher, SearcherContract

pytest.importorskip("ax")

from ax.early_stopping.strategies import PercentileEarlyStoppingStrategy

from mqtune.integrations.ax import AxSearcher
from mqtune.integrations.ax_early_stopping import AxEarlyStopping


# Of what Ax does by itself.
@pytest.mark.filterwarnings(r"ignore:::ax\b")
class TestAxSearcher(SearcherContract):
    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        # The others take a second for each suggestion.
        return lambda: AxSearcher("random_search")


@pytest.mark.filterwarnings(r"ignore:::ax\b")
class TestAxEarlyStopping(SchedulerContract):
    @pytest.fixture
    def new_scheduler(self) -> NewScheduler:
        return lambda: AxEarlyStopping(PercentileEarlyStoppingStrategy(min_curves=2, min_progression=2))
