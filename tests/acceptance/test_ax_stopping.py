"""Ax's early stopping over real workers, in a driver that is replaced, with Ax's model beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

import mqtune

pytest.importorskip("ax")

from ax.early_stopping.strategies import PercentileEarlyStoppingStrategy

from mqtune.core.events import DecisionTaken
from mqtune.integrations.ax import AxSearcher
from mqtune.integrations.ax_early_stopping import AxEarlyStopping

# Of what Ax does by itself.
pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings(r"ignore:::(ax|botorch|gpytorch|linear_operator)\b")]


def test_a_driver_that_goes_on_stops_trials_by_the_curves_of_those_that_ended_before(
    tune: Callable[..., mqtune.Tuner],
) -> None:
    def new() -> mqtune.Tuner:
        # The second takes 12 s where nobody stops it, and the others less than one.
        points = [{"x": 0.1}, {"x": 0.9}, {"x": 0.2}, {"x": 0.3}]
        return tune(
            "dawdles",
            searcher=mqtune.PointsFirst(points, AxSearcher("random_search")),
            scheduler=AxEarlyStopping(PercentileEarlyStoppingStrategy(min_curves=3, min_progression=2)),
            name="ax-early-stopping",
            max_trials=5,
            seed=1,
        )

    with closing(new()) as first:
        while sum(trial.status is mqtune.TrialStatus.COMPLETED for trial in first.get_trials()) < 2:
            first.step(0.05)
    results = new().run()

    assert [trial.config["x"] for trial in results][:4] == [0.1, 0.9, 0.2, 0.3]
    assert [trial.status.name for trial in results][:4] == ["COMPLETED", "EARLY_STOPPED", "COMPLETED", "COMPLETED"]
    assert results["0002"].reason.startswith("Ax's PercentileEarlyStoppingStrategy: ")
    assert results["0002"].metrics["training_iteration"] < 30
    decisions = [event.by for event in results.events() if isinstance(event, DecisionTaken)]
    assert set(decisions) == {"scheduler"}
