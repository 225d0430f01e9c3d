from __future__ import annotations

from mqtune.core.codec import encode_value
from mqtune.core.events import (
    START,
    AttemptStarted,
    Cursor,
    Event,
    ExperimentCreated,
    ExperimentEnded,
    TrialStaged,
    events_in_order,
)
from mqtune.core.trial import TrialId

ONE, TWO = TrialId("0001"), TrialId("0002")


def staged(trial: TrialId, cursor: Cursor, attempt: int = 1) -> TrialStaged:
    return TrialStaged(trial=trial, attempt=attempt, config={}, at=1.0, cursor=cursor)


def started(trial: TrialId) -> AttemptStarted:
    return AttemptStarted(trial=trial, attempt=1, worker="w", host="h", devices=[], at=2.0)


CREATED = ExperimentCreated(name="x", definition={}, at=0.0)


def journal(*events: Event | bytes) -> list[tuple[str, bytes]]:
    """Entries 1-0, 2-0, and so on."""
    data = [event if isinstance(event, bytes) else event.encode() for event in events]  # type: ignore[union-attr]
    return [(f"{number}-0", event) for number, event in enumerate(data, 1)]


def test_kinds_of_a_later_mqtune_are_passed_over() -> None:
    strange = encode_value([1, "teleported", {"cursor": ["0-0", 0]}])

    assert list(events_in_order(journal(CREATED, strange, started(ONE)))) == [CREATED, started(ONE)]


def test_in_a_journal_whose_start_is_cut_off_nothing_is_lost() -> None:
    late, early = staged(ONE, Cursor("7-0")), staged(TWO, START)
    end = ExperimentEnded(outcome="finished", reason="", at=9.0, cursor=Cursor("1-0"))

    found = list(events_in_order(journal(started(ONE), late, early, end)))

    assert found == [started(ONE), end, late, early]
