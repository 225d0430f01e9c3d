"""A searcher in a thread of its own: nothing waits for it, and it hears everything in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from mqtune.core.errors import UserCodeFailed
from mqtune.core.timing import Timing
from mqtune.core.trial import Attempt, Config, Report, Trial, TrialId, TrialStatus
from mqtune.search import WAIT, BackgroundSearcher, Searcher, Suggestion
from mqtune.testing.waiting import DEADLINE_S, eventually

ONE, TWO = TrialId("0001"), TrialId("0002")


class Slow(Searcher):
    """Suggests a number when it is allowed to, and writes down what it is told."""

    is_slow = True
    adaptive = True

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.may_answer = threading.Semaphore(0)

    def suggest(self, trial: TrialId) -> Suggestion:
        self.calls.append(("suggest", trial))
        assert self.may_answer.acquire(timeout=DEADLINE_S)
        return {"x": int(trial)}

    def adopt(self, trial: TrialId, config: Config) -> None:
        self.calls.append(("adopt", trial, config))

    def on_queue(self, trial: Trial) -> None:
        self.calls.append(("stage", trial.id, trial.status))

    def on_report(self, trial: Trial, report: Report) -> None:
        if report.metrics["loss"] == "odd":
            raise ValueError("what is this?")
        self.calls.append(("report", report.sequence))

    def on_trial_end(self, trial: Trial) -> None:
        self.calls.append(("end", trial.id))


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def searcher(slow: Slow) -> Iterator[BackgroundSearcher]:
    # Else a suggestion that a loaded machine makes late has the next one worked out at once.
    with closing(BackgroundSearcher(slow, Timing(prefetch_s=DEADLINE_S))) as searcher:
        yield searcher
        slow.may_answer.release(10)


def trial() -> Trial:
    return Trial(ONE, {"x": 1}, TrialStatus.QUEUED, [Attempt(1, 0.0, {"x": 1})])


def report(sequence: int, loss: object = 0.5) -> Report:
    return Report(ONE, 1, sequence, 0.0, {"loss": loss})


def test_what_it_is_told_while_it_works_it_hears_afterwards(searcher: BackgroundSearcher, slow: Slow) -> None:
    searcher.suggest(ONE)
    eventually(lambda: slow.calls)
    running = trial()
    searcher.on_queue(running)
    running.status = TrialStatus.RUNNING
    for sequence in (1, 2, 3):
        searcher.on_report(running, report(sequence))
    searcher.adopt(TWO, {"x": 7})
    searcher.on_trial_end(running)
    assert slow.calls == [("suggest", ONE)]

    slow.may_answer.release()

    eventually(lambda: slow.calls[-1] == ("end", ONE))
    # Each trial as it was when it was told of.
    reports = [("report", sequence) for sequence in (1, 2, 3)]
    assert slow.calls[1:] == [("stage", ONE, TrialStatus.QUEUED), *reports, ("adopt", TWO, {"x": 7}), ("end", ONE)]


def test_an_error_comes_out_of_the_next_call_and_nothing_else_is_done(searcher: BackgroundSearcher, slow: Slow) -> None:
    slow.may_answer.release()
    eventually(lambda: searcher.suggest(ONE) is not WAIT)
    searcher.on_report(trial(), report(1, loss="odd"))

    def call_again() -> None:
        # The error may be there already.
        searcher.on_report(trial(), report(2))
        eventually(lambda: searcher.suggest(TWO) is not WAIT)

    said = r"Slow.on_report raised ValueError: what is this\? \(trial 0001\)"
    with pytest.raises(UserCodeFailed, match=said) as found:
        call_again()
    assert isinstance(found.value.__cause__, ValueError)
    assert slow.calls == [("suggest", ONE)]
    with pytest.raises(UserCodeFailed):
        searcher.on_trial_end(trial())
