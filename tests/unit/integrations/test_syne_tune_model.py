"""A searcher of Syne Tune in a thread changes no decision of the scheduler around it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import DEADLINE_S, eventually

from mqtune.integrations import SlowSearcher, is_quick


class Ponders:
    """A searcher that answers when it may."""

    debug_log = None
    estimator = "fitted"

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.told: list[Any] = []

    def get_config(self, **options: Any) -> dict[str, Any] | None:
        self.told.append(("asked", options["bracket"]))
        assert self.may_answer.wait(DEADLINE_S)
        self.on_trial_result({"told": "by itself"})
        return {"x": 0.5}

    def on_trial_result(self, result: dict[str, Any]) -> None:
        self.told.append(dict(result))


class Halves:
    """A scheduler with a bracket for each suggestion, which resumes before it starts."""

    reads = "debug_log"

    def __init__(self) -> None:
        self.searcher = Ponders()
        self.rng = random.Random(0)
        self.paused: list[str] = []

    def suggest(self, number: int) -> Any:
        bracket = self.rng.randrange(100)
        if self.paused:
            return self.paused.pop()
        getattr(self.searcher, self.reads)
        return number, bracket, self.searcher.get_config(bracket=bracket)

    def on_trial_result(self, result: dict[str, Any]) -> None:
        self.searcher.on_trial_result(result)
        result["loss"] = "changed since"


@pytest.fixture
def scheduler() -> Halves:
    return Halves()


@pytest.fixture
def slow(scheduler: Halves) -> Iterator[SlowSearcher]:
    slow = SlowSearcher(scheduler, scheduler.searcher, scheduler.searcher.get_config)
    scheduler.searcher.get_config = slow.answer  # type: ignore[method-assign]
    yield slow
    scheduler.searcher.may_answer.set()
    slow.background.close()


def test_the_scheduler_decides_while_the_searcher_ponders(scheduler: Halves, slow: SlowSearcher) -> None:
    before = scheduler.rng.getstate()
    assert slow.is_ready(1) is False
    slow.background.take()
    eventually(lambda: scheduler.searcher.told)
    scheduler.on_trial_result({"loss": 1.0})
    assert slow.is_ready(1) is False
    assert slow.is_computing
    bracket = scheduler.searcher.told[0][1]
    assert scheduler.searcher.told == [("asked", bracket)]
    assert scheduler.rng.getstate() == before

    scheduler.searcher.may_answer.set()
    eventually(lambda: len(scheduler.searcher.told) == 3)
    assert scheduler.searcher.told[1:] == [{"told": "by itself"}, {"loss": 1.0}]
    assert not slow.is_computing
    assert slow.is_ready(1) is True
    assert scheduler.suggest(1) == (1, bracket, {"x": 0.5})
    assert not slow.is_asked


def test_a_trial_that_is_to_be_resumed_waits_for_no_config(scheduler: Halves, slow: SlowSearcher) -> None:
    assert slow.is_ready(1) is False
    scheduler.paused.append("0001")

    assert slow.is_ready(1) is True
    assert scheduler.suggest(1) == "0001"
    assert slow.is_computing


def test_a_scheduler_that_goes_by_what_the_model_has_found_is_asked_at_once(scheduler: Halves, slow: SlowSearcher):
    scheduler.reads = "estimator"

    assert slow.is_ready(1) is None
    assert not slow.is_asked
    scheduler.searcher.may_answer.set()
    assert scheduler.suggest(1)[2] == {"x": 0.5}


def test_a_searcher_that_draws_at_random_needs_no_thread() -> None:
    assert is_quick(type("RandomSearcher", (), {})())
    assert not is_quick(Ponders())
