"""A searcher in a thread of its own: nothing waits for it, and it hears everything in order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from mqtune.core.errors import UserCodeFailed
from mqtune.core.timing import Timing
from mqtune.core.trial import Attempt, Config, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers import BackgroundDecisions
from mqtune.search import WAIT, BackgroundSearcher, Searcher, Suggestion
from mqtune.testing.waiting import DEADLINE_S, eventually

#: How long a suggestion goes on while its searcher is closed, in seconds: longer than a thread waits for a processor.
_CLOSES_S = 0.5
ONE, TWO, THREE = TrialId("0001"), TrialId("0002"), TrialId("0003")


class Slow(Searcher):
    """Suggests a number when it is allowed to, and writes down what it is told."""

    is_slow = True
    adaptive = True

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: set[str] = set()
        self.may_answer = threading.Semaphore(0)
        self.last = 3

    def suggest(self, trial: TrialId) -> Suggestion:
        self._hear("suggest", trial)
        assert self.may_answer.acquire(timeout=DEADLINE_S)
        return {"x": int(trial)} if int(trial) <= self.last else None

    def adopt(self, trial: TrialId, config: Config) -> None:
        self._hear("adopt", trial, config)

    def on_stage(self, trial: Trial) -> None:
        self._hear("stage", trial.id, trial.status)

    def on_report(self, trial: Trial, report: Report) -> None:
        if report.metrics["loss"] == "odd":
            raise ValueError("what is this?")
        self._hear("report", report.sequence)

    def on_trial_end(self, trial: Trial) -> None:
        self._hear("end", trial.id)

    def _hear(self, *call: Any) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def searcher(slow: Slow) -> Iterator[BackgroundSearcher]:
    # Else a suggestion that a loaded machine makes late has the next one worked out at once.
    with closing(BackgroundSearcher(slow, Timing(prefetch_s=DEADLINE_S))) as searcher:
        yield searcher
        slow.may_answer.release(10)


def trial(id_: TrialId = ONE, status: TrialStatus = TrialStatus.STAGED) -> Trial:
    return Trial(id_, {"x": 1}, status, [Attempt(1, 0.0, {"x": 1})])


def report(sequence: int, loss: object = 0.5) -> Report:
    return Report(ONE, 1, sequence, 0.0, {"loss": loss})


def answer(searcher: BackgroundSearcher, id_: TrialId) -> Config:
    """Return the suggestion once it is there."""
    found: list[Suggestion] = []
    eventually(lambda: found.append(searcher.suggest(id_)) or found[-1] is not WAIT)
    assert isinstance(found[-1], dict)
    return found[-1]


def test_whoever_asks_waits_for_nothing_and_gets_the_config_later(searcher: BackgroundSearcher, slow: Slow) -> None:
    assert [searcher.suggest(ONE) for _ in range(3)] == [WAIT] * 3

    slow.may_answer.release()
    assert answer(searcher, ONE) == {"x": 1}

    assert slow.calls == [("suggest", ONE)]
    assert slow.threads == {"mqtune-searcher"}


def test_what_it_is_told_while_it_works_it_hears_afterwards_and_in_order(
    searcher: BackgroundSearcher, slow: Slow
) -> None:
    searcher.suggest(ONE)
    eventually(lambda: slow.calls)
    running = trial()
    searcher.on_stage(running)
    running.status = TrialStatus.RUNNING
    for sequence in (1, 2, 3):
        searcher.on_report(running, report(sequence))
    searcher.adopt(TWO, {"x": 7})
    searcher.on_trial_end(running)
    assert slow.calls == [("suggest", ONE)]

    slow.may_answer.release()

    eventually(lambda: slow.calls[-1] == ("end", ONE))
    # Each trial as it was when it was told of.
    assert slow.calls[1:] == [
        ("stage", ONE, TrialStatus.STAGED),
        ("report", 1),
        ("report", 2),
        ("report", 3),
        ("adopt", TWO, {"x": 7}),
        ("end", ONE),
    ]


def test_the_users_process_keeps_its_settings(searcher: BackgroundSearcher, slow: Slow) -> None:
    interval = sys.getswitchinterval()
    decisions = BackgroundDecisions(dict)
    with closing(decisions):
        searcher.suggest(ONE)
        decisions.take()
        eventually(lambda: slow.calls)

        assert sys.getswitchinterval() == interval


def test_before_the_first_suggestion_all_is_done_at_once(searcher: BackgroundSearcher, slow: Slow) -> None:
    slow.may_answer.release()

    assert searcher.replay(ONE, {"x": 1}) == {"x": 1}
    searcher.on_stage(trial())
    searcher.on_report(trial(), report(1))

    assert slow.calls == [("suggest", ONE), ("stage", ONE, TrialStatus.STAGED), ("report", 1)]
    assert slow.threads == {threading.current_thread().name}


def test_after_a_suggestion_that_took_long_the_next_is_worked_out_before_it_is_asked_for(
    slow: Slow,
) -> None:
    with closing(BackgroundSearcher(slow)) as searcher:
        searcher.suggest(ONE)
        eventually(lambda: slow.calls)
        threading.Timer(3 * Timing().prefetch_s, slow.may_answer.release).start()
        answer(searcher, ONE)

        eventually(lambda: slow.calls == [("suggest", ONE), ("suggest", TWO)])
        slow.may_answer.release(10)


def test_after_a_quick_suggestion_the_next_one_waits_to_know_as_much_as_it_can(
    searcher: BackgroundSearcher, slow: Slow
) -> None:
    slow.may_answer.release()
    answer(searcher, ONE)
    searcher.on_report(trial(), report(1))
    eventually(lambda: len(slow.calls) == 2)
    slow.may_answer.release()
    answer(searcher, TWO)

    assert slow.calls == [("suggest", ONE), ("report", 1), ("suggest", TWO)]


def test_after_the_last_config_there_is_none(searcher: BackgroundSearcher, slow: Slow) -> None:
    slow.last = 0
    slow.may_answer.release(10)

    eventually(lambda: searcher.suggest(ONE) is None)


def test_an_error_comes_out_of_the_next_call_and_nothing_else_is_done(searcher: BackgroundSearcher, slow: Slow) -> None:
    slow.may_answer.release()
    answer(searcher, ONE)
    searcher.on_report(trial(), report(1, loss="odd"))

    def call_again() -> None:
        # The error may be there already.
        searcher.on_report(trial(), report(2))
        eventually(lambda: searcher.suggest(TWO) is not WAIT)

    with pytest.raises(
        UserCodeFailed, match=r"Slow.on_report raised ValueError: what is this\? \(trial 0001\)"
    ) as found:
        call_again()
    assert isinstance(found.value.__cause__, ValueError)
    assert slow.calls == [("suggest", ONE)]
    with pytest.raises(UserCodeFailed):
        searcher.on_trial_end(trial())


def test_it_can_be_closed_while_it_works(slow: Slow) -> None:
    searcher = BackgroundSearcher(slow)
    searcher.suggest(ONE)
    eventually(lambda: slow.calls)
    searcher.on_stage(trial())

    threading.Timer(_CLOSES_S, slow.may_answer.release).start()
    searcher.close()

    eventually(lambda: "mqtune-searcher" not in {thread.name for thread in threading.enumerate()})
    assert slow.calls == [("suggest", ONE)]
