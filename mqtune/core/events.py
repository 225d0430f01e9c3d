"""The journal's events: frozen values in versioned msgpack, never a pickle.

An event is ``[VERSION, kind, body]``. A body is a map of the event's fields. The body of ``reports`` is a list of
segments ``[trial, attempt, first sequence number, [[timestamp, metrics], …]]``, so that workers and Redis can join and
drop reports without decoding them. A report with a checkpoint is ``[timestamp, metrics, checkpoint id]``.

Readers ignore unknown fields. An unknown version is a clear error.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self, cast, get_args

from msgspec import Meta

from mqtune.core.codec import (
    REPORTS,
    REPORTS_PREFIX,
    VERSION,
    Body,
    Number,
    decode_value,
    encode_value,
    is_version,
    readable_segments,
)
from mqtune.core.definition import with_new_names
from mqtune.core.errors import MessageVersionError
from mqtune.core.owner import Owner
from mqtune.core.plain import AttemptNumber, Count, field_values, from_plain
from mqtune.core.resources import Resources
from mqtune.core.trial import (
    REPORT_DEFAULTS,
    Action,
    AttemptEnd,
    Config,
    Intent,
    Metrics,
    Report,
    Restart,
    TrialId,
    TrialStatus,
    are_report_fields,
)

logger = logging.getLogger(__name__)


class Cursor(NamedTuple):
    """A driver's position in the journal: an entry, and the number of its processed reports."""

    #: The entry's id: two numbers of 64 bits.
    entry: Annotated[str, Meta(pattern=r"\A[0-9]{1,20}-[0-9]{1,20}\Z")]
    reports: int = 0


