"""What travels: the journal's events, as frozen values in versioned msgpack; never a pickle.

An event is ``[VERSION, kind, body]``. A body is a map of the event's fields, except that of ``reports``, whose body is
a list of segments ``[trial, attempt, first sequence number, [[timestamp, metrics], …]]`` so that a worker can join
reports to a batch, and Redis can drop refused ones, without reading their metrics. A report that came with a checkpoint
is ``[timestamp, metrics, checkpoint id]``.

Fields that a reader doesn't know are ignored; a version that it doesn't know is a clear error.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import reprlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, Self, cast, get_args

from mqtune.core.codec import (
    REPORTS,
    REPORTS_PREFIX,
    VERSION,
    Body,
    decode_value,
    encode_value,
    is_version,
    readable_segments,
)
from mqtune.core.errors import MessageVersionError
from mqtune.core.fields import (
    FIELDS,
    ActionName,
    Field,
    StatusName,
    known_fields,
    made_fields,
    plain_fields,
    unusual_fields,
)
from mqtune.core.impairment import Impairment
from mqtune.core.owner import NOBODY, Owner
from mqtune.core.resources import Resources
from mqtune.core.trial import (
    REPORT_DEFAULTS,
    AttemptEnd,
    Config,
    Intent,
    Metrics,
    Report,
    Restart,
    TrialId,
    are_report_fields,
)


def decode_definition(experiment: str, kept: bytes | None) -> Body:
    """Decode an experiment's definition, which is kept beside its journal.

    Raises:
        MessageVersionError: it is missing or malformed.
    """
    if kept is None:
        raise MessageVersionError(f"there is no experiment {experiment!r}, or nothing of it is left")
    try:
        definition = decode_value(kept)
    except ValueError as error:
        raise MessageVersionError(f"experiment {experiment!r} has a definition that can't be read: {error}") from None
    if not isinstance(definition, dict):
        raise MessageVersionError(f"experiment {experiment!r} has {reprlib.repr(definition)} for a definition")
    return definition


logger = logging.getLogger(__name__)


class Cursor(NamedTuple):
    """A driver's position in the journal when it wrote an event.

    It is an entry, and the number of reports in it that the driver had processed.
    """

    entry: str
    reports: int = 0


START: Final = Cursor("0-0")
#: The id of an entry: two numbers of 64 bits.
_ENTRY: Final = re.compile(r"\d{1,20}-\d{1,20}", re.ASCII)
#: How many fields every report of a segment has: the time and the metrics.
_PLAIN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """An event whose body is a map of its fields."""

    KIND: ClassVar[str] = ""

    def encode(self) -> bytes:
        """Encode the event.

        Raises:
            TypeError: a value is not what its field holds, or can't be encoded.
        """
        body = plain_fields(type(self), self)
        known_fields(type(self), body)
        return encode_value([VERSION, self.KIND, body])

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Return the event that *body* describes; fields that are not known are ignored."""
        return cls(**made_fields(cls, body))


def _cursor(value: Any) -> Cursor | None:
    if value is None:
        return None
    entry, reports = value
    if type(entry) is not str or type(reports) is not int or not _ENTRY.fullmatch(entry):
        raise TypeError(f"cursor={reprlib.repr(value)}")
    return Cursor(entry, reports)


