"""The order of a journal's events where it lacks some of them, or has kinds of a later mqtune; the others are in the replay's games."""

from __future__ import annotations

from mqtune.core.codec import encode_value
from mqtune.core.entries import events_in_order
from mqtune.core.events import START, AttemptStarted, Cursor, ExperimentEnded, TrialStaged
from mqtune.core.trial import TrialId


def test_in_a_journal_whose_start_is_cut_off_nothing_is_lost_and_kinds_of_a_later_mqtune_are_passed_over() -> None:
    started = AttemptStarted(trial=TrialId("0001"), attempt=1, worker="w", host="h", devices=[], at=2.0)
    late, early = (
        TrialStaged(trial=TrialId("0002"), attempt=1, config={}, at=1.0, cursor=cursor)
        for cursor in (Cursor("7-0"), START)
    )
    end = ExperimentEnded(outcome="finished", reason="", at=9.0, cursor=Cursor("1-0"))
    strange = encode_value([1, "teleported", {"cursor": ["0-0", 0]}])
    entries = [started.encode(), strange, late.encode(), early.encode(), end.encode()]

    found = list(events_in_order([(f"{number}-0", data) for number, data in enumerate(entries, 1)]))

    assert found == [started, end, late, early]
