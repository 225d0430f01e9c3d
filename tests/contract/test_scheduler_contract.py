"""The contract of schedulers, on mqtune's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

import mqtune
from mqtune.schedulers import PBTReplay, PolicyStep, Scheduler
from mqtune.testing.schedulers import NewScheduler, SchedulerContract

MAX_T = 9
LR = {"lr": mqtune.uniform(0, 1)}

SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "fifo in batches": lambda: mqtune.FIFO(batch=3),
    "asha": lambda: mqtune.ASHA(MAX_T, time_attr="epoch"),
    "promotion": lambda: mqtune.PromotionASHA(MAX_T),
    "promotion by cost": lambda: mqtune.PromotionASHA(MAX_T, reduction_factor=2, cost="time_total_s"),
    "pasha": lambda: mqtune.PASHA(MAX_T, reduction_factor=2),
    "rush": lambda: mqtune.RUSH(MAX_T, 2),
    "moasha": lambda: mqtune.MOASHA(MAX_T, reduction_factor=2, brackets=2),
    "hyperband": lambda: mqtune.HyperBand(MAX_T),
    "median": lambda: mqtune.MedianStopping(grace_period=2, min_samples=2),
    "wilcoxon": lambda: mqtune.WilcoxonStopping(p_threshold=0.3),
    "pbt": lambda: mqtune.PBT(4, LR, quantile_fraction=0.5, population_size=5),
}


class TestScheduler(SchedulerContract):
    @pytest.fixture(params=SCHEDULERS)
    def new_scheduler(self, request: pytest.FixtureRequest) -> NewScheduler:
        return SCHEDULERS[request.param]


class TestReplay(SchedulerContract):
    """A policy fits the configs of one space alone."""

    space: ClassVar[Mapping[str, Any]] = {"lr": 1}

    @pytest.fixture
    def new_scheduler(self) -> NewScheduler:
        return lambda: PBTReplay([PolicyStep(0, {"lr": 1}), PolicyStep(4, {"lr": 2}), PolicyStep(6, {"lr": 3})])
