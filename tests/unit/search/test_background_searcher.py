"""A searcher that works in a thread: how many configs are worked out before a slot is free."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from waiting import eventually

from mqtune.core.timing import Timing
from mqtune.core.trial import Attempt, Config, Trial, TrialId, TrialStatus
from mqtune.search import WAIT, BackgroundSearcher, Searcher

PATIENCE_S = 30.0


class Gated(Searcher):
    """Suggests a config as soon as it may."""

    adaptive = True

    def __init__(self) -> None:
        self.may = threading.Semaphore(0)
        self.suggested: list[TrialId] = []
        self.ended: list[TrialId] = []

    def suggest(self, trial: TrialId) -> Config:
        assert self.may.acquire(timeout=PATIENCE_S)
        self.suggested.append(trial)
        return {"x": trial}

    def on_trial_end(self, trial: Trial) -> None:
        self.ended.append(trial.id)


@pytest.fixture
def slow() -> Iterator[tuple[BackgroundSearcher, Gated]]:
    """Each suggestion takes long."""
    gated = Gated()
    with closing(BackgroundSearcher(gated, Timing(prefetch_s=-1.0))) as searcher:
        yield searcher, gated
        gated.may.release(100)


def stage(searcher: BackgroundSearcher, number: int) -> Trial:
    id_ = TrialId(f"{number:04d}")
    trial = Trial(id_, {}, TrialStatus.QUEUED, [Attempt(1, 0.0, {})])
    searcher.on_queue(trial)
    return trial


def wait_for(searcher: BackgroundSearcher, gated: Gated, number: int) -> Trial:
    """Fill a slot that is free before there is a config."""
    id_ = TrialId(f"{number:04d}")
    assert searcher.suggest(id_) is WAIT
    gated.may.release()
    eventually(lambda: searcher.suggest(id_) is not WAIT, PATIENCE_S)
    return stage(searcher, number)


def test_as_many_configs_are_worked_out_ahead_as_slots_were_free(slow: tuple[BackgroundSearcher, Gated]) -> None:
    searcher, gated = slow
    for number in (1, 2, 3):
        wait_for(searcher, gated, number)

    gated.may.release(3)
    eventually(lambda: len(gated.suggested) == 6, PATIENCE_S)

    for number in (4, 5, 6):
        assert searcher.suggest(TrialId(f"{number:04d}")) == {"x": f"{number:04d}"}


def test_on_one_slot_one_config_is_worked_out_ahead(slow: tuple[BackgroundSearcher, Gated]) -> None:
    searcher, gated = slow
    for number in (1, 2, 3):
        searcher.on_trial_end(wait_for(searcher, gated, number))

    gated.may.release(3)
    # The thread works in order: all earlier suggestions are done when an end arrives.
    eventually(lambda: gated.ended == ["0001", "0002", "0003"], PATIENCE_S)

    assert gated.suggested == ["0001", "0002", "0003", "0004"]
    assert searcher.suggest(TrialId("0004")) is not WAIT
