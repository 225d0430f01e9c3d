from __future__ import annotations

from mqtune.core.codec import REPORTS_PREFIX, encode_value, pack_metrics, segment_bytes
from mqtune.core.events import (
    START,
    AttemptEnded,
    AttemptStarted,
    Cursor,
    DecisionTaken,
    Event,
    ExperimentCreated,
    ExperimentEnded,
    TrialStaged,
    driver_events,
    events_in_order,
)
from mqtune.core.trial import AttemptEnd, Intent, Report, TrialId

ONE, TWO = TrialId("0001"), TrialId("0002")


def staged(trial: TrialId, cursor: Cursor, attempt: int = 1) -> TrialStaged:
    return TrialStaged(trial=trial, attempt=attempt, config={}, at=1.0, cursor=cursor)


def started(trial: TrialId) -> AttemptStarted:
    return AttemptStarted(trial=trial, attempt=1, worker="w", host="h", devices=[], at=2.0)


def decided(trial: TrialId, cursor: Cursor) -> DecisionTaken:
    return DecisionTaken(
        trial=trial, attempt=1, sequence=1, action="stop", intent=Intent.STOP, reason="", at=3.0, cursor=cursor
    )


def ended(trial: TrialId, cursor: Cursor | None = None) -> AttemptEnded:
    return AttemptEnded(trial=trial, attempt=1, end=AttemptEnd.STOPPED, at=4.0, cursor=cursor)


CREATED = ExperimentCreated(name="x", definition={}, at=0.0)


def reports(*parts: tuple[TrialId, int, int]) -> bytes:
    """A batch: for each part, trial, first sequence number and how many."""
    packed = [segment_bytes(t, 1, n, [pack_metrics(5.0, {"n": n + i}) for i in range(count)]) for t, n, count in parts]
    return REPORTS_PREFIX + b"\xdd" + len(packed).to_bytes(4, "big") + b"".join(packed)


def journal(*events: Event | bytes) -> list[tuple[str, bytes]]:
    """Entries 1-0, 2-0, and so on."""
    data = [event if isinstance(event, bytes) else event.encode() for event in events]  # type: ignore[union-attr]
    return [(f"{number}-0", event) for number, event in enumerate(data, 1)]


def report(trial: TrialId, sequence: int) -> Report:
    return Report(trial, 1, sequence, 5.0, {"n": sequence})


def test_the_drivers_events_are_found_by_their_cursors_in_the_order_in_which_they_were_written() -> None:
    first, second, third = staged(ONE, START), staged(TWO, Cursor("3-0")), staged(TrialId("0003"), START)
    entries = journal(CREATED, first, started(ONE), second, third, ended(ONE))

    assert driver_events(entries) == {START: [first, third], Cursor("3-0"): [second]}


def test_an_event_of_the_driver_comes_right_behind_what_it_had_processed() -> None:
    decision, lost = decided(ONE, Cursor("3-0")), ended(TWO, Cursor("3-0"))
    entries = journal(CREATED, staged(ONE, START), started(ONE), started(TWO), ended(ONE), decision, lost)

    assert list(events_in_order(entries)) == [
        CREATED,
        staged(ONE, START),
        started(ONE),
        decision,
        lost,
        started(TWO),
        ended(ONE),
    ]


def test_a_decision_comes_between_two_reports_of_one_entry() -> None:
    decision, next_ = decided(ONE, Cursor("3-0", 2)), staged(TWO, Cursor("3-0", 4))
    entries = journal(CREATED, started(ONE), reports((ONE, 1, 3), (TWO, 7, 1)), decision, next_)

    assert list(events_in_order(entries)) == [
        CREATED,
        started(ONE),
        report(ONE, 1),
        report(ONE, 2),
        decision,
        report(ONE, 3),
        report(TWO, 7),
        next_,
    ]


def test_what_was_written_before_anything_had_happened_comes_behind_the_creation() -> None:
    first, second = staged(ONE, START), staged(TWO, START)

    assert list(events_in_order(journal(CREATED, first, second))) == [CREATED, first, second]


def test_kinds_of_a_later_mqtune_are_passed_over() -> None:
    strange = encode_value([1, "teleported", {"cursor": ["0-0", 0]}])

    assert list(events_in_order(journal(CREATED, strange, started(ONE)))) == [CREATED, started(ONE)]


def test_in_a_journal_whose_start_is_cut_off_nothing_is_lost() -> None:
    late, early = staged(ONE, Cursor("7-0")), staged(TWO, START)
    end = ExperimentEnded(outcome="finished", reason="", at=9.0, cursor=Cursor("1-0"))

    found = list(events_in_order(journal(started(ONE), late, early, end)))

    assert found == [started(ONE), end, late, early]


def test_an_empty_journal_has_no_events() -> None:
    assert list(events_in_order([])) == []
    assert driver_events([]) == {}
