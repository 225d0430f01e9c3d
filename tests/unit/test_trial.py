"""The lifecycle of a trial, against the table that the design draws."""

from __future__ import annotations

import itertools
import math

import pytest

from mqtune.errors import InvalidTransition
from mqtune.trial import CONTINUE, Action, Attempt, Decision, Report, Trial, TrialId, TrialStatus

#: Written from the drawing in TrialStatus, and not from the table in the code.
LEGAL = {
    ("CANDIDATE", "STAGED"),
    ("CANDIDATE", "ABANDONED"),
    ("STAGED", "STAGED"),  # a claim that was lost is staged again
    ("STAGED", "RUNNING"),
    ("STAGED", "EARLY_STOPPED"),
    ("STAGED", "FAILED"),
    ("STAGED", "ABANDONED"),
    ("RUNNING", "STAGED"),  # retry
    ("RUNNING", "PAUSED"),
    ("RUNNING", "COMPLETED"),
    ("RUNNING", "EARLY_STOPPED"),
    ("RUNNING", "FAILED"),
    ("RUNNING", "ABANDONED"),
    ("PAUSED", "STAGED"),  # resume
    ("PAUSED", "ABANDONED"),
}
NAMES = ["CANDIDATE", "STAGED", "RUNNING", "PAUSED", "COMPLETED", "EARLY_STOPPED", "FAILED", "ABANDONED"]
PAIRS = list(itertools.product(NAMES, NAMES))


def trial(status: str = "CANDIDATE") -> Trial:
    return Trial(TrialId("t7"), {"lr": 0.1}, TrialStatus[status])


def test_there_are_no_other_statuses() -> None:
    assert [status.name for status in TrialStatus] == NAMES


@pytest.mark.parametrize(("before", "after"), [pair for pair in PAIRS if pair in LEGAL])
def test_a_legal_step_is_taken_with_its_reason(before: str, after: str) -> None:
    subject = trial(before)

    subject.advance(TrialStatus[after], reason="because")

    assert subject.status is TrialStatus[after]
    assert subject.reason == "because"


@pytest.mark.parametrize(("before", "after"), [pair for pair in PAIRS if pair not in LEGAL])
def test_any_other_step_is_refused_and_changes_nothing(before: str, after: str) -> None:
    subject = trial(before)
    subject.reason = "so far"

    with pytest.raises(InvalidTransition) as caught:
        subject.advance(TrialStatus[after], reason="because")

    assert subject.status is TrialStatus[before]
    assert subject.reason == "so far"
    message = str(caught.value)
    assert f"trial t7 is {before} and can't become {after}" in message
    for name in NAMES:
        assert (name in message.split("what may follow:")[1]) == ((before, name) in LEGAL)


def test_the_message_for_a_terminal_status_says_that_nothing_follows() -> None:
    with pytest.raises(InvalidTransition, match="what may follow: nothing: the status is terminal"):
        trial("FAILED").advance(TrialStatus.STAGED)


@pytest.mark.parametrize("name", NAMES)
def test_a_status_is_terminal_exactly_if_nothing_follows(name: str) -> None:
    assert TrialStatus[name].is_terminal == (name in {"COMPLETED", "EARLY_STOPPED", "FAILED", "ABANDONED"})


@pytest.mark.parametrize("name", NAMES)
def test_a_trial_is_busy_while_it_is_staged_or_running(name: str) -> None:
    assert trial(name).is_busy == (name in {"STAGED", "RUNNING"})


def test_the_current_attempt_is_the_last_one() -> None:
    subject = trial()
    with pytest.raises(IndexError):
        _ = subject.attempt

    subject.attempts += [Attempt(1, 0.0), Attempt(2, 5.0)]

    assert subject.attempt.number == 2


def test_the_average_is_over_reports_with_a_number_and_nan_without() -> None:
    subject = trial()
    assert math.isnan(subject.average)

    subject.metric_sum, subject.metric_count = 3.0, 4

    assert subject.average == 0.75


def test_trials_share_no_state() -> None:
    first, second = trial(), trial()

    first.attempts.append(Attempt(1, 0.0))
    first.last_metrics["loss"] = 1

    assert second.attempts == []
    assert second.last_metrics == {}
    assert second.best_metrics == {}


def test_decisions_and_reports_are_values() -> None:
    assert Decision(Action.CONTINUE) == CONTINUE
    assert Decision(Action.STOP, "why") != Decision(Action.STOP)
    assert Report(TrialId("t"), 1, 2, 3.0, {"a": 1}) == Report(TrialId("t"), 1, 2, 3.0, {"a": 1})