START: Final = Cursor("0-0")
#: The number of fields of a report without a checkpoint.
_PLAIN: Final = 2
_ACTIONS: Final = "|".join(action.value for action in [*Action, *(intent for intent in Intent if intent.hands_back)])
#: The name of an ``Action``, or of an intent that requeues an attempt.
ActionName = Annotated[str, Meta(pattern=rf"\A({_ACTIONS})\Z")]
StatusName = Annotated[str, Meta(pattern=rf"\A({'|'.join(status.value for status in TrialStatus)})\Z")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """An event whose body is a map of its fields."""

    KIND: ClassVar[str] = ""
    #: The field whose None is sent as an empty map.
    MAP: ClassVar[str] = ""
    #: The fields with another key in messages, and that key.
    KEYS: ClassVar[Mapping[str, str]] = {}
    #: The field with options by name. An earlier version may have written other names.
    OPTIONS: ClassVar[str] = ""

    def plain(self) -> Body:
        """Return, by field, the values that replace the event's own values in a message."""
        return {}

    def encode(self) -> bytes:
        """Encode the event.

        Raises:
            TypeError: a value has the wrong type, or can't be encoded.
        """
        values = field_values(self)
        from_plain(type(self), values)
        values = {self.KEYS.get(name, name): value for name, value in (values | self.plain()).items()}
        return encode_value([VERSION, self.KIND, values])

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Return the event with this body. Unknown fields are ignored."""
        if cls.MAP and isinstance(body, dict) and cls.MAP in body:
            if not isinstance(body[cls.MAP], dict):
                raise TypeError(f"{cls.MAP}={reprlib.repr(body[cls.MAP])}")
            body = {**body, cls.MAP: body[cls.MAP] or None}
        if isinstance(body, dict):
            body = {**body, **{name: body[key] for name, key in cls.KEYS.items() if key in body}}
            if isinstance(options := body.get(cls.OPTIONS), dict):
                body[cls.OPTIONS] = with_new_names(options)
        return from_plain(cls, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentCreated(_Body):
    """The first event: it has the experiment's definition."""

    KIND: ClassVar[str] = "created"
    OPTIONS: ClassVar[str] = "definition"
    name: str
    definition: Body
    at: Number
    #: The parts of the owner.
    account: str = ""
    user: str = ""
    host: str = ""

    @property
    def owner(self) -> Owner:
        """The person or program that created the experiment."""
        return Owner(self.account, self.user, self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStaged(_Body):
    """The driver stages an attempt, and queues it afterwards. Attempt 1 creates the trial."""

    KIND: ClassVar[str] = "staged"
    MAP: ClassVar[str] = "resources"
    KEYS: ClassVar[Mapping[str, str]] = {"timeout_s": "ttl_s"}
    trial: TrialId
    attempt: AttemptNumber
    config: Config
    at: Number
    cursor: Cursor
    #: Whether the searcher suggested the config, and suggests it again in a replay.
    suggested: bool = True
    reason: str = ""
    #: The origin of the attempt: "searcher", "scheduler", "user" or, for a retry, "driver".
    by: str = ""
    #: The checkpoint that it starts from, and the other trial that saved it. Both may be empty.
    checkpoint: str = ""
    source: str = ""
    #: The longest duration of the attempt, in seconds; None for no limit.
    timeout_s: Number | None = None
    #: The labels of a new trial.
    tags: list[str] = field(default_factory=list)
    notes: str = ""
    #: The id of the executed request, or empty.
    request: str = ""
    #: The user's own name for a new trial, or empty.
    key: str = ""
    #: Whether a person evaluates it outside. It waits in no queue and runs from now on.
    outside: bool = False
    #: The attempt's own resources, if they depend on its config. None stands for the experiment's resources.
    resources: Resources | None = None

    def plain(self) -> Body:
        """Return, by field, the values that replace the event's own values in a message."""
        return {"resources": {} if self.resources is None else self.resources.encode()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(_Body):
    """The driver accepts a report of an attempt that a person evaluates. The event carries it."""

    KIND: ClassVar[str] = "told"
    trial: TrialId
    attempt: AttemptNumber
    sequence: Count
    metrics: Metrics
    at: Number
    cursor: Cursor
    #: Whether the attempt ends with this report, even if the scheduler would continue the trial.
    ends: bool
    #: The id of the executed request, or empty.
    request: str = ""

    @property
    def report(self) -> Report:
        """The report."""
        return Report(self.trial, self.attempt, self.sequence, self.at, self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(_Body):
    """A worker starts the process of an attempt. All tasks of the attempt are claimed."""

    KIND: ClassVar[str] = "started"
    KEYS: ClassVar[Mapping[str, str]] = {"task": "seat"}
    trial: TrialId
    attempt: AttemptNumber
    worker: str
    host: str
    devices: list[str]
    at: Number
    stdout_path: str = ""
    stderr_path: str = ""
    queue: str = ""
    #: The versions of Python, of the imported packages and of the code.
    environment: Body = field(default_factory=dict)
    #: The attempt's own working folder; empty if it runs in the worker's.
    working_dir: str = ""
    #: A mark of the folder with its output. A folder with the same path on another machine has another mark.
    log_mark: str = ""
    #: The number of the task, from 0. Each task of an attempt has an event of its own. Messages call it
    #: ``seat``.
    task: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTaken(_Body):
    """The driver has decided to end an attempt.

    *sequence* is the number of the report that caused it, 0 for another cause.
    """

    KIND: ClassVar[str] = "decided"
    MAP: ClassVar[str] = "restart"
    trial: TrialId
    attempt: AttemptNumber
    sequence: Count
    action: ActionName
    intent: Intent
    reason: str
    at: Number
    cursor: Cursor
    #: The decider: "scheduler", "user", "driver", or the rule that stops trials.
    by: str = "scheduler"
    #: The start of the trial's next attempt, right after a pause. Without one the trial stays paused.
    restart: Restart | None = None
    #: The id of the executed request, or empty.
    request: str = ""

    def plain(self) -> Body:
        """Return, by field, the values that replace the event's own values in a message."""
        again = self.restart
        restart = {} if again is None else {**field_values(again), "source": again.source or ""}
        return {"intent": self.intent.value, "restart": restart}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(_Body):
    """A worker has a complete checkpoint without a report: saved on demand, or before a pause."""

    KIND: ClassVar[str] = "saved"
    trial: TrialId
    attempt: AttemptNumber
    checkpoint: str
    at: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsDropped(_Body):
    """The driver deletes unused checkpoints. From now on nothing can start from them.

    If the event has no cursor, Redis had lost the checkpoints, and the event was added when the journal was restored.
    """

    KIND: ClassVar[str] = "dropped"
    checkpoints: list[str]
    at: Number
    cursor: Cursor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialClosed(_Body):
    """The driver ends or pauses a trial that is paused or waits for a retry."""

    KIND: ClassVar[str] = "trial_closed"
    trial: TrialId
    status: StatusName
    reason: str
    by: str
    at: Number
    cursor: Cursor
    #: The id of the executed request, or empty.
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled(_Body):
    """A person replaces the tags and notes of a trial, or of the experiment if *trial* is empty."""

    KIND: ClassVar[str] = "labelled"
    trial: str
    tags: list[str]
    notes: str
    by: str
    at: Number
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStarted(_Body):
    """A driver begins or resumes the experiment. *changes* has the changed settings by name."""

    KIND: ClassVar[str] = "driven"
    OPTIONS: ClassVar[str] = "changes"
    driver: str
    version: str
    at: Number
    cursor: Cursor
    changes: Body = field(default_factory=dict)
    #: The files of the experiment's code that have changed since the previous driver.
    code_changed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(_Body):
    """An attempt has ended: its process group is gone, or never existed.

    The driver writes it, with a cursor, for an attempt that is lost, unclaimed or outside. Else the worker writes it.
    """

    KIND: ClassVar[str] = "ended"
    trial: TrialId
    attempt: AttemptNumber
    end: AttemptEnd
    at: Number
    pid: int = 0
    exit_code: int | None = None
    signal: int | None = None
    error_type: str = ""
    error: str = ""
    stdout_tail: str = ""
    stderr_tail: str = ""
    #: Whether it failed because it ran longer than its ``timeout_s``. The trial is not retried then.
    outlived: bool = False
    cursor: Cursor | None = None
    #: Why its process runs no further trial. Empty if it may.
    retired: str = ""
    #: Its use of the machine, see ``mqtune.core.usage``. It is empty if the attempt ended before the first sample.
    usage: Body = field(default_factory=dict)

    def plain(self) -> Body:
        """Return, by field, the values that replace the event's own values in a message."""
        return {"end": self.end.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEnded(_Body):
    """The driver ends: *outcome* is finished, interrupted or failed."""

    KIND: ClassVar[str] = "closed"
    outcome: str
    reason: str
    at: Number
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested(_Body):
    """A client asks the driver to do something.

    The journal has each request once, however often it was sent. The driver executes requests in the order of the
    journal. The next driver executes unanswered ones. An unknown action is refused.
    """

    KIND: ClassVar[str] = "requested"
    OPTIONS: ClassVar[str] = "arguments"
    #: Chosen by the client. A repeated request has the same id.
    id: str
    action: str
    #: The trial, or empty if the request concerns the experiment.
    trial: str
    arguments: Body
    #: The client, for people.
    by: str
    at: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAnswered(_Body):
    """The driver has executed a request, or refuses it for a reason."""

    KIND: ClassVar[str] = "answered"
    #: The request's id.
    id: str
    done: bool
    reason: str
    #: The trial that the request named or added, or empty.
    trial: str
    at: Number
    cursor: Cursor


#: For each attempt its trial, its number, the first report's sequence number, and the reports.
Segments = list[tuple[TrialId, int, int, list[tuple[float, Metrics]]]]


@dataclass(frozen=True, slots=True)
class Reports:
    """A batch of reports, in order within each attempt.

    ``unreadable`` counts the missing reports, which can't be read. If even their number can't be read, they count as
    one.
    """

    KIND: ClassVar[str] = REPORTS
    segments: Segments
    unreadable: int = 0

    def __iter__(self) -> Iterator[Report]:
        if len(self.segments) == 1 and len(self.segments[0][-1]) == 1:
            # The usual batch. A generator would cost more than the rest of this method.
            trial, attempt, sequence, (report,) = self.segments[0]
            return iter((Report(trial, attempt, sequence, *report),))
        return self._each()

    def _each(self) -> Iterator[Report]:
        new, kind, (no_checkpoint,) = tuple.__new__, Report, REPORT_DEFAULTS
        for trial, attempt, first, reports in self.segments:
            for sequence, report in enumerate(reports, first):
                # This is Report(…) in half the time, for a flood of reports.
                if len(report) == _PLAIN:
                    yield new(kind, (trial, attempt, sequence, report[0], report[1], no_checkpoint))
                else:
                    yield new(kind, (trial, attempt, sequence, *report))


Event = (
    ExperimentCreated
    | TrialStaged
    | AttemptStarted
    | Told
    | DecisionTaken
    | AttemptEnded
    | CheckpointSaved
    | CheckpointsDropped
    | TrialClosed
    | Labelled
    | DriverStarted
    | ExperimentEnded
    | Requested
    | RequestAnswered
    | Reports
)

_KINDS: Final[dict[str, type[_Body]]] = {kind.KIND: kind for kind in get_args(Event) if kind is not Reports}


def decode_event(data: bytes, entry: str = "") -> Event | None:
    """Decode an event. Return None for a kind that only a later mqtune knows.

    Errors name *entry*, the id of the journal's entry. Unreadable reports are left out and counted, with a warning: one
    trial's reports must not hide those of others.

    Raises:
        MessageVersionError: the version is unknown, or the bytes are not an event.
    """
    try:
        version, kind, body = decode_value(data)
    except (ValueError, TypeError) as error:
        if data.startswith(REPORTS_PREFIX):
            return _readable_reports(data, entry)
        raise MessageVersionError(f"{_name_of(entry)} holds {data[:100]!r}, which is not an event: {error}") from None
    if not is_version(version, VERSION):
        raise MessageVersionError(
            f"{_name_of(entry)} holds an event of version {reprlib.repr(version)}; this mqtune reads version "
            f"{VERSION}: upgrade it"
        )
    try:
        if kind == Reports.KIND:
            return Reports(body) if _are_sound(body) else _readable_reports(data, entry)
        known = _KINDS.get(kind)
        return None if known is None else cast("Event", known.from_body(body))
    except (TypeError, ValueError, LookupError) as error:
        raise MessageVersionError(f"{_name_of(entry)} holds a broken {reprlib.repr(kind)} event: {error}") from None


def sound_segments(data: bytes) -> Segments | None:
    """Return the segments of a batch of reports. None for another event or an unreadable report."""
    if not data.startswith(REPORTS_PREFIX):
        return None
    try:
        _, _, segments = decode_value(data)
    except (ValueError, TypeError):
        return None
    return segments if _are_sound(segments) else None


def _name_of(entry: str) -> str:
    return f"entry {entry} of the journal" if entry else "the journal"


def _are_sound(segments: Any) -> bool:
    """Whether all reports of *segments* can be read."""
    try:
        for trial, attempt, first, reports in segments:
            if (
                trial.__class__ is not str
                or attempt.__class__ is not int
                or first.__class__ is not int
                or reports.__class__ is not list
            ):
                return False
            for report in reports:
                # Not unpacked, which is faster for a flood of reports.
                if report[0].__class__ is not float or report[1].__class__ is not dict:
                    return False
                if len(report) != _PLAIN and not are_report_fields(report[_PLAIN:]):
                    return False
    except (TypeError, ValueError, LookupError):
        return False
    return True


def _readable_reports(data: bytes, entry: str) -> Reports:
    """Return the readable reports of a malformed event."""
    segments: Segments = []
    readable, unreadable = readable_segments(data)
    for trial, attempt, first, reports, missing in readable:
        unreadable += missing
        if not _are_sound([(trial, attempt, first, [])]):
            unreadable += len(reports)
            continue
        # Each report keeps its number.
        for number, report in enumerate(reports, first):
            if _are_sound([(trial, attempt, number, [report])]):
                segments.append((trial, attempt, number, [report]))
            else:
                unreadable += 1
    lost = max(unreadable, 1)
    logger.warning(
        "%s has %d report%s that can't be read; %s left out",
        _name_of(entry),
        lost,
        "s" * (lost > 1),
        "they are" if lost > 1 else "it is",
    )
    return Reports(segments, lost)


def is_of_driver(event: Event) -> bool:
    """Whether a driver wrote this event: only drivers' events have a cursor."""
    return getattr(event, "cursor", None) is not None
