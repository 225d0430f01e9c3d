"""What travels: the journal's events, as frozen values in versioned msgpack; never a pickle.

An event is ``[VERSION, kind, body]``. A body is a map of the event's fields, except that of ``reports``, whose body is
a list of segments ``[trial, attempt, first sequence number, [[timestamp, metrics], …]]`` so that a worker can join
reports to a batch, and Redis can drop refused ones, without reading their metrics. A report that came with a checkpoint
is ``[timestamp, metrics, checkpoint id]``.

Fields that a reader doesn't know are ignored; a version that it doesn't know is a clear error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, ClassVar, Final, NamedTuple, Self, cast

from mqtune.errors import MessageVersionError
from mqtune.trial import AttemptEnd, CheckpointId, Config, Intent, Metrics, Report, TrialId
from mqtune.wire import REPORTS, VERSION, decode_value, encode_value

__all__ = [
    "START",
    "AttemptEnded",
    "AttemptStarted",
    "CheckpointSaved",
    "CheckpointsDropped",
    "Cursor",
    "DecisionTaken",
    "DriverStarted",
    "Event",
    "ExperimentCreated",
    "ExperimentEnded",
    "Reports",
    "TrialClosed",
    "TrialStaged",
    "WorkerInfo",
    "decode_event",
]


class Cursor(NamedTuple):
    """How far a driver had come when it wrote: the journal entry, and how many reports of it it had processed."""

    entry: str
    reports: int = 0


START: Final = Cursor("0-0")
#: How many fields a report has, and one that came with a checkpoint.
_PLAIN: Final = 2
_WITH_CHECKPOINT: Final = 3
_NO_CHECKPOINT: Final = CheckpointId("")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """An event whose body is a map of its fields."""

    KIND: ClassVar[str] = ""

    def encode(self) -> bytes:
        """Return the event as it stands in the journal."""
        body = {name: getattr(self, name) for name, _ in _fields(type(self))}
        for name in _RICH & body.keys():
            body[name] = _plain(body[name])
        return encode_value([VERSION, self.KIND, body])

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Self:
        """Return the event that *body* describes; fields that are not known are ignored."""
        values = {}
        for name, shape in _fields(cls):
            if name in body:
                value = _rich(name, body[name]) if name in _RICH else body[name]
                if not isinstance(value, shape):
                    raise TypeError(f"{name}={value!r}")
                values[name] = value
        return cls(**values)


#: What a field's value must be, by the field's annotation.
_SHAPES: Final[dict[str, type | UnionType]] = {
    "AttemptEnd": AttemptEnd,
    "Config": dict,
    "Cursor": Cursor,
    "Cursor | None": Cursor | None,
    "Intent": Intent,
    "TrialId": str,
    "bool": bool,
    "dict[str, Any]": dict,
    "float": float | int,
    "float | None": float | int | None,
    "int": int,
    "int | None": int | None,
    "list[str]": list,
    "str": str,
}


#: Fields whose values are not plain.
_RICH: Final = frozenset({"cursor", "end", "intent"})


_FIELDS: Final[dict[type, tuple[tuple[str, type | UnionType], ...]]] = {}


def _fields(kind: type[_Body]) -> tuple[tuple[str, type | UnionType], ...]:
    """Return the names of an event's fields, and what their values must be; looked up once for each kind of event."""
    fields = _FIELDS.get(kind)
    if fields is None:
        fields = _FIELDS[kind] = tuple((f.name, _SHAPES[cast("str", f.type)]) for f in dataclasses.fields(kind))
    return fields


