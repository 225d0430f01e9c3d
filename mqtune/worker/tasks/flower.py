"""Shows attempts in Flower: one readable row for each, with its actual end."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from mqtune.core.clock import Clock
from mqtune.core.codec import decode_value
from mqtune.core.errors import TrialFailed
from mqtune.core.text import in_words
from mqtune.core.trial import AttemptEnd, TrialStatus
from mqtune.worker.attempts.attempt import AttemptRun
from mqtune.worker.reports.outcome import RunResult

logger = logging.getLogger(__name__)

#: The last states of attempts, by their end, as far as Celery has no state for it.
_LAST_STATE: Final = {
    AttemptEnd.STOPPED: TrialStatus.EARLY_STOPPED.value,
    AttemptEnd.PAUSED: TrialStatus.PAUSED.value,
    AttemptEnd.LOST: AttemptEnd.LOST.value,
    AttemptEnd.HANDED_BACK: AttemptEnd.HANDED_BACK.value,
    # Its lease had expired, so the driver has counted it as lost.
    None: AttemptEnd.LOST.value,
}

#: State of a running row.
_STARTED: Final = "started"
#: The state of a row whose task returns to its queue. After any other state Flower would ignore the earlier states that
#: follow when a worker takes the task again.
_GOES_BACK: Final = "retried"
#: Fields that Flower would otherwise fill as for a message sent now.
_NOT_SENT: Final = {"sent": None, "client": None}


class FlowerRows:
    """Corrects Flower's rows by sending events. Thread-safe; failures never disturb a trial.

    Flower takes a row's state from the event's name and everything else from its fields. Each event has the complete
    row, so missed events leave no gap. A running row is STARTED, because only that state has a filter and a stop button
    in Flower. *dispatcher* returns Celery's event dispatcher, or None while there is no connection.
    """

    def __init__(self, dispatcher: Callable[[], Any], clock: Clock = time) -> None:
        self._clock = clock
        self._dispatcher = dispatcher
        self._lock = threading.Lock()
        #: Arrival time of each attempt, by this machine's clock, which Flower shows, and by the monotonic clock.
        self._since: weakref.WeakKeyDictionary[AttemptRun, tuple[float, float]] = weakref.WeakKeyDictionary()
        self._ended: weakref.WeakSet[AttemptRun] = weakref.WeakSet()

    def begin(self, run: AttemptRun) -> None:
        """Record the arrival of an attempt at this worker."""
        with self._lock:
            self._since[run] = self._clock.time(), self._clock.monotonic()

    def running(self, run: AttemptRun) -> None:
        """Show an attempt's current state. Do nothing after its end is shown."""
        self._show(run, _STARTED)

    def end(self, run: AttemptRun, outcome: RunResult) -> None:
        """Show an attempt's last state, or that it waits again if its task goes back to the queue.

        For completed and failed attempts, Celery's own event follows. Nothing is shown for an attempt that was not
        claimed: its row belongs to another worker.
        """
        if outcome.goes_back:
            self._show(run, _GOES_BACK, outcome=outcome)
            return
        if not run.assignment.config and outcome.end is None:
            return
        if outcome.end in (AttemptEnd.COMPLETED, AttemptEnd.FAILED):
            # Celery's own event follows, without config and metrics.
            state = _STARTED
        elif outcome.end is AttemptEnd.STOPPED and run.is_abandoned:
            state = TrialStatus.ABANDONED.value
        else:
            state = _LAST_STATE[outcome.end]
        self._show(run, state, outcome=outcome)

    def revoked(self, task_id: str, name: str, config: str) -> None:
        """Show the last state of an attempt that was revoked before it ran."""
        self._send(f"task-{_LAST_STATE[AttemptEnd.STOPPED]}", lambda: {"uuid": task_id, "name": name, "kwargs": config})

    def _show(self, run: AttemptRun, state: str, outcome: RunResult | None = None) -> None:
        with self._lock:
            if run in self._ended:
                return
            if outcome is not None:
                self._ended.add(run)
            self._send(f"task-{state}", lambda: self._fields(run, outcome))
            if state == _STARTED:
                # Flower counts each start as the end of a wait, unless the beginning is unknown. This event resets the
                # beginning. It changes neither the row's state nor Flower's counts.
                self._send("task-sent", lambda: {"uuid": run.task_id, "received": self._came_at(run)[0], **_NOT_SENT})

    def _send(self, kind: str, fields: Callable[[], dict[str, Any]]) -> None:
        dispatcher = self._dispatcher()
        if dispatcher is None or (dispatcher.groups and "task" not in dispatcher.groups):
            return
        try:
            dispatcher.send(kind, **fields())
        except Exception as error:  # noqa: BLE001 - what people watch must not disturb what they watch
            logger.warning("a %s event could not be sent to Flower: %s", kind, error)

    def _came_at(self, run: AttemptRun) -> tuple[float, float] | tuple[None, None]:
        return self._since.get(run, (None, None))

    def _fields(self, run: AttemptRun, outcome: RunResult | None) -> dict[str, Any]:
        since, came_at = self._came_at(run)
        fields = {
            "uuid": run.task_id,
            "name": f"{run.journal.experiment}/{run.definition['trainable']['name']}",
            "args": "",
            "result": _current_result(run)
            if outcome is None
            else outcome.note
            if outcome.goes_back
            else latest_report(run),
            "received": None,
            "started": since,
        }
        if run.assignment.config:
            fields["kwargs"] = in_words(run.assignment.config)
        # Celery sends the run time of a completed task itself, and Flower adds them up.
        if outcome is not None and outcome.end is not AttemptEnd.COMPLETED and came_at is not None:
            fields["runtime"] = self._clock.monotonic() - came_at
        if outcome is not None and outcome.end not in (AttemptEnd.COMPLETED, AttemptEnd.FAILED):
            fields["received"] = since
        return fields


def _current_result(run: AttemptRun) -> str:
    if not run.is_running:
        return "imports its code" if run.is_importing else "waits for its slot"
    return latest_report(run) or "no report yet"


def latest_report(run: AttemptRun) -> str:
    """Return an attempt's last report as text; empty before the first report."""
    if run.stream is None or run.stream.last_report is None:
        return ""
    _, metrics, *_ = decode_value(run.stream.last_report)
    return f"report {run.stream.sequence}: {in_words(metrics)}"


class Text:
    """A task's result as text. Celery would show a string in quotes."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def failure(outcome: RunResult) -> TrialFailed:
    """Return the exception by which Celery shows a failed attempt.

    Its message is the last line of the error, and a note has the whole error.
    """
    lines = [line for line in outcome.note.splitlines() if line and not line.startswith((" ", "("))]
    error = TrialFailed(lines[-1] if lines else outcome.note)
    error.add_note(outcome.note)
    return error
