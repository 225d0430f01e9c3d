"""Callbacks are called in order and off the decision path, also when they fail."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mqtune.core.callback import Callback
from mqtune.core.errors import ConfigurationError
from mqtune.core.experiment import Experiment
from mqtune.core.trial import (
    Action,
    Attempt,
    CheckpointId,
    Decision,
    Report,
    SavedCheckpoint,
    Transition,
    Trial,
    TrialId,
    TrialStatus,
)
from mqtune.results import CallbackDispatcher

T0 = 1_700_000_000.0
DEADLINE_S = 30.0


def trial(name: str = "0001") -> Trial:
    return Trial(TrialId(name), {"lr": 0.1}, TrialStatus.RUNNING, [Attempt(1, T0, {"lr": 0.1})])


def report(sequence: int = 1) -> Report:
    return Report(TrialId("0001"), 1, sequence, T0, {"loss": 1.0})


class Recorder(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []


METHODS = [name for name in vars(Callback) if name.startswith("on_")]
for _method in METHODS:
    setattr(Recorder, _method, lambda recorder, *told, name=_method: recorder.told.append((name, *told)))


class InLoop(Recorder):
    in_loop = True


class Slow(Recorder):
    """Takes as long for each report as it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.is_busy = threading.Event()

    def on_report(self, trial: Trial, report: Report) -> None:
        self.is_busy.set()
        self.go.wait(DEADLINE_S)
        super().on_report(trial, report)


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.go.set()


class Broken(Callback):
    """Fails whatever it is told."""

    error: BaseException = ValueError("no such row")

    def on_report(self, trial: Trial, report: Report) -> None:
        raise self.error

    def on_end(self) -> None:
        raise OSError("disk full")


class BrokenInLoop(Broken):
    in_loop = True


class Exiting(Broken):
    error = SystemExit(3)


def every_event(mine: Experiment, one: Trial) -> list[tuple[Any, ...]]:
    return [
        ("on_start", mine),
        ("on_queue", one),
        ("on_trial_start", one),
        ("on_report", one, report()),
        ("on_checkpoint", one, CheckpointId("p-0001-1-1")),
        ("on_decision", one, Decision(Action.PAUSE, "rung 1")),
        ("on_attempt_end", one, one.attempt),
        ("on_trial_pause", one),
        ("on_trial_resume", one),
        ("on_step", "no worker"),
        ("on_trial_end", one),
        ("on_restore", 7, 3),
        ("on_end",),
    ]


@pytest.mark.parametrize("kind", [Recorder, InLoop])
def test_a_callback_is_told_each_event_once_and_in_order(kind: type[Recorder]) -> None:
    recorder = kind()
    dispatcher = CallbackDispatcher([recorder])
    events = every_event(Experiment("mine", metric="loss", mode="min"), trial())

    for event in events:
        dispatcher.tell(*event)
    dispatcher.close()
    # Nothing is told after the end, and a second end does nothing.
    dispatcher.tell("on_end")
    dispatcher.close()

    assert recorder.told == events
    assert dispatcher.describe_problems() == ()
    assert {event[0] for event in events} == {*METHODS}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [(Recorder, r"give Recorder\(…\)"), ("log", "'log' is not a mqtune.Callback"), (None, "None is not")],
)
def test_what_is_no_callback_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        CallbackDispatcher([wrong])


def test_a_callback_gets_a_trial_as_it_was_at_the_event(slow: Slow) -> None:
    dispatcher, live = CallbackDispatcher([slow]), trial()
    dispatcher.tell("on_report", live, report())

    dispatcher.tell("on_queue", live)
    live.status = TrialStatus.COMPLETED
    live.config = {"lr": 0.2}
    live.attempt.pid = 7
    live.attempts.append(Attempt(2, T0))
    live.history.append(Transition(TrialStatus.COMPLETED, T0, "", ""))
    live.checkpoints[CheckpointId("p-0001-1-1")] = SavedCheckpoint(CheckpointId("p-0001-1-1"), T0, {})
    slow.go.set()
    dispatcher.close()

    assert [event[1] for event in slow.told] == [trial(), trial()]


@pytest.mark.parametrize("kind", [Broken, BrokenInLoop, Exiting])
def test_an_error_in_a_callback_ends_nothing(kind: type[Broken], caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    dispatcher = CallbackDispatcher([kind(), kind(), recorder])

    for sequence in range(1, 4):
        dispatcher.tell("on_report", trial(), report(sequence))
    dispatcher.tell("on_end")
    dispatcher.close()

    assert len(recorder.told) == 4
    error = f"{type(kind.error).__name__}: {kind.error}"
    assert dispatcher.describe_problems() == 2 * (
        f"{kind.__name__} failed 4 times, first in on_report on report 1 of trial 0001: {error}",
    )
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage().partition(";")[0] for record in errors] == 2 * [
        f"callback {kind.__name__}: on_report on report 1 of trial 0001 failed"
    ]
    assert errors[0].exc_info is not None
    assert errors[0].exc_info[1] is kind.error
    assert "failed 4 times" in caplog.records[-1].getMessage()


def test_reports_beyond_what_may_wait_are_left_out(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = CallbackDispatcher([slow], most_waiting=10)
    dispatcher.tell("on_report", trial(), report())
    assert slow.is_busy.wait(DEADLINE_S)

    for sequence in range(2, 32):
        dispatcher.tell("on_report", trial(), report(sequence))
        dispatcher.tell("on_trial_end", trial())
    dispatcher.tell("on_checkpoint", trial(), CheckpointId("p-0001-1-1"))
    slow.go.set()
    dispatcher.close()

    methods = [event[0] for event in slow.told]
    assert methods.count("on_report") == 1 + 5
    assert methods.count("on_trial_end") == 30
    assert dispatcher.describe_problems() == (
        "Slow could not keep up: 1 on_checkpoint and 25 on_report events were dropped; the journal has them",
    )
    assert sum("reports are dropped until" in record.getMessage() for record in caplog.records) == 1


def test_a_callback_that_hangs_does_not_keep_the_run_from_ending(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    next_one, before = Recorder(), {*threading.enumerate()}
    dispatcher = CallbackDispatcher([slow, next_one])
    dispatcher.tell("on_report", trial(), report())
    dispatcher.tell("on_trial_end", trial())
    dispatcher.tell("on_end")
    assert slow.is_busy.wait(DEADLINE_S)

    dispatcher.close(timeout_s=0.01)

    problem = "Slow was still busy with on_report when the run ended; 2 events were not delivered"
    assert dispatcher.describe_problems() == (problem,)
    assert caplog.records[-1].getMessage() == f"callbacks: {problem}"
    (thread,) = {*threading.enumerate()} - before
    assert thread.daemon
    slow.go.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert [event[0] for event in slow.told] == ["on_report"]
    assert next_one.told == []
    assert dispatcher.describe_problems() == (problem,)