def _rich(name: str, value: Any) -> Any:
    """Return a field's value as the driver knows it."""
    if name == "cursor" and value is not None:
        entry, reports = value
        if type(entry) is not str or type(reports) is not int:
            raise TypeError(f"cursor={value!r}")
        return Cursor(entry, reports)
    return AttemptEnd(value) if name == "end" else Intent(value) if name == "intent" else value


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, AttemptEnd | Intent) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentCreated(_Body):
    """The first event: what is tuned, and how."""

    KIND: ClassVar[str] = "created"
    name: str
    definition: dict[str, Any]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStaged(_Body):
    """The driver asks for an attempt of a trial; attempt 1 is the trial's birth."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(_Body):
    """A worker has claimed an attempt and starts its process."""

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
    environment: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTaken(_Body):
    """The driver has decided to end an attempt, because of its report *sequence* (0: not because of a report)."""

    KIND: ClassVar[str] = "decided"
    trial: TrialId
    attempt: int
    sequence: int
    action: str
    intent: Intent
    reason: str
    at: float
    cursor: Cursor
    #: Who decided: "scheduler", "user", "driver", or the rule that stops trials.
    by: str = "scheduler"
    #: With a pause: the config, checkpoint and source that the trial goes on with at once; empty: it stays paused.
    restart: dict[str, Any] = field(default_factory=dict)


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
    """The driver deletes checkpoints that nothing names any more; from here on nothing can start from them."""

    KIND: ClassVar[str] = "dropped"
    checkpoints: list[str]
    at: float
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialClosed(_Body):
    """The driver ends, or pauses, a trial that has no attempt under way: a paused one, or one that waits for another try."""

    KIND: ClassVar[str] = "trial_closed"
    trial: TrialId
    status: str
    reason: str
    by: str
    at: float
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStarted(_Body):
    """A driver begins, or goes on with what an earlier one left."""

    KIND: ClassVar[str] = "driven"
    driver: str
    version: str
    at: float
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(_Body):
    """An attempt's process group is gone, or was never there; ``cursor`` is set when the driver says so (lost attempts)."""

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
    cursor: Cursor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEnded(_Body):
    """The driver is done: *outcome* is finished, interrupted or failed."""

    KIND: ClassVar[str] = "closed"
    outcome: str
    reason: str
    at: float
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Reports:
    """A batch of reports, in order within each attempt."""

    KIND: ClassVar[str] = REPORTS
    segments: list[tuple[TrialId, int, int, list[tuple[float, Metrics]]]]

    def __iter__(self) -> Iterator[Report]:
        new = tuple.__new__
        for trial, attempt, first, reports in self.segments:
            for sequence, report in enumerate(reports, first):
                checkpoint = _NO_CHECKPOINT if len(report) == _PLAIN else report[2]
                # What Report(…) does, in half its time: a report may be one of a flood.
                yield new(Report, (trial, attempt, sequence, report[0], report[1], checkpoint))


Event = (
    ExperimentCreated
    | TrialStaged
    | AttemptStarted
    | DecisionTaken
    | AttemptEnded
    | CheckpointSaved
    | CheckpointsDropped
    | TrialClosed
    | DriverStarted
    | ExperimentEnded
    | Reports
)

_KINDS: Final[dict[str, type[_Body]]] = {
    kind.KIND: kind
    for kind in (
        ExperimentCreated,
        TrialStaged,
        AttemptStarted,
        DecisionTaken,
        AttemptEnded,
        CheckpointSaved,
        CheckpointsDropped,
        TrialClosed,
        DriverStarted,
        ExperimentEnded,
    )
}


def decode_event(data: bytes) -> Event | None:
    """Return the event that *data* carries, or None for a kind that a later mqtune of the same version added.

    Raises:
        MessageVersionError: the version is not known, or the bytes are not an event.
    """
    try:
        version, kind, body = decode_value(data)
    except (ValueError, TypeError) as error:
        raise MessageVersionError(f"the journal holds {data[:100]!r}, which is not an event: {error}") from None
    if version != VERSION:
        raise MessageVersionError(
            f"the journal holds an event of version {version!r}; this mqtune reads version {VERSION}: upgrade it"
        )
    try:
        if kind == Reports.KIND:
            _check_segments(body)
            return Reports(body)
        known = _KINDS.get(kind)
        return None if known is None else known.from_body(body)  # type: ignore[return-value]
    except (TypeError, ValueError, LookupError) as error:
        raise MessageVersionError(f"the journal holds a broken {kind!r} event: {error}") from None


def _check_segments(segments: Any) -> None:
    """Raise TypeError or ValueError unless reports can be read from *segments*."""
    if type(segments) is not list:
        raise TypeError(f"its body is {type(segments).__name__}")
    for trial, attempt, first, reports in segments:
        if type(trial) is not str or type(attempt) is not int or type(first) is not int or type(reports) is not list:
            raise TypeError(f"a segment begins with {trial!r}, {attempt!r}, {first!r}")
        for report in reports:
            # Not unpacked, and the usual first: a report may be one of a flood.
            if type(report[0]) is not float or type(report[1]) is not dict:
                raise TypeError(f"a report of trial {trial!r} attempt {attempt} has neither time nor metrics")
            if len(report) != _PLAIN and (len(report) != _WITH_CHECKPOINT or type(report[2]) is not str):
                raise TypeError(f"a report of trial {trial!r} attempt {attempt} has {report[2:]!r} for a checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """What a worker says of itself in the fleet's register."""

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
    #: Why not all of its slots take trials now, for people; empty while they do. ``slots`` counts those that have or take one.
    note: str = ""
    #: How long it takes to be gone once it is told to, at most, in seconds.
    leaves_within_s: float = 60.0

    def encode(self) -> bytes:
        """Return the description as it stands in the register."""
        return encode_value([VERSION, dataclasses.asdict(self)])

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
        if version != VERSION:
            raise MessageVersionError(f"a worker's description has version {version!r}; this mqtune reads {VERSION}")
        try:
            return cls(**{f.name: body[f.name] for f in dataclasses.fields(cls) if f.name in body})
        except (TypeError, KeyError) as error:
            raise MessageVersionError(f"a worker's description is broken: {error}") from None
