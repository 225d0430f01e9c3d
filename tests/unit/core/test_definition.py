from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(
    ("earlier", "now"), [("experiment", "wall_time"), ("driver", "driver_time"), ("trials", "trial_time")]
)
def test_a_time_limit_among_other_rules_has_the_names_of_this_version(earlier: str, now: str) -> None:
    limit, other = {"rule": "time_limit", "seconds": 5}, {"rule": "target", "value": 1, "of": "loss"}
    stop = {"rule": "any", "rules": [{**limit, "of": earlier}, other]}

    event = decoded("created", {"name": "x", "definition": {"stop": stop}, "at": 1.0})

    assert isinstance(event, ExperimentCreated)
    assert event.definition == {"stop": {"rule": "any", "rules": [{**limit, "count": now}, other]}}


def test_a_metric_that_may_come_later_has_the_name_of_this_version() -> None:
    event = decoded("created", {"name": "x", "definition": {"metric_from": "later"}, "at": 1.0})

    assert isinstance(event, ExperimentCreated)
    assert event.definition == {"metric_required": "eventually"}


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
