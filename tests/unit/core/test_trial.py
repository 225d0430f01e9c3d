"""The lifecycle of a trial, against the table that the design draws."""

from __future__ import annotations

import copy
import itertools
import pickle
import re
from datetime import UTC, datetime

import pytest

from mqtune.core.errors import InvalidTransition
from mqtune.core.trial import (
    Transition,
    Trial,
    TrialId,
    TrialStatus,
    attempt_and_number,
    checkpoint_id,
    is_checkpoint_of,
    is_in_memory,
    trial_of,
)

#: Written from the drawing in TrialStatus, and not from the table in the code.
LEGAL = {
    ("CANDIDATE", "STAGED"),
    ("CANDIDATE", "ABANDONED"),
    ("STAGED", "STAGED"),  # a claim that was lost is staged again
    ("STAGED", "RUNNING"),
    ("STAGED", "PAUSED"),  # an attempt that was not claimed is taken back
    ("STAGED", "COMPLETED"),
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
    ("PAUSED", "EARLY_STOPPED"),  # its scheduler will not resume it
    ("PAUSED", "FAILED"),  # a person says so
    ("PAUSED", "ABANDONED"),
}
NAMES = ["CANDIDATE", "STAGED", "RUNNING", "PAUSED", "COMPLETED", "EARLY_STOPPED", "FAILED", "ABANDONED"]
PAIRS = list(itertools.product(NAMES, NAMES))


def trial(status: str = "CANDIDATE") -> Trial:
    return Trial(TrialId("t7"), {"lr": 0.1}, TrialStatus[status])


def test_a_status_can_not_be_set_past_its_history() -> None:
    known = trial()
    known.advance(TrialStatus.STAGED)
    known.advance(TrialStatus.RUNNING)

    with pytest.raises(InvalidTransition, match=r"trial t7 is RUNNING.*COMPLETED.*tuner\.trial\('t7'\)"):
        known.status = TrialStatus.COMPLETED

    assert known.status is TrialStatus.RUNNING
    assert copy.deepcopy(known) == known


def test_a_trial_equals_its_copy_before_it_has_a_value() -> None:
    assert pickle.loads(pickle.dumps(trial())) == trial()


@pytest.mark.parametrize(("before", "after"), [pair for pair in PAIRS if pair in LEGAL])
def test_a_legal_step_is_taken_with_its_reason(before: str, after: str) -> None:
    subject = trial(before)

    subject.advance(TrialStatus[after], reason="because", by="scheduler", at=12.5)

    assert subject.status is TrialStatus[after]
    assert subject.reason == "because"
    assert subject.history == [Transition(TrialStatus[after], 12.5, "because", "scheduler")]


@pytest.mark.parametrize(("before", "after"), [pair for pair in PAIRS if pair not in LEGAL])
def test_any_other_step_is_refused_and_changes_nothing(before: str, after: str) -> None:
    subject = trial(before)
    subject.reason = "so far"

    with pytest.raises(InvalidTransition) as caught:
        subject.advance(TrialStatus[after], reason="because")

    assert subject.status is TrialStatus[before]
    assert subject.reason == "so far"
    assert subject.history == []
    with pytest.raises(InvalidTransition, match=re.escape(str(caught.value))):
        subject.check(TrialStatus[after])
    message = str(caught.value)
    assert f"trial t7 is {before} and can't become {after}" in message
    for name in NAMES:
        assert (name in message.split("what may follow:")[1]) == ((before, name) in LEGAL)


#: Of which statuses each predicate is true, of a status or of its trial.
HOLDS: dict[str, set[str]] = {
    **{f"is_{name.lower()}": {name} for name in NAMES},
    "is_terminal": {"COMPLETED", "EARLY_STOPPED", "FAILED", "ABANDONED"},
    "is_deployed": {"STAGED", "RUNNING"},
    "is_busy": {"STAGED", "RUNNING"},
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
    assert subject.time_staged is subject.time_run_started is subject.time_completed is None

    for at, status in enumerate(("STAGED", "RUNNING", "STAGED", "RUNNING", "FAILED"), 1_700_000_000):
        subject.advance(TrialStatus[status], at=float(at))

    assert subject.time_staged == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert subject.time_run_started == datetime(2023, 11, 14, 22, 13, 21, tzinfo=UTC)
    assert subject.time_completed == datetime(2023, 11, 14, 22, 13, 24, tzinfo=UTC)


@pytest.mark.parametrize("trial_id", ["0001", "12345", "a-b"])
@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("claim", ["", "5f2c09ab", "12345678"])
def test_a_checkpoints_id_names_its_trial_attempt_and_number_and_where_it_is(
    trial_id: str, in_memory: bool, claim: str
) -> None:
    name = checkpoint_id(trial_id, 3, 17, in_memory=in_memory, claim=claim)

    assert trial_of(name) == trial_id
    assert attempt_and_number(name) == (3, 17)
    assert is_in_memory(name) is in_memory
    assert is_checkpoint_of(name, trial_id, 3, claim)
    assert not is_checkpoint_of(name, trial_id, 3, "another")
    assert not is_checkpoint_of(name, trial_id, 4, claim)
