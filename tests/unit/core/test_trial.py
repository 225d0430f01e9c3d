"""The lifecycle of a trial, against the table that the design draws."""

from __future__ import annotations

import copy
import itertools
from datetime import UTC, datetime

import pytest

from mqtune.core.errors import InvalidTransition
from mqtune.core.trial import EFFECTS, Action, Intent, Transition, Trial, TrialId, TrialStatus

#: Written from the drawing in TrialStatus, and not from the table in the code.
LEGAL = {
    ("CANDIDATE", "QUEUED"),
    ("CANDIDATE", "ABANDONED"),
    ("QUEUED", "QUEUED"),  # a claim that was lost is queued again
    ("QUEUED", "RUNNING"),
    ("QUEUED", "PAUSED"),  # an attempt that was not claimed is taken back
    ("QUEUED", "COMPLETED"),
    ("QUEUED", "EARLY_STOPPED"),
    ("QUEUED", "FAILED"),
    ("QUEUED", "ABANDONED"),
    ("RUNNING", "QUEUED"),  # retry
    ("RUNNING", "PAUSED"),
    ("RUNNING", "COMPLETED"),
    ("RUNNING", "EARLY_STOPPED"),
    ("RUNNING", "FAILED"),
    ("RUNNING", "ABANDONED"),
    ("PAUSED", "QUEUED"),  # resume
    ("PAUSED", "EARLY_STOPPED"),  # its scheduler will not resume it
    ("PAUSED", "FAILED"),  # a person says so
    ("PAUSED", "ABANDONED"),
}
NAMES = ["CANDIDATE", "QUEUED", "RUNNING", "PAUSED", "COMPLETED", "EARLY_STOPPED", "FAILED", "ABANDONED"]


def trial(status: str = "CANDIDATE") -> Trial:
    return Trial(TrialId("t7"), {"lr": 0.1}, TrialStatus[status])


def test_a_status_can_not_be_set_past_its_history() -> None:
    known = trial()
    known.advance(TrialStatus.QUEUED)
    known.advance(TrialStatus.RUNNING)

    with pytest.raises(InvalidTransition, match=r"trial t7 is RUNNING.*COMPLETED.*tuner\.trial\('t7'\)"):
        known.status = TrialStatus.COMPLETED

    assert known.status is TrialStatus.RUNNING
    assert copy.deepcopy(known) == known


@pytest.mark.parametrize(("before", "after"), [*itertools.product(NAMES, NAMES)])
def test_a_step_is_taken_with_its_reason_or_refused_without_a_change(before: str, after: str) -> None:
    subject = trial(before)

    if (before, after) in LEGAL:
        subject.advance(TrialStatus[after], reason="because", by="scheduler", at=12.5)
        assert (subject.status, subject.reason) == (TrialStatus[after], "because")
        assert subject.history == [Transition(TrialStatus[after], 12.5, "because", "scheduler")]
        return
    with pytest.raises(InvalidTransition, match=f"trial t7 is {before} and can't become {after}") as caught:
        subject.advance(TrialStatus[after], reason="because")
    assert (subject.status, subject.reason, subject.history) == (TrialStatus[before], "", [])
    following = str(caught.value).split("it may become")[1]
    assert {name for name in NAMES if name in following} == {after for status, after in LEGAL if status == before}


#: The statuses for which each predicate of a status, or of its trial, is true.
HOLDS: dict[str, set[str]] = {
    **{f"is_{name.lower()}": {name} for name in NAMES},
    "is_terminal": {"COMPLETED", "EARLY_STOPPED", "FAILED", "ABANDONED"},
    "is_deployed": {"QUEUED", "RUNNING"},
    "is_busy": {"QUEUED", "RUNNING"},
    "expecting_data": {"RUNNING", "PAUSED", "COMPLETED", "EARLY_STOPPED"},
    "completed_successfully": {"COMPLETED"},
    "did_not_complete": {"EARLY_STOPPED", "FAILED", "ABANDONED"},
}


def test_a_status_shows_its_name_and_each_predicate_is_true_of_its_statuses_alone() -> None:
    assert [str(status) for status in TrialStatus] == [f"TrialStatus.{name}" for name in NAMES]
    for predicate, holds in HOLDS.items():
        subjects = {name: TrialStatus[name] if hasattr(TrialStatus, predicate) else trial(name) for name in NAMES}

        assert {name for name, subject in subjects.items() if getattr(subject, predicate)} == holds, predicate


def test_times_are_those_of_the_first_step_to_a_status_in_utc() -> None:
    subject = trial()
    assert subject.time_queued is subject.time_run_started is subject.time_completed is None

    for at, status in enumerate(("QUEUED", "RUNNING", "QUEUED", "RUNNING", "FAILED"), 1_700_000_000):
        subject.advance(TrialStatus[status], at=float(at))

    assert subject.time_queued == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert subject.time_run_started == datetime(2023, 11, 14, 22, 13, 21, tzinfo=UTC)
    assert subject.time_completed == datetime(2023, 11, 14, 22, 13, 24, tzinfo=UTC)


def test_each_decision_has_one_effect_for_its_worker_and_its_trial() -> None:
    assert {each.value for each in Action} | {each.value for each in Intent} == {*EFFECTS, "run"}
    for intent in Intent:
        assert intent.effect.intent is intent
    # A worker stops a trial that is to fail; an attempt that may save can resume.
    assert {action.value for action in Action if action.effect.intent.value != action.value} == {"continue", "fail"}
    assert {word for word, effect in EFFECTS.items() if effect.keeps_state} == {"pause", "hand_back", "give_way"}
    assert {word for word, effect in EFFECTS.items() if not effect.status.is_terminal} == {
        "continue", "pause", "hand_back", "give_way",
    }  # fmt: skip


def test_a_decision_replaces_a_pause_and_to_abandon_replaces_any_other() -> None:
    decisions = [each for each in Action if each is not Action.CONTINUE]
    replaced = {(new.value, old.value) for new in decisions for old in decisions if new.effect.replaces(old.effect)}

    assert replaced == {(new.value, "pause") for new in decisions if new is not Action.PAUSE} | {
        ("abandon", old.value) for old in decisions if old is not Action.ABANDON
    }
