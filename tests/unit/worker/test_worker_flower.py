"""What is sent to Flower of an attempt, and when nothing is."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery.events.state import State

from mqtune.core.codec import encode_value
from mqtune.core.trial import AttemptEnd
from mqtune.journal import Assignment
from mqtune.worker import Rows, RunResult


class Dispatcher:
    """Celery's event dispatcher, as far as rows use it."""

    def __init__(self, *groups: str) -> None:
        self.groups = set(groups)
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, kind: str, **fields: Any) -> None:
        self.sent.append((kind, fields))

    @property
    def kinds(self) -> list[str]:
        """Without what puts back since when a row's task had waited."""
        return [kind for kind, _ in self.sent if kind != "task-sent"]


class Run(SimpleNamespace):
    """An attempt that runs."""

    __hash__ = object.__hash__


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher("worker", "task")


@pytest.fixture
def rows(dispatcher: Dispatcher) -> Rows:
    return Rows(lambda: dispatcher)


@pytest.fixture
def run() -> Any:
    return Run(
        task_id="mnist/0007/2",
        journal=SimpleNamespace(experiment="mnist"),
        definition={"trainable": {"name": "train"}},
        assignment=Assignment({"lr": 0.000123456, "width": 64}),
        is_abandoned=False,
        is_running=True,
        is_importing=False,
        stream=SimpleNamespace(sequence=12, last_report=encode_value([1.5, {"loss": 0.25, "epoch": 12}])),
    )


def test_a_row_can_be_read_by_a_person(rows: Rows, dispatcher: Dispatcher, run: Any) -> None:
    run.stream.last_report = encode_value([1.5, {"loss": 0.25, "epoch": 12}, "p-0007-2-1"])
    rows.begin(run)
    rows.running(run)

    ((kind, fields), (second, again)) = dispatcher.sent
    # The one state for which Flower has a button and a filter.
    assert kind == "task-started"
    assert fields["uuid"] == "mnist/0007/2"
    assert fields["name"] == "mnist/train"
    assert fields["kwargs"] == "lr=0.00012346 width=64"
    assert fields["result"] == "report 12: loss=0.25 epoch=12"
    assert fields["started"] > 0
    assert fields["received"] is None, "each start would be counted as the end of a wait"
    assert (second, again["received"]) == ("task-sent", fields["started"])


@pytest.mark.parametrize(
    ("importing", "running", "shown"),
    [(True, False, "imports its code"), (False, False, "waits for its slot"), (False, True, "no report yet")],
)
def test_a_row_says_what_an_attempt_does_before_its_first_report(
    rows: Rows, dispatcher: Dispatcher, run: Any, importing: bool, running: bool, shown: str
) -> None:
    run.stream, run.is_importing, run.is_running = None, importing, running
    if not running:
        run.assignment = Assignment({})

    rows.begin(run)
    rows.running(run)

    _, fields = dispatcher.sent[0]
    assert fields["result"] == shown
    assert ("kwargs" in fields) == running, "what Celery said of its config stays"


def test_each_end_has_how_long_it_took_but_for_the_one_of_which_celery_says_so(
    rows: Rows, dispatcher: Dispatcher, run: Any
) -> None:
    for end in AttemptEnd:
        again = Run(**vars(run))
        rows.begin(again)
        dispatcher.sent.clear()
        rows.end(again, RunResult(end, ""))
        assert ("runtime" in dispatcher.sent[0][1]) == (end is not AttemptEnd.COMPLETED), end


def test_a_clock_that_is_set_back_makes_no_run_time_negative(
    rows: Rows, dispatcher: Dispatcher, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.begin(run)
    before = time.time()
    monkeypatch.setattr(time, "time", lambda: before - 3600.0)
    rows.end(run, RunResult(AttemptEnd.STOPPED, ""))

    assert dispatcher.sent[0][1]["runtime"] >= 0


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
def test_each_end_has_its_state(
    rows: Rows, dispatcher: Dispatcher, run: Any, end: AttemptEnd | None, is_abandoned: bool, kind: str
) -> None:
    run.is_abandoned = is_abandoned
    rows.end(run, RunResult(end, ""))

    assert dispatcher.kinds == [kind]


def test_a_heartbeat_that_comes_late_does_not_bring_an_ended_row_back(
    rows: Rows, dispatcher: Dispatcher, run: Any
) -> None:
    rows.running(run)
    rows.end(run, RunResult(AttemptEnd.HANDED_BACK, ""))
    rows.running(run)

    assert dispatcher.kinds == ["task-started", "task-handed_back"]
    taken = Run(**{**vars(run), "assignment": Assignment({})})
    rows.end(taken, RunResult(None, "not run: taken"))
    assert dispatcher.kinds == ["task-started", "task-handed_back"], "one that another worker has is not this one's"


def test_a_seat_that_was_held_in_vain_waits_for_its_next_worker(rows: Rows, dispatcher: Dispatcher, run: Any) -> None:
    run.task_id, run.assignment, run.stream, run.is_running = "mnist/0007~1/2", Assignment({}), None, False
    given_back = RunResult(None, "not run: its other seats were not taken in time", goes_back=True)

    rows.begin(run)
    rows.running(run)
    rows.end(run, given_back)
    # A heartbeat that comes late.
    rows.running(run)
    again = Run(**vars(run))
    rows.begin(again)
    rows.running(again)

    assert dispatcher.kinds == ["task-started", "task-retried", "task-started"]
    shown = State()
    for at, (kind, fields) in enumerate(dispatcher.sent):
        shown.event(
            {"type": kind, "timestamp": at, "local_received": at, "clock": at, "hostname": "w", "pid": 1, **fields}
        )
        if kind == "task-retried":
            row = shown.tasks["mnist/0007~1/2"]
            assert (row.state, row.result) == ("RETRY", "not run: its other seats were not taken in time")
    assert shown.tasks["mnist/0007~1/2"].state == "STARTED", "it is taken again, and Flower's rows never go back else"


def test_an_attempt_that_was_revoked_before_it_ran_has_a_readable_row(rows: Rows, dispatcher: Dispatcher) -> None:
    rows.revoked("mnist/0007/1", "mnist/train", "lr=0.1")

    assert dispatcher.sent == [
        ("task-early_stopped", {"uuid": "mnist/0007/1", "name": "mnist/train", "kwargs": "lr=0.1"})
    ]


def test_nothing_is_put_together_when_nobody_watches(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    others, all_of_it = Dispatcher("worker"), Dispatcher()
    Rows(lambda: all_of_it).running(run)
    run.assignment = None
    Rows(lambda: others).running(run)

    assert (others.sent, all_of_it.kinds) == ([], ["task-started"])
    assert caplog.text == "", "what can't be put together would be logged"


def test_what_goes_wrong_disturbs_no_trial(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    broken = SimpleNamespace(groups=set(), send=None)
    Rows(lambda: None).running(run)
    assert caplog.text == ""

    Rows(lambda: broken).running(run)

    assert "a task-started event could not be sent to Flower" in caplog.text