FIELDS["Cursor"] = Field((list, tuple), _cursor)
FIELDS["Cursor | None"] = Field((list, tuple, type(None)), _cursor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentCreated(_Body):
    """The first event: what is tuned, and how."""

    KIND: ClassVar[str] = "created"
    name: str
    definition: Body
    at: float
    #: The parts of its owner.
    account: str = ""
    user: str = ""
    host: str = ""

    @property
    def owner(self) -> Owner:
        """Its creator."""
        return Owner(self.account, self.user, self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStaged(_Body):
    """The driver asks for an attempt of a trial; attempt 1 creates the trial."""

    KIND: ClassVar[str] = "staged"
    trial: TrialId
    attempt: int
    config: Config
    at: float
    cursor: Cursor
    #: Whether the searcher suggested it (a replayed searcher is asked again) or a person added it.
    suggested: bool = True
    reason: str = ""
    #: Who wants it: "searcher", "scheduler", "user" or "driver" (which runs failed and lost attempts again).
    by: str = ""
    #: The checkpoint that it starts from, and the trial whose it is, if that is another; empty for none.
    checkpoint: str = ""
    source: str = ""
    #: How long the attempt may run.
    ttl_s: float | None = None
    #: The labels of a new trial.
    tags: list[str] = field(default_factory=list)
    notes: str = ""
    #: The id of the request that it carries out; empty for none.
    request: str = ""
    #: By what who added a new trial knows it; empty for nothing.
    key: str = ""
    #: Whether a person evaluates it outside: it waits in no queue, and runs from here on.
    outside: bool = False
    #: What it asks for, where trials do so by their configs; None for what all trials ask for.
    resources: Resources | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(_Body):
    """The driver takes in a report of an attempt that is evaluated outside.

    The report comes right behind this event.
    """

    KIND: ClassVar[str] = "told"
    trial: TrialId
    attempt: int
    sequence: int
    metrics: Metrics
    at: float
    cursor: Cursor
    #: Whether the attempt ends with it by itself, whatever is decided on it.
    ends: bool
    #: The id of the request that it carries out; empty for none.
    request: str = ""

    @property
    def report(self) -> Report:
        """The report."""
        return Report(self.trial, self.attempt, self.sequence, self.at, self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(_Body):
    """A worker has claimed an attempt, or all workers of a gang have, and this one starts its process."""

    KIND: ClassVar[str] = "started"
    trial: TrialId
    attempt: int
    worker: str
    host: str
    devices: list[str]
    at: float
    stdout_path: str = ""
    stderr_path: str = ""
    queue: str = ""
    #: Versions of Python, of the packages that the trainable has imported, and of its code.
    environment: Body = field(default_factory=dict)
    #: The folder of its own in which it runs; empty for the worker's.
    working_dir: str = ""
    #: What tells the folder with its output from those of other machines.
    log_mark: str = ""
    #: The number of the seat that this is about; those of a gang come behind one another, from seat 0 on.
    seat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTaken(_Body):
    """The driver has decided to end an attempt, because of its report *sequence* (0: not because of a report)."""

    KIND: ClassVar[str] = "decided"
    trial: TrialId
    attempt: int
    sequence: int
    action: ActionName
    intent: Intent
    reason: str
    at: float
    cursor: Cursor
    #: Who decided: "scheduler", "user", "driver", or the rule that stops trials.
    by: str = "scheduler"
    #: With a pause: the config, checkpoint and source that the trial goes on with at once; empty: it stays paused.
    restart: Restart | None = None
    #: The id of the request that it carries out; empty for none.
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(_Body):
    """A worker has a complete checkpoint that came without a report: one saved on demand, or before a pause."""

    KIND: ClassVar[str] = "saved"
    trial: TrialId
    attempt: int
    checkpoint: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsDropped(_Body):
    """The driver deletes checkpoints that nothing names any more; from here on nothing can start from them.

    Without a cursor the server has lost them, and this came with the journal that was put back.
    """

    KIND: ClassVar[str] = "dropped"
    checkpoints: list[str]
    at: float
    cursor: Cursor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialClosed(_Body):
    """The driver ends, or pauses, a trial that has no attempt under way.

    The trial is paused, or waits for another try.
    """

    KIND: ClassVar[str] = "trial_closed"
    trial: TrialId
    status: StatusName
    reason: str
    by: str
    at: float
    cursor: Cursor
    #: The id of the request that it carries out; empty for none.
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled(_Body):
    """A person gives a trial, or without one the experiment, these tags and notes in place of those it has."""

    KIND: ClassVar[str] = "labelled"
    trial: str
    tags: list[str]
    notes: str
    by: str
    at: float
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStarted(_Body):
    """A driver begins, or goes on with what an earlier one left.

    *changes* has what applies from here on, by its name.
    """

    KIND: ClassVar[str] = "driven"
    driver: str
    version: str
    at: float
    cursor: Cursor
    changes: Body = field(default_factory=dict)
    #: The files of the experiment's code that have changed since the driver before.
    code_changed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(_Body):
    """An attempt's process group is gone, or was never there.

    ``cursor`` is set when the driver says so (lost attempts).
    """

    KIND: ClassVar[str] = "ended"
    trial: TrialId
    attempt: int
    end: AttemptEnd
    at: float
    pid: int = 0
    exit_code: int | None = None
    signal: int | None = None
    error_type: str = ""
    error: str = ""
    stdout_tail: str = ""
    stderr_tail: str = ""
    #: Whether it failed because it ran longer than its ``ttl_s``: another attempt would, too.
    outlived: bool = False
    cursor: Cursor | None = None
    #: Why its process runs no other trial, where processes run several; empty if it may.
    retired: str = ""
    #: What it used of its machine (see ``mqtune.core.usage``); empty if it ended before the first sample.
    usage: Body = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEnded(_Body):
    """The driver is done: *outcome* is finished, interrupted or failed."""

    KIND: ClassVar[str] = "closed"
    outcome: str
    reason: str
    at: float
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested(_Body):
    """Someone outside the driver asks it to do something; it is in the journal once, however often it was sent.

    The driver carries out requests in the order of the journal; what none has answered, the next driver does. An action
    that the driver doesn't know is refused.
    """

    KIND: ClassVar[str] = "requested"
    #: Chosen by who asks; the same id is the same request.
    id: str
    action: str
    #: Whose it is; empty for one that concerns the experiment.
    trial: str
    arguments: dict[str, object]
    #: Who asks, for people.
    by: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAnswered(_Body):
    """The driver has carried a request out, or refuses it and says why."""

    KIND: ClassVar[str] = "answered"
    #: Of the request.
    id: str
    done: bool
    reason: str
    #: The trial that it was about, or that it made; empty for none.
    trial: str
    at: float
    cursor: Cursor


#: Of each attempt its trial, its number, the first report's sequence number, and the reports.
Segments = list[tuple[TrialId, int, int, list[tuple[float, Metrics]]]]


@dataclass(frozen=True, slots=True)
class Reports:
    """A batch of reports, in order within each attempt.

    ``unreadable`` counts those that it should have and that can't be read; they are left out. Where even their number
    can't be read, they count as one.
    """

    KIND: ClassVar[str] = REPORTS
    segments: Segments
    unreadable: int = 0

    def __iter__(self) -> Iterator[Report]:
        if len(self.segments) == 1 and len(self.segments[0][-1]) == 1:
            # Made without a generator, which takes longer than all else for one report.
            trial, attempt, sequence, (report,) = self.segments[0]
            return iter((Report(trial, attempt, sequence, *report),))
        return self._each()

    def _each(self) -> Iterator[Report]:
        new, kind, (no_checkpoint,) = tuple.__new__, Report, REPORT_DEFAULTS
        for trial, attempt, first, reports in self.segments:
            for sequence, report in enumerate(reports, first):
                # What Report(…) does, in half its time: a report may be one of a flood.
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
    """Return the event that *data* carries, or None for a kind that a later mqtune of the same version added.

    With *entry*, the id of the journal's entry that it is, an error names that. Of reports, those that can't be read
    are left out and counted, and a warning says so: what one trial could send must not keep the others from being read.

    Raises:
        MessageVersionError: the version is not known, or the bytes are not an event.
    """
    try:
        version, kind, body = decode_value(data)
    except (ValueError, TypeError) as error:
        if data.startswith(REPORTS_PREFIX):
            return _readable_reports(data, entry)
        raise MessageVersionError(f"{_place(entry)} holds {data[:100]!r}, which is not an event: {error}") from None
    if not is_version(version, VERSION):
        raise MessageVersionError(
            f"{_place(entry)} holds an event of version {reprlib.repr(version)}; this mqtune reads version {VERSION}: "
            f"upgrade it"
        )
    try:
        if kind == Reports.KIND:
            return Reports(body) if _are_sound(body) else _readable_reports(data, entry)
        known = _KINDS.get(kind)
        return None if known is None else cast("Event", known.from_body(body))
    except (TypeError, ValueError, LookupError) as error:
        raise MessageVersionError(f"{_place(entry)} holds a broken {reprlib.repr(kind)} event: {error}") from None


def sound_segments(data: bytes) -> Segments | None:
    """Return the segments of an event that is a batch of reports of which each can be read; None for any other."""
    if not data.startswith(REPORTS_PREFIX):
        return None
    try:
        _, _, segments = decode_value(data)
    except (ValueError, TypeError):
        return None
    return segments if _are_sound(segments) else None


def _place(entry: str) -> str:
    return f"entry {entry} of the journal" if entry else "the journal"


def _are_sound(segments: Any) -> bool:
    """Whether reports can be read from all of *segments*."""
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
                # Not unpacked, and the usual first: a report may be one of a flood.
                if report[0].__class__ is not float or report[1].__class__ is not dict:
                    return False
                if len(report) != _PLAIN and not are_report_fields(report[_PLAIN:]):
                    return False
    except (TypeError, ValueError, LookupError):
        return False
    return True


def _readable_reports(data: bytes, entry: str) -> Reports:
    """Return the reports of an event in which some can't be read."""
    segments: Segments = []
    found, unreadable = readable_segments(data)
    for trial, attempt, first, reports, missing in found:
        unreadable += missing
        if not _are_sound([(trial, attempt, first, [])]):
            unreadable += len(reports)
            continue
        # Each keeps its number.
        for number, report in enumerate(reports, first):
            if _are_sound([(trial, attempt, number, [report])]):
                segments.append((trial, attempt, number, [report]))
            else:
                unreadable += 1
    lost = max(unreadable, 1)
    logger.warning(
        "%s has %d report%s that can't be read; %s left out",
        _place(entry),
        lost,
        "s" * (lost > 1),
        "they are" if lost > 1 else "it is",
    )
    return Reports(segments, lost)


def busy_as(experiment: str) -> str:
    """Return a token for an experiment, for places that all drivers of a broker read: its name may be confidential."""
    return hashlib.sha256(experiment.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker's description of itself in the fleet's register."""

    name: str
    host: str
    pid: int
    version: str
    queue: str
    gpus: float
    cpus: int
    slots: int
    devices: list[str]
    code_root: str
    joined_at: float
    #: Of each GPU that a slot has, or of the share of one; 0 when it is not known.
    gpu_memory_gb: float = 0
    tags: list[str] = field(default_factory=list)
    #: What keeps it, or devices of it, from their work now. ``slots`` counts those slots that have a trial or take one.
    impairments: list[Impairment] = field(default_factory=list)
    #: How long it takes to be gone once it is told to, at most, in seconds.
    leaves_within_s: float = 60.0
    #: The names of the experiments that it takes trials of, with * for any letters.
    experiments: str = "*"
    #: How many of its slots have an attempt, by experiment, as ``busy_as`` names it.
    busy: Body = field(default_factory=dict)
    #: With its host, the parts of who has started it.
    account: str = ""
    user: str = ""
    #: How many submitted scripts it may run at once, and how many it runs.
    drivers: int = 0
    driving: int = 0

    #: Where trials share GPUs by memory: the most that one of them has for another trial.
    free_gpu_memory_gb: float = 0

    @property
    def gpu_names(self) -> list[str]:
        """Its GPUs, each once."""
        return [*dict.fromkeys(name for names in self.devices for name in names.split(",") if name)]

    @property
    def shared_gpus(self) -> int:
        """How many GPUs it has that trials share by memory."""
        return len(self.gpu_names) if self.gpu_memory_gb and not self.gpus else 0

    @property
    def note(self) -> str:
        """Its impairments as a text for people; empty without any, and the same text as long as nothing changes."""
        return "; ".join(each.reason for each in self.impairments)

    @property
    def owner(self) -> Owner:
        """The owner of its process; NOBODY where an earlier version started it."""
        return Owner(self.account, self.user, self.host) if self.user else NOBODY

    def encode(self) -> bytes:
        """Encode the description.

        Fields that have their default are left out, as each heartbeat of a fleet and each look at it would carry them.
        """
        return encode_value([VERSION, unusual_fields(self)])

    @classmethod
    def decode(cls, data: bytes) -> WorkerInfo:
        """Return the description; fields that are not known are ignored.

        Raises:
            MessageVersionError: the version is not known, or the bytes are no description.
        """
        try:
            version, body = decode_value(data)
        except (ValueError, TypeError) as error:
            raise MessageVersionError(f"a worker is described by {data[:100]!r}: {error}") from None
        if not is_version(version, VERSION):
            raise MessageVersionError(
                f"a worker's description has version {reprlib.repr(version)}; this mqtune reads {VERSION}"
            )
        try:
            return cls(**made_fields(cls, body))
        except (TypeError, ValueError, LookupError) as error:
            raise MessageVersionError(f"a worker's description is broken: {error}") from None


def is_of_driver(event: Event) -> bool:
    """Whether a driver wrote this event, and so has a cursor in it."""
    return getattr(event, "cursor", None) is not None


def readable_events(entries: Iterable[tuple[str, bytes]]) -> Iterator[Event]:
    """Yield the events in entries, without reports and unreadable events.

    Reports are nearly all of a long journal.
    """
    for id_, data in entries:
        if not data.startswith(REPORTS_PREFIX):
            with contextlib.suppress(MessageVersionError):
                if (event := decode_event(data, id_)) is not None:
                    yield event


def driver_events(entries: Iterable[tuple[str, bytes]]) -> dict[Cursor, list[Event]]:
    """Return the driver's events by their cursor, in the order in which they were written."""
    found: dict[Cursor, list[Event]] = defaultdict(list)
    for id_, data in entries:
        if data.startswith(REPORTS_PREFIX):
            # Nearly all of a long journal, and never the driver's.
            continue
        event = decode_event(data, id_)
        cursor = getattr(event, "cursor", None)
        if event is not None and cursor is not None:
            found[cursor].append(event)
    return dict(found)


def events_in_order(entries: list[tuple[str, bytes]]) -> Iterator[Event | Report]:
    """Yield a journal's events and single reports in the order in which the driver processed them.

    Where some of a batch can't be read, a batch without reports comes before the others, and says how many they are.
    """
    pending = driver_events(entries)
    yield from placed_events(entries, pending)
    # What a driver wrote after entries that are not here, as in a journal that was cut.
    for events in pending.values():
        yield from with_told(events)


def with_told(events: Iterable[Event]) -> Iterator[Event | Report]:
    """Yield a driver's events, and behind each that has a report, that report."""
    for event in events:
        yield event
        if isinstance(event, Told):
            yield event.report


def reports_of(entries: Iterable[tuple[str, bytes]], trial: TrialId) -> Iterator[Report]:
    """Yield the reports of one trial, in its order; entries that don't name it are not decoded."""
    name = trial.encode()
    for id_, data in entries:
        if name in data:
            event = decode_event(data, id_)
            reports = event if isinstance(event, Reports) else [event.report] if isinstance(event, Told) else []
            yield from (report for report in reports if report.trial == trial)


def placed_events(entries: Iterable[tuple[str, bytes]], pending: dict[Cursor, list[Event]]) -> Iterator[Event | Report]:
    """Yield each worker or client event, followed by the driver events whose cursor points at it.

    Yielded driver events are removed from *pending*.
    """
    for id_, data in entries:
        event = decode_event(data, id_)
        if event is None or getattr(event, "cursor", None) is not None:
            continue
        if isinstance(event, Reports):
            if event.unreadable:
                yield Reports([], event.unreadable)
            for number, report in enumerate(event, 1):
                yield report
                yield from with_told(pending.pop(Cursor(id_, number), ()))
            continue
        yield event
        yield from with_told(pending.pop(START if isinstance(event, ExperimentCreated) else Cursor(id_), ()))
