from __future__ import annotations

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.events import START, VERSION, DriverStarted, ExperimentCreated, Requested, TrialStaged, decode_event
from mqtune.core.trial import TrialId
from mqtune.journal import Assignment


def decoded(kind: str, body: dict[str, object]) -> object:
    return decode_event(encode_value([VERSION, kind, body]))


def test_a_definition_in_the_journal_has_the_names_of_this_version() -> None:
    definition = {"ttl_s": 5, "metric_from": "first", "on_odd_report": "warn", "seed": 1, "stop": None}

    event = decoded("created", {"name": "x", "definition": definition, "at": 1.0})

    assert isinstance(event, ExperimentCreated)
    assert event.definition == {
        "timeout_s": 5, "metric_required": "at_first_report", "on_invalid_report": "warn", "seed": 1, "stop": None
    }  # fmt: skip


def test_changes_in_the_journal_have_the_names_of_this_version() -> None:
    changes = {"ttl_s": None, "stop": {"rule": "time_limit", "seconds": 5, "of": "trials"}}

    event = decoded("driven", {"driver": "d", "version": "0.1.0", "at": 1.0, "cursor": ["0-0", 0], "changes": changes})

    assert isinstance(event, DriverStarted)
    assert event.changes == {
        "timeout_s": None, "stop": {"rule": "time_limit", "seconds": 5, "count": "trial_time"}
    }  # fmt: skip


def test_a_request_in_the_journal_has_the_names_of_this_version() -> None:
    arguments = {"config": {"ttl_s": 1}, "ttl_s": 60}

    event = decoded(
        "requested", {"id": "1", "action": "add", "trial": "", "arguments": arguments, "by": "ada", "at": 1.0}
    )

    assert isinstance(event, Requested)
    assert event.arguments == {"config": {"ttl_s": 1}, "timeout_s": 60}


def test_the_limit_of_an_attempt_keeps_its_key_in_messages() -> None:
    staged = TrialStaged(trial=TrialId("0001"), attempt=1, config={}, at=1.0, cursor=START, timeout_s=5)
    assignment = Assignment({}, timeout_s=5)

    assert decode_value(staged.encode())[2]["ttl_s"] == 5
    assert decode_event(staged.encode()) == staged
    assert decode_value(assignment.encode())["ttl_s"] == 5
    assert Assignment.decode(assignment.encode()) == assignment
