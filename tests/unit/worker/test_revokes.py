"""Revoked tasks are journaled, and the ids of other tasks cost nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mqtune.core.events import Requested
from mqtune.worker import Revokes


def test_a_revoke_is_journaled_also_behind_one_of_an_unknown_task(caplog: pytest.LogCaptureFixture) -> None:
    requests: dict[str, list[Requested]] = {"e": []}
    host: Any = SimpleNamespace(
        name="w@h",
        clock=SimpleNamespace(time=lambda: 5.0),
        journal=lambda experiment: SimpleNamespace(request=requests[experiment].append),
    )
    revokes = Revokes(host)
    revokes.start()

    revokes.add(["celery's own", "e/0001/2"])
    revokes.close()

    [request] = requests["e"]
    assert (request.trial, request.action, request.at) == ("0001", "stop", 5.0)
    assert request.by == "an operator through Celery, told by worker w@h"
    assert [record.getMessage() for record in caplog.records] == [
        "task celery's own was revoked, which this worker can't journal: mqtune has no task with this id"
    ]
