"""The events of an attempt for Flower, and attempts without any."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from waiting import DEADLINE_S

from mqtune.core.codec import encode_value
from mqtune.core.trial import AttemptEnd
from mqtune.journal import Assignment
from mqtune.worker import FlowerRows, RunResult


class Dispatcher:
    """Celery's event dispatcher, as far as rows use it, without times of waiting."""

    def __init__(self, *groups: str) -> None:
        self.groups = set(groups)
        self.sent: dict[str, dict[str, Any]] = {}

    def send(self, kind: str, **fields: Any) -> None:
        if kind != "task-sent":
            self.sent[kind] = fields


def a_run(**fields: Any) -> Any:
    report = encode_value([1.5, {"loss": 0.25, "epoch": 12}, "p-0007-2-1"])
    return Mock(
        task_id="mnist/0007/2",
        journal=SimpleNamespace(experiment="mnist"),
        definition={"trainable": {"name": "train"}},
        assignment=Assignment({"lr": 0.000123456, "width": 64}),
        stream=SimpleNamespace(sequence=12, last_report=report),
        **{"is_abandoned": False, "is_importing": False, **fields},
    )


@pytest.mark.parametrize(
    ("end", "is_abandoned", "kind"),
    [
        # Also after a revoke or a Terminate.
        (AttemptEnd.STOPPED, False, "task-early_stopped"),
        (AttemptEnd.STOPPED, True, "task-abandoned"),
        # The worker shut down before the person's request took effect.
        (AttemptEnd.HANDED_BACK, True, "task-handed_back"),
        (None, False, "task-lost"),
        # Celery's own event, which has neither config nor metrics, follows and takes precedence.
        (AttemptEnd.COMPLETED, False, "task-started"),
        (AttemptEnd.FAILED, False, "task-started"),
    ],
)
def test_each_end_has_its_state_and_time_in_flower(end: AttemptEnd | None, is_abandoned: bool, kind: str) -> None:
    run, clock = a_run(is_abandoned=is_abandoned), SimpleNamespace(time=time.time, monotonic=time.monotonic)
    dispatcher = Dispatcher("worker", "task")
    rows = FlowerRows(lambda: dispatcher, clock)
    rows.begin(run)
    # A clock that is set back makes no time negative.
    clock.time = lambda: time.time() - 3600.0
    rows.end(run, RunResult(end, ""))

    assert [*dispatcher.sent] == [kind]
    fields = dispatcher.sent[kind]
    assert ("runtime" in fields) == (end is not AttemptEnd.COMPLETED)
    assert 0 <= fields.get("runtime", 0.0) < DEADLINE_S


def test_no_error_of_what_people_watch_disturbs_a_trial() -> None:
    unheard, broken = Dispatcher("worker"), Mock(groups=set(), **{"send.side_effect": OSError("gone")})
    for dispatcher in (None, unheard, broken):
        FlowerRows(lambda dispatcher=dispatcher: dispatcher).running(a_run())
    assert (unheard.sent, broken.send.called) == ({}, True)
