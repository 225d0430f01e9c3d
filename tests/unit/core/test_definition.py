from __future__ import annotations

from typing import Any

import pytest

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.events import START, VERSION, TrialStaged, decode_event
from mqtune.core.trial import TrialId
from mqtune.journal import Assignment


def decoded(kind: str, body: dict[str, object]) -> object:
    return decode_event(encode_value([VERSION, kind, body]))


LIMIT: dict[str, Any] = {"rule": "time_limit", "seconds": 5}
TARGET = {"rule": "target", "value": 1, "of": "loss"}
CREATED = {"name": "x", "at": 1.0}
DRIVEN = {"driver": "d", "version": "0.1.0", "at": 1.0, "cursor": ["0-0", 0]}
REQUESTED = {"id": "1", "action": "add", "trial": "", "by": "ada", "at": 1.0}


@pytest.mark.parametrize(
    ("kind", "body", "field", "before", "now"),
    [
        ("created", CREATED, "definition",
         {"ttl_s": 5, "metric_from": "first", "on_odd_report": "warn", "seed": 1, "stop": None},
         {"timeout_s": 5, "metric_required": "at_first_report", "on_invalid_report": "warn", "seed": 1, "stop": None}),
        ("created", CREATED, "definition", {"metric_from": "later"}, {"metric_required": "eventually"}),
        *(
            ("created", CREATED, "definition",
             {"stop": {"rule": "any", "rules": [{**LIMIT, "of": of}, TARGET]}},
             {"stop": {"rule": "any", "rules": [{**LIMIT, "count": count}, TARGET]}})
            for of, count in (("experiment", "wall_time"), ("driver", "driver_time"), ("trials", "trial_time"))
        ),
        ("driven", DRIVEN, "changes",
         {"ttl_s": None, "stop": {**LIMIT, "of": "trials"}}, {"timeout_s": None, "stop": {**LIMIT, "count": "trial_time"}}),
        ("requested", REQUESTED, "arguments", {"config": {"ttl_s": 1}, "ttl_s": 60}, {"config": {"ttl_s": 1}, "timeout_s": 60}),
    ],
)  # fmt: skip
def test_what_version_0_1_wrote_into_the_journal_has_the_names_of_this_version(
    kind: str, body: dict[str, Any], field: str, before: dict[str, Any], now: dict[str, Any]
) -> None:
    assert getattr(decoded(kind, {**body, field: before}), field) == now


def test_the_limit_of_an_attempt_keeps_its_key_in_messages() -> None:
    staged = TrialStaged(trial=TrialId("0001"), attempt=1, config={}, at=1.0, cursor=START, timeout_s=5)
    assignment = Assignment({}, timeout_s=5)

    assert decode_value(staged.encode())[2]["ttl_s"] == 5
    assert decode_event(staged.encode()) == staged
    assert decode_value(assignment.encode())["ttl_s"] == 5
    assert Assignment.decode(assignment.encode()) == assignment
