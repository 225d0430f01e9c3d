"""What was seen of a run, and how its journal is read: without any of mqtune's code."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack

#: The cursor of a driver that has processed nothing.
BEGINNING: Final = ("0-0", 0)
#: How far a time that was seen here and one by the server's clock may be apart, in seconds: a process is seen alive a
#: moment before it dies, and its end is journaled behind that.
CLOCKS_S: Final = 0.1


class Violation(NamedTuple):
    """A promise that was broken, by its number in the design or by a name, and what shows it."""

    promise: str
    what: str


class Found(list[Violation]):
    """The promises that were broken."""

    def wrong(self, promise: str, what: str, entry: Entry | None = None) -> None:
        if entry is not None:
            body = entry.body if isinstance(entry.body, dict) else {}
            about = [f"{name} {body[name]}" for name in ("trial", "attempt") if name in body]
            what = f"entry {entry.id} ({' '.join([entry.kind, *about])}): {what}"
        self.append(Violation(promise, what))


def entries_on(client: Any, stream: str, chapters: str, store: Path) -> tuple[list[tuple[str, bytes]], int]:
    """Return the entries of a journal, those in chapters in the store first, and how many chapters there are."""
    with client.pipeline() as pipe:
        # In one step: an entry leaves the stream as its chapter is written down.
        pipe.hget(chapters, "lines")
        pipe.xrange(stream)
        lines_, on_server = pipe.execute()
    names = [line.split()[0] for line in (lines_ or b"").decode().splitlines()]
    found: list[tuple[str, bytes]] = []
    for name in names:
        with (store / name / "files" / "journal.msgpack").open("rb") as file:
            found += [(id_, data) for id_, data in msgpack.Unpacker(file, max_buffer_size=0)]
    return [*found, *((id_.decode(), fields[b"e"]) for id_, fields in on_server)], len(names)


class Entry(NamedTuple):
    """A journal entry, decoded; ``number`` is that of the report in it, or 0."""

    id: str
    kind: str
    body: Any
    number: int = 0


class Row(NamedTuple):
    """One report, as it stands in the journal."""

    trial: str
    attempt: int
    sequence: int
    timestamp: float
    metrics: dict[str, Any]
    checkpoint: str


class Isolation(NamedTuple):
    """When a worker was frozen or cut off, and could not hear that its attempts no longer counted; by the monotonic clock."""

    worker: str
    begin: float
    end: float


class BrokenDevice(NamedTuple):
    """A device of all workers of a seat on which whatever ran failed with an error, from some time on, by the monotonic clock."""

    seat: int
    device: str
    error: str
    begin: float


#: By how much a Redis is set back at most, in seconds.
SET_BACK_S: Final = 2.0


@dataclass
class Observed:
    """What was seen of a run.

    Args:
        entries: the journal: each entry's id and bytes.
        told: what the scheduler of each driver was told, in the order in which the drivers were started.
        results: what the last driver made of it, by trial.
        beats: when each process was first and last seen alive, by trial (or name of a further seat), attempt and process id; monotonic.
        clock: what must be added to monotonic times for the server's.
        may_lose: whether anything was done for which attempts are lost, handed back or fail by a signal.
        forgot: when Redis was away and came back without some or all of what it had; monotonic.
        may_be_undriven: whether anything was done for which nobody may have driven for longer than that takes.
        undriven: when nobody drove, from when workers went by it; monotonic.
        only_drivers: whether workers and Redis were left in peace.
        keys: what Redis holds of the experiment at the end, by the ends of the keys.
        said: what those who made requests were answered, by their own record.
        pause_s: how long a device takes no trial once it is found broken; 0 where its worker may not have heard of others.
        seats: how many seats each attempt has; are_apart: whether each is to be on another worker.
    """

    entries: list[tuple[str, bytes]]
    max_trials: int
    max_failures: int
    told: list[list[list[Any]]]
    results: dict[str, Any]
    beats: dict[tuple[str, int, int], tuple[float, float]]
    keys: dict[str, Any]
    store: Path
    clock: float = 0.0
    isolations: list[Isolation] = field(default_factory=list)
    leavers: frozenset[str] = frozenset()
    may_lose: bool = True
    forgot: list[tuple[float, float]] = field(default_factory=list)
    on_loss: str = "continue"
    may_be_undriven: bool = True
    undriven: list[tuple[float, float]] = field(default_factory=list)
    only_drivers: bool = False
    left: list[str] = field(default_factory=list)
    store_was_away: bool = False
    said: list[dict[str, Any]] = field(default_factory=list)
    broken: list[BrokenDevice] = field(default_factory=list)
    pause_s: float = 0.0
    revoked: frozenset[tuple[str, int]] = frozenset()
    seats: int = 1
    are_apart: bool = False


def decoded(entries: list[tuple[str, bytes]], found: Found) -> list[Entry]:
    decoded = []
    before = (0, 0)
    for id_, data in entries:
        first, second = map(int, id_.split("-"))
        if (first, second) <= before:
            found.wrong("2", f"entry {id_} does not come behind {before}")
        before = first, second
        try:
            _, kind, body = msgpack.unpackb(data, strict_map_key=False)
        except (ValueError, TypeError) as error:
            found.wrong("10", f"entry {id_} can't be read: {error}")
            continue
        decoded.append(Entry(id_, kind, body))
    return decoded


def lines(path: Path) -> list[Any]:
    """Return the values of a file that has one as JSON on each line."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        # Who is killed may leave half a line.
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def rows(body: Any) -> Iterator[Row]:
    """Yield the reports of a batch."""
    for trial, attempt, first, reports in body:
        for sequence, report in enumerate(reports, first):
            yield Row(trial, attempt, sequence, report[0], report[1], report[2] if len(report) > 2 else "")


def cursor_of(entry: Entry) -> tuple[str, int] | None:
    cursor = entry.body.get("cursor") if isinstance(entry.body, dict) else None
    return None if cursor is None else (cursor[0], cursor[1])


def in_drivers_order(entries: list[Entry], found: Found) -> Iterator[Entry]:
    """Yield entries, and the single reports, in the order in which a driver had them: its own right behind its cursor."""
    pending: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        if (cursor := cursor_of(entry)) is not None:
            pending[cursor].append(entry)
    for entry in entries:
        if cursor_of(entry) is not None:
            continue
        if entry.kind == "reports":
            for number, row in enumerate(rows(entry.body), 1):
                yield Entry(entry.id, "report", row, number)
                yield from pending.pop((entry.id, number), ())
            continue
        yield entry
        yield from pending.pop(BEGINNING if entry.kind == "created" else (entry.id, 0), ())
    for cursor, events in pending.items():
        found.wrong("6", f"{len(events)} of the driver's events stand behind {cursor}, where nothing is")
        yield from events


def seat_of(name: str) -> tuple[str, int]:
    """Return the trial and the number of a seat by its name: ``0001``, ``0001~1``."""
    trial, _, seat = name.partition("~")
    return trial, int(seat or 0)


def written_at(entry: Entry) -> float:
    """Return when the Redis took an entry, in seconds by its clock."""
    return int(entry.id.split("-")[0]) / 1000


def place_of(id_: str) -> tuple[int, int]:
    first, second = id_.split("-")
    return int(first), int(second)
