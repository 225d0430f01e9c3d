"""What people see of attempts in Flower: one row for each, readable while it runs, and true at the end."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from mqtune.core.codec import decode_value
from mqtune.core.errors import TrialFailed
from mqtune.core.text import in_words
from mqtune.core.trial import AttemptEnd, TrialStatus
from mqtune.worker.attempt import AttemptRun, RunResult

__all__ = ["Rows", "Text", "failure", "latest_report"]

logger = logging.getLogger(__name__)

#: The last state of an attempt whose end Celery has no word for.
_LAST_STATE: Final = {
    AttemptEnd.STOPPED: TrialStatus.EARLY_STOPPED.value,
    AttemptEnd.PAUSED: TrialStatus.PAUSED.value,
    AttemptEnd.LOST: AttemptEnd.LOST.value,
    AttemptEnd.HANDED_BACK: AttemptEnd.HANDED_BACK.value,
    # Its lease had run out: the driver has counted it as lost.
    None: AttemptEnd.LOST.value,
}

#: The state of a row that runs.
_STARTED: Final = "started"
#: What Flower would note of a message that somebody sent just now.
_NOT_SENT: Final = {"sent": None, "client": None}


class Rows:
    """Puts rows right by events of its own; any thread may call it, and nothing that goes wrong here disturbs a trial.

    Flower takes a row's state from the event's name and everything else from its fields. Every event has all of the
    row, so that one that was missed, before Flower came or while its connection was down, leaves no gap. A row that
    runs is STARTED, the one state for which Flower has a filter and a button to end it, however often it is sent.

    Args:
        dispatcher: returns Celery's event dispatcher; None while there is no connection.
    """

    def __init__(self, dispatcher: Callable[[], Any]) -> None:
        self._dispatcher = dispatcher
        self._lock = threading.Lock()
        self._since: weakref.WeakKeyDictionary[AttemptRun, float] = weakref.WeakKeyDictionary()
        self._ended: weakref.WeakSet[AttemptRun] = weakref.WeakSet()

    def begin(self, run: AttemptRun) -> None:
        """Remember when an attempt came to this worker."""
        with self._lock:
            self._since[run] = time.time()

    def running(self, run: AttemptRun) -> None:
        """Show an attempt as it stands; once its end is shown this does nothing."""
        self._show(run, _STARTED)

    def end(self, run: AttemptRun, outcome: RunResult, *, by_hand: bool) -> None:
        """Show an attempt's last state, where it is none of Celery's own; one that was never claimed is another's row."""
        if not run.config and outcome.end is None:
            return
        if outcome.end in (AttemptEnd.COMPLETED, AttemptEnd.FAILED):
            # Celery's own event follows, which has neither config nor metrics.
            state = _STARTED
        elif outcome.end is AttemptEnd.STOPPED and (by_hand or run.is_abandoned):
            state = TrialStatus.ABANDONED.value
        else:
            state = _LAST_STATE[outcome.end]
        self._show(run, state, outcome=outcome)

    def abandoned(self, task_id: str, name: str, config: str) -> None:
        """Show the last state of an attempt that a person revoked before it ran."""
        self._send(f"task-{TrialStatus.ABANDONED.value}", lambda: {"uuid": task_id, "name": name, "kwargs": config})

    def _show(self, run: AttemptRun, state: str, outcome: RunResult | None = None) -> None:
        with self._lock:
            if run in self._ended:
                return
            if outcome is not None:
                self._ended.add(run)
            self._send(f"task-{state}", lambda: self._fields(run, outcome))
            if state == _STARTED:
                # Flower takes a start for the end of a task's wait, each time and unless it doesn't know since when that
                # waited. That is put back by the one event that changes neither a row's state nor Flower's counts.
                self._send("task-sent", lambda: {"uuid": run.task_id, "received": self._since.get(run), **_NOT_SENT})

    def _send(self, kind: str, fields: Callable[[], dict[str, Any]]) -> None:
        dispatcher = self._dispatcher()
        if dispatcher is None or (dispatcher.groups and "task" not in dispatcher.groups):
            return
        try:
            dispatcher.send(kind, **fields())
        except Exception as error:  # noqa: BLE001 - what people watch must not disturb what they watch
            logger.warning("Flower could not be told of a %s event: %s", kind, error)

    def _fields(self, run: AttemptRun, outcome: RunResult | None) -> dict[str, Any]:
        since = self._since.get(run)
        fields = {
            "uuid": run.task_id,
            "name": f"{run.journal.experiment}/{run.definition['trainable']['name']}",
            "args": "",
            "result": latest_report(run) if outcome is not None else _as_it_stands(run),
            "received": None,
            "started": since,
        }
        if run.config:
            fields["kwargs"] = in_words(run.config)
        # Celery says itself how long one took that completed, and Flower adds all of it up.
        if outcome is not None and outcome.end is not AttemptEnd.COMPLETED and since is not None:
            fields["runtime"] = time.time() - since
        if outcome is not None and outcome.end not in (AttemptEnd.COMPLETED, AttemptEnd.FAILED):
            fields["received"] = since
        return fields


def _as_it_stands(run: AttemptRun) -> str:
    """Return what an attempt that is here does, as a person reads it: its last report, once there is one."""
    if not run.is_running:
        return "imports its code" if run.is_importing else "waits for its slot"
    return latest_report(run) or "no report yet"


def latest_report(run: AttemptRun) -> str:
    """Return an attempt's last report as a person reads it; an empty text before the first."""
    if run.stream is None or run.stream.last_report is None:
        return ""
    _, metrics, *_ = decode_value(run.stream.last_report)
    return f"report {run.stream.sequence}: {in_words(metrics)}"


class Text:
    """What Celery shows as a task's result, without the quotes that it puts around a string."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def failure(outcome: RunResult) -> TrialFailed:
    """Return the error by which Celery hears of a failed attempt: its last line as the message, all of it in the traceback."""
    lines = [line for line in outcome.note.splitlines() if line and not line.startswith((" ", "("))]
    error = TrialFailed(lines[-1] if lines else outcome.note)
    error.add_note(outcome.note)
    return error
