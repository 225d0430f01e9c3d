"""Impairments: one shape and one wording for whatever keeps a worker, or a device of it, from its work."""

from __future__ import annotations

import pytest
from fleets import worker

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import MessageVersionError
from mqtune.core.impairment import Impairment
from mqtune.core.worker_info import WorkerInfo

MEMORY = Impairment("0", "memory", "5.0 GB of its memory did not come back", "its memory is back", 100.0)
STARTS = Impairment("", "starts", "its last 3 attempts could not be started (?)", "an attempt is started", 90.5, 130.5)
LOGS = Impairment("", "logs", "No space left on device: /logs", "it can be written", 95)
ACCOUNT = Impairment("", "account", "its driver account can't log in: WRONGPASS", "the broker takes the login", 95)


def test_each_says_what_does_not_work_and_only_logs_and_logins_stop_no_trial():
    assert [each.reason for each in (MEMORY, STARTS, LOGS, ACCOUNT)] == [
        "device 0 is quarantined, 5.0 GB of its memory did not come back",
        "the worker takes no trials, its last 3 attempts could not be started (?)",
        "the worker keeps no output of trials, No space left on device: /logs",
        "the worker takes no submitted scripts, its driver account can't log in: WRONGPASS",
    ]
    assert [each.stops_trials for each in (MEMORY, STARTS, LOGS, ACCOUNT)] == [True, True, False, False]


@pytest.mark.parametrize(
    "impairment",
    [
        "logs",
        {"kind": "logs"},
        [],
        ["0", "memory", "text", "ends", "yesterday", 0.0],
        ["0", "memory", 5, "ends", 1.0, 0.0],
        ["0", "memory", "text", "ends", True, 0.0],
        ["0", "memory", "text", "ends", 1.0, 0.0, "more"],
    ],
)
def test_what_is_no_impairment_is_refused_with_the_description_that_has_it(impairment: object):
    version, body = decode_value(worker().encode())

    with pytest.raises(MessageVersionError, match="impairments="):
        WorkerInfo.decode(encode_value([version, {**body, "impairments": [impairment]}]))
