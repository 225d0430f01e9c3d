"""Ax's early stopping as a scheduler decides as in Ax's own Client."""

from __future__ import annotations

import math
import random
from typing import Any, Final, Self

import pytest
from searcher_story import train

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.core.objective import Objective
from mqtune.core.trial import CONTINUE, Action, Attempt, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers import Scheduler

pytest.importorskip("ax")

from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.early_stopping.strategies import (
    AndEarlyStoppingStrategy as And,
    OrEarlyStoppingStrategy as Or,
    PercentileEarlyStoppingStrategy as Percentile,
    ThresholdEarlyStoppingStrategy as Threshold,
)

from mqtune.integrations import AxEarlyStopping

# From code of Ax.
pytestmark = pytest.mark.filterwarnings(r"ignore:::(ax|botorch|gpytorch|linear_operator)\b")

MEDIAN: Final = Percentile(min_curves=2, min_progression=2)
#: Until a threshold at time 1.
LOW: Final = Threshold(metric_threshold=0.5, min_curves=0, min_progression=1)


class Story:
    """Trials of a scheduler, by the calls of a driver."""

    def __init__(self, strategy: Any = MEDIAN, *, metrics: Any = "val/loss", modes: Any = "min") -> None:
        self.scheduler = AxEarlyStopping(strategy)
        objective = Objective.of(metrics, modes)
        self.scheduler.check_objective(objective)
        self.scheduler.bind(objective.metrics[0], objective.modes[0])
        self.number = 0

    def begin(self) -> Trial:
        self.number += 1
        return Trial(TrialId(f"{self.number:04d}"), {"x": 1}, TrialStatus.RUNNING, [Attempt(1, 0.0, {"x": 1})])

    def report(self, trial: Trial, **metrics: object) -> Decision:
        trial.reports += 1
        given = {"training_iteration": trial.reports, **metrics}
        return self.scheduler.on_report(trial, Report(trial.id, 1, trial.reports, 0.0, given))

    def losses(self, trial: Trial, *losses: object) -> list[Decision]:
        return [self.report(trial, **{"val/loss": loss}) for loss in losses]

    def end(self, trial: Trial, status: TrialStatus = TrialStatus.COMPLETED) -> None:
        trial.status = status
        if status is TrialStatus.ABANDONED:
            self.scheduler.on_abandon(trial)
        self.scheduler.on_trial_end(trial)

    def two_good(self) -> Self:
        for loss in (0.1, 0.2):
            trial = self.begin()
            self.losses(trial, 1 + loss, loss, loss)
            self.end(trial)
        return self


@pytest.mark.parametrize("mode", ["min", "max"])
def test_it_decides_as_axs_client_does(mode: str) -> None:
    numbers = random.Random(mode)
    client = Client()
    client.configure_experiment([RangeParameterConfig("x", (0.0, 1.0), "float")])
    client.configure_optimization("-loss" if mode == "min" else "loss")
    strategy = Percentile(percentile_threshold=60, min_curves=2, min_progression=3, patience=1, interval=2)
    client.set_early_stopping_strategy(strategy)
    story = Story(strategy, modes=mode)
    decisions = []
    for index in range(6):
        trial = story.begin()
        client.attach_trial({"x": index / 6})
        for step in range(1, 7):
            value = (numbers.random() / step + index / 8) * (1 if mode == "min" else -1)
            client.attach_data(index, {"loss": value}, step)
            decisions.append(story.losses(trial, value)[0].action is Action.STOP)
            assert decisions[-1] == client.should_stop_trial_early(index), (index, step)
            if decisions[-1]:
                break
        client.mark_trial_early_stopped(index) if decisions[-1] else client.complete_trial(index)
        story.end(trial, TrialStatus.EARLY_STOPPED if decisions[-1] else TrialStatus.COMPLETED)
    assert {True, False} == set(decisions)


def test_a_decision_says_why() -> None:
    story = Story().two_good()

    *before, last = story.losses(story.begin(), 2.0, 2.0)

    assert before == [CONTINUE]
    assert last.action is Action.STOP
    says = "Ax's PercentileEarlyStoppingStrategy: Trial objective values at progressions in [2.00, 2"
    assert last.reason.startswith(says)
    assert "\n" not in last.reason


def test_what_is_no_value_is_not_told_and_a_time_that_was_reached_before_neither() -> None:
    story = Story().two_good()
    trial = story.begin()

    assert story.losses(trial, 0.1, math.nan, None, math.inf) == [CONTINUE] * 4
    trial.reports = 0
    assert story.losses(trial, 9.0) == [CONTINUE]
    assert story.losses(trial, 9.0)[0].action is Action.STOP


def test_an_abandoned_trial_counts_no_more_and_one_that_has_failed_does() -> None:
    def stops(ending: TrialStatus) -> bool:
        story = Story().two_good()
        for _ in range(3):
            other = story.begin()
            story.losses(other, 0.01)
            other.reports = 2
            story.losses(other, 0.01)
            story.end(other, ending)
        return story.losses(story.begin(), 1.0, 0.05)[-1] != CONTINUE

    assert stops(TrialStatus.FAILED)
    assert not stops(TrialStatus.ABANDONED)


def test_of_several_metrics_it_goes_by_the_one_that_the_strategy_names() -> None:
    strategy = Threshold(metric_signatures=["hits/s"], metric_threshold=5, min_curves=0, min_progression=1)
    story = Story(strategy, metrics=["loss", "hits/s"], modes=["min", "max"])
    trial = story.begin()

    assert story.report(trial, loss=1.0) is CONTINUE
    assert story.report(trial, **{"loss": 99.0, "hits/s": 6.0}) is CONTINUE
    assert story.report(trial, **{"loss": 0.0, "hits/s": 4.0}).action is Action.STOP


def test_a_strategy_is_described_whole_and_made_again() -> None:
    own = Percentile(["loss"], patience=3, interval=2.5)
    strategy = Or(And(LOW, own), MEDIAN)
    scheduler = AxEarlyStopping(strategy, time_attr="epoch")
    again = Scheduler.rebuild(scheduler.describe())

    assert isinstance(again, AxEarlyStopping)
    assert again.describe() == scheduler.describe()
    assert again.describe()["strategy"]["left"]["right"] == {
        **scheduler.describe()["strategy"]["left"]["right"], "metric_signatures": ["loss"], "patience": 3, "interval": 2.5
    }  # fmt: skip
    assert Scheduler.rebuild(AxEarlyStopping().describe()).describe() == AxEarlyStopping().describe()

    class Own(Percentile):
        pass

    with pytest.raises(ConfigurationError, match=r"early stopping strategy Own, which only your code can make"):
        Scheduler.rebuild(AxEarlyStopping(Or(LOW, Own())).describe())


def test_bad_arguments_are_named() -> None:
    for bad in (Client(), "percentile", Percentile):
        with pytest.raises(ConfigurationError, match="is not an early stopping strategy of Ax; give one"):
            AxEarlyStopping(bad)
    with pytest.raises(ConfigurationError, match="time_attr"):
        AxEarlyStopping(time_attr="")
    strategy = Or(LOW, Percentile(metric_signatures=["accuracy"]))
    with pytest.raises(ConfigurationError, match=r"\['accuracy'\] of the strategy are not among the metrics .*'loss'"):
        mqtune.Tuner(train, {"x": mqtune.uniform(0, 1)}, metric="loss", mode="min", scheduler=AxEarlyStopping(strategy))
