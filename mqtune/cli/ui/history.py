"""The events of an experiment in words, for the log on the live page."""

from __future__ import annotations

import heapq
import json
from collections import Counter, deque
from collections.abc import Mapping
from itertools import chain
from typing import Final, NamedTuple

from mqtune.core.events import (
    AttemptEnded,
    AttemptStarted,
    DecisionTaken,
    DriverStarted,
    Event,
    ExperimentCreated,
    ExperimentEnded,
    Labelled,
    RequestAnswered,
    Requested,
    TrialClosed,
    TrialStaged,
)
from mqtune.core.text import printable
from mqtune.core.trial import AttemptEnd, Report
from mqtune.results.frames import Row

#: The most lines in one response, and the most of each kind in memory.
_MOST: Final = 500
_REASON_CHARS: Final = 200
#: The kinds of lines by which the page can filter.
TRIALS, STOPS, FAILURES, PEOPLE, DRIVERS = "trials", "stops", "failures", "people", "drivers"
KINDS: Final = (TRIALS, STOPS, FAILURES, PEOPLE, DRIVERS)
_DECIDED: Final = {
    "stop": "stopped early",
    "pause": "paused",
    "complete": "completed",
    "abandon": "abandoned",
    "fail": "marked as failed",
}
_STATES: Final = {
    "stop": "early_stopped",
    "pause": "paused",
    "complete": "completed",
    "abandon": "abandoned",
    "fail": "failed",
}
_ENDED: Final = {
    AttemptEnd.COMPLETED: ("completed", "completed"),
    AttemptEnd.FAILED: ("failed", "failed"),
    AttemptEnd.LOST: ("lost its worker", "waiting"),
    AttemptEnd.HANDED_BACK: ("was handed back by its worker", "queued"),
}


class Line(NamedTuple):
    """A line of the log.

    Attributes:
        at: the time, in seconds since the epoch.
        kind: one of ``KINDS``.
        state: the state whose glyph is shown.
        trial: the trial's id, or empty.
    """

    at: float
    kind: str
    state: str
    trial: str
    text: str


class EventLog:
    """The newest lines of the log. Memory use does not grow with the number of ended trials."""

    def __init__(self) -> None:
        self._newest: dict[str, deque[tuple[int, Line]]] = {kind: deque(maxlen=_MOST) for kind in KINDS}
        self._totals: Counter[str] = Counter()
        self._number = 0
        #: The open requests by id, and the worker of each running trial.
        self._requests: dict[str, Requested] = {}
        self._workers: dict[str, str] = {}

    def add(self, event: Event | Report) -> None:
        """Add the line of an event, if people may be interested in it."""
        if (line := self._line_of(event)) is not None:
            self._number += 1
            self._totals[line.kind] += 1
            self._newest[line.kind].append((self._number, line))

    def page(self, kind: str = "") -> Row:
        """Return the newest lines of one kind or of all, and their total number."""
        kinds = KINDS if not kind else [kind] if kind in KINDS else []
        newest = heapq.nlargest(_MOST, chain.from_iterable(self._newest[kind] for kind in kinds))
        return {"lines": [line._asdict() for _, line in newest], "total": sum(self._totals[kind] for kind in kinds)}

    def _line_of(self, event: Event | Report) -> Line | None:
        """Return the line of an event, or None if nobody needs it."""
        match event:
            case ExperimentCreated():
                return Line(
                    event.at, DRIVERS, "queued", "", _with("created", f"by {event.owner}" if str(event.owner) else "")
                )
            case DriverStarted():
                changes = f"with {_given(event.changes)}" if event.changes else ""
                return Line(event.at, DRIVERS, "running", "", _with(f"driver {event.driver} began", changes))
            case TrialStaged():
                begun = "was queued" if event.attempt == 1 else f"was queued again, as attempt {event.attempt}"
                by = "by hand" if event.by == "user" else ""
                return Line(event.at, TRIALS, "queued", event.trial, _with(begun, by, reason=event.reason))
            case AttemptStarted() if not event.task:
                self._workers[event.trial] = event.worker
                return Line(event.at, TRIALS, "running", event.trial, f"started on {printable(event.worker)}")
            case DecisionTaken() if event.action in _DECIDED:
                report = f"after report {event.sequence}" if event.sequence else ""
                by = "by hand" if event.by == "user" else f"by the {event.by}"
                text = _with(_DECIDED[event.action], report, by, reason=event.reason)
                return Line(event.at, STOPS, _STATES[event.action], event.trial, text)
            case AttemptEnded() if event.end in _ENDED:
                words, state = _ENDED[event.end]
                kind = FAILURES if event.end in (AttemptEnd.FAILED, AttemptEnd.LOST) else TRIALS
                worker = self._workers.pop(event.trial, "")
                where = worker if event.end is AttemptEnd.LOST else ""
                reason = event.error.strip().rpartition("\n")[2] or event.error_type
                return Line(event.at, kind, state, event.trial, _with(words, printable(where), reason=reason))
            case TrialClosed():
                by = "by hand" if event.by == "user" else ""
                words = event.status.replace("early_stopped", "stopped early")
                return Line(event.at, STOPS, event.status, event.trial, _with(words, by, reason=event.reason))
            case Requested():
                self._requests[event.id] = event
                return Line(event.at, PEOPLE, "queued", event.trial, _request(event))
            case RequestAnswered() if (request := self._requests.pop(event.id, None)) is not None and not event.done:
                text = _with(f"the driver refused to {printable(request.action)}", reason=event.reason)
                return Line(event.at, PEOPLE, "failed", event.trial or request.trial, text)
            case Labelled():
                tags = f"tags {', '.join(map(printable, event.tags))}" if event.tags else "no tags"
                return Line(event.at, PEOPLE, "queued", event.trial, f"{printable(event.by)} labelled it: {tags}")
            case ExperimentEnded():
                return Line(event.at, DRIVERS, event.outcome, "", _with(event.outcome, reason=event.reason))
            case _:
                return None


def _request(event: Requested) -> str:
    given = {name: value for name, value in event.arguments.items() if value not in ("", None, [], {})}
    return _with(f"{printable(event.by) or 'somebody'} asked to {printable(event.action)}", _given(given))


def _given(values: Mapping[str, object]) -> str:
    text = " ".join(f"{name}={json.dumps(value, default=str)}" for name, value in values.items())
    return printable(text[:_REASON_CHARS])


def _with(text: str, *parts: str, reason: str = "") -> str:
    """Join the non-empty parts by spaces, and append the reason after a colon."""
    words = " ".join(part for part in (text, *parts) if part)
    cut = printable(reason[:_REASON_CHARS]).replace("\n", " ")
    return f"{words}: {cut}" if cut else words
