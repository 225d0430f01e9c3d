"""The journal on Redis. Each method is one script, so it is atomic and may be repeated."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import redis
from redis.exceptions import ResponseError

from mqtune.core.codec import REPORTS_PREFIX
from mqtune.core.errors import AccessDenied, DriverFenced, JournalBlocked, JournalGone, MqtuneError, NameTaken
from mqtune.core.events import Requested
from mqtune.core.keys import EXPERIMENTS, FLEET, QUOTAS, ExperimentKeys, control_channel
from mqtune.core.tasks import task_names
from mqtune.core.trial import CheckpointId, Intent, TrialId
from mqtune.journal.base import (
    BROKEN_S,
    Answer,
    Assignment,
    AttemptCheck,
    Chapter,
    Claim,
    DriverState,
    EndedBy,
    Entry,
    Fared,
    Grant,
    Guard,
    Intended,
    Journal,
    LastAttempt,
    Order,
    Others,
    Refusal,
    Reserved,
    Segment,
    ServerState,
    Unclaimed,
    entry_order,
)
from mqtune.journal.files.chapters import ChapterReader, decode_chapters, encode_chapters
from mqtune.journal.server.connection import Connects, RedisClient, database_of, timing_of
from mqtune.journal.server.retry import is_about_server, retrying
from mqtune.journal.server.room import Room
from mqtune.journal.server.script import script
from mqtune.journal.stream import (
    WRONG_TYPE,
    XRANGE,
    XREAD,
    XREVRANGE,
    entries_in,
    first_of,
    id_of,
    read_with,
    uncollected,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: If the server's clock gains more seconds than this on this machine's clock between two reads, it was set forward.
CLOCK_STEP_S: Final = 3.0
#: The most characters that are stored of the reason why no trial starts.
_MOST_WAITS_CHARS: Final = 1_000
#: The most attempts that one script checks. It takes a millisecond, in which the server answers nobody else.
LOOK_COUNT: Final = 500
#: The entries of one upload of a restored journal: some megabytes of reports.
UPLOAD_COUNT: Final = 500
#: Lifetime of uploaded entries, in seconds, in case that the driver dies. No upload takes as long.
UPLOAD_EXPIRES_S: Final = 600
#: The server's errors for a stream whose last entry has the largest possible id. Only a foreign write can cause that.
_LAST_ID: Final = re.compile(r"exhausted the last possible ID|invalid start ID for the interval")
#: Numbers from a server have fewer digits than this.
_DIGITS: Final = 20
#: Waits up to this many seconds are sleeps of the client. A server ends a blocking read only at a tick, each 0.1 s.
_SHORT_S: Final = 0.02
#: The actions of requests that add trials or reports. They wait while the server is full, like workers' reports.
_GROWING: Final = frozenset({"add", "ask", "tell"})


def experiments_on(client: Any, *, patience_s: float) -> list[str]:
    """Return the names of all experiments on a server, newest first."""
    names = retrying(lambda: client.zrevrange(EXPERIMENTS, 0, -1), patience_s=patience_s)
    return [name.decode(errors="backslashreplace") for name in names]


def _time(value: bytes) -> float:
    """Return a time that a worker wrote; 0 for a malformed one, so that attempts don't fail."""
    with contextlib.suppress(ValueError):
        if math.isfinite(time_s := float(value)):
            return time_s
    return 0.0


def room_of(client: RedisClient, *, patience_s: float) -> Room | None:
    """Return the room in a server's memory. None if this account lacks the permission."""
    try:
        return Room.of(retrying(lambda: client.info("memory"), patience_s=patience_s))
    except (AccessDenied, ResponseError):
        return None


def number(value: bytes | None) -> int:
    """Return a number that a worker wrote; 0 for a malformed one, so that drivers don't fail."""
    # Python refuses numbers of thousands of digits.
    return int(value) if value is not None and value.isdigit() and len(value) < _DIGITS else 0


class RedisJournal(Journal):
    """One experiment's journal on a Redis server.

    Args:
        client: a checked connection. Many journals and threads may share it.
        patience_s: how long calls are retried while the server is missing.
        closing: once set, calls are not retried.
    """

    def __init__(
        self,
        client: redis.Redis,
        experiment: str,
        *,
        patience_s: float = math.inf,
        closing: threading.Event | None = None,
    ) -> None:
        self.experiment = experiment
        #: Called after ``restore``, to restore other data that the server may have lost.
        self.on_restored: Callable[[], None] = lambda: None
        #: Returns the queue and the message for a task and an attempt's number. ``stage`` then also queues the message.
        #: None if messages are published later.
        self.task_of: Callable[[TrialId, int], tuple[str, str]] | None = None
        # redis-py's types include the results of other settings.
        self._client: Any = client
        self.timing = timing_of(client)
        self._keys = ExperimentKeys(experiment, database_of(client))
        self._control = control_channel("", database_of(client))
        #: How long calls are retried while the server is missing, in seconds.
        self.patience_s = patience_s
        self._closing = closing
        self._epoch = 0
        #: The holder of the driver's lock, its description, and the lock's duration in milliseconds.
        self._lock = ("", "", 0)
        #: The last entry that was read of the fleet's stream.
        self._fleet_seen = "$"
        #: By how many seconds the server's clock was ahead of this machine's monotonic clock.
        self._ahead_s = math.inf
        self._chapters = ChapterReader(self)
        self._connects = client.connects if isinstance(client, RedisClient) else Connects()
        self._connected = self._connects.count

    def _retrying(self, call: Callable[[], T], *, full_patience_s: float | None = None) -> T:
        try:
            result = retrying(
                call,
                patience_s=self.patience_s,
                full_patience_s=full_patience_s,
                closing=self._closing,
                on_return=self._count_outage,
                timing=self.timing,
            )
        except ResponseError as error:
            if (known := self._explain(str(error))) is None:
                raise
            raise known from None
        if self._connects.count != self._connected:
            self._connected = self._connects.count
            self._count_outage()
        return result

    def _explain(self, error: str) -> MqtuneError | None:
        """Return mqtune's error for a known error text of the server or a script. None for others."""
        if "JOURNALGONE" in error:
            return JournalGone(
                f"Redis no longer has all entries of experiment {self.experiment!r} that this driver has read: it was "
                "emptied, or set back to an earlier state"
            )
        if "STALEDRIVER" in error:
            return DriverFenced(
                f"experiment {self.experiment!r}: another driver has taken over; this one stops, and its trials "
                "continue with the other one"
            )
        if _LAST_ID.search(error):
            return JournalBlocked(
                f"experiment {self.experiment!r}: Redis accepts no more entries in its journal, because somebody has "
                "given one the largest possible id. To continue (see docs/security.md), XDEL that entry and later "
                f"ones, delete journal.msgpack in its folder, then mqtune archive {self.experiment} --yes, and "
                f"mqtune drive {self.experiment}"
            )
        return None

    def _count_outage(self) -> None:
        self.outages += 1

    def _run(self, name: str, keys: list[str], args: Sequence[object], *, full_patience_s: float | None = None) -> Any:
        return self._retrying(lambda: script(name)(self._client, keys, args), full_patience_s=full_patience_s)

    def _write(self, name: str, keys: list[str], args: Sequence[object]) -> Any:
        """Run a script that appends to the journal."""
        return self._run(name, [self._keys.meta, self._keys.journal, *keys], [self._keys.metrics, *args])

    def _write_as_driver(self, name: str, keys: list[str], args: Sequence[object]) -> Any:
        """Run a script that appends to the journal. It fails if a later driver has the lock."""
        keys = [self._keys.driver, self._keys.meta, self._keys.journal, *keys]
        return self._run(name, keys, [self._keys.metrics, self._epoch, *args])

    def lock(self, holder: str, description: str, hold_s: float, *, dead: str = "") -> None:
        lock = holder, description, round(hold_s * 1000)
        epoch, driver, left_ms, since_ms, _ = self._run_lock(*lock, dead)
        if not epoch:
            raise NameTaken(
                f"experiment {self.experiment!r} is driven by {driver.decode()}, which took it {since_ms / 1000:.0f} s "
                "ago; stop that driver, or choose another name",
                holder=driver.decode(),
                left_s=left_ms / 1000,
            )
        if not self._epoch:
            self._epoch, self._lock = epoch, lock
            # Before the driver reads the fleet's register: it will then see all later changes.
            self._fleet_seen = self._newest_of_fleet()

    def heartbeat(self, holder: str, hold_s: float, state: DriverState) -> ServerState:
        if not self._epoch:
            raise DriverFenced(f"experiment {self.experiment!r}: this driver has not taken its lock")
        *_, journal_bytes = self._run_lock(holder, "", round(hold_s * 1000), state=state)
        return ServerState(journal_bytes)

    def unlock(self, holder: str) -> None:
        self._run_lock(holder, "", 0)

    def _run_lock(
        self, holder: str, description: str, hold_ms: int, dead: str = "", state: DriverState | None = None
    ) -> Any:
        keys = [self._keys.driver, self._keys.meta, EXPERIMENTS]
        args = [holder, description, hold_ms, self.experiment, self._epoch, dead]
        if state is not None:
            policy, grace_s = state.on_loss
            args += [policy, round(grace_s * 1000), state.waits[:_MOST_WAITS_CHARS], state.most_bytes, state.read_to]
        return self._run("lock", keys, args)

    def room(self) -> Room | None:
        return room_of(self._client, patience_s=self.patience_s)

    def definition(self) -> bytes | None:
        return cast("bytes | None", self._retrying(lambda: self._client.hget(self._keys.meta, "definition")))

    def record(self, *events: bytes, definition: bytes | None = None) -> None:
        self._write_as_driver("record", [], [uuid.uuid4().hex, definition or b"", *events])

    def stage(self, trial: TrialId, attempt: int, assignment: Assignment, event: bytes) -> bool:
        keys = [self._keys.trial(trial), self._keys.staged, self._keys.leases]
        args = [trial, attempt, assignment.encode(), event, assignment.task_plan]
        if self.task_of is not None:
            for name in task_names(trial, assignment.tasks):
                queue, task = self.task_of(name, attempt)
                keys.append(queue)
                args.append(task)
        return bool(self._write_as_driver("stage", keys, args))

    def intend(self, trial: TrialId, attempt: int, intent: Intent, event: bytes, ended: bytes) -> Intended:
        args = [trial, attempt, intent.value, event, ended, self._control, self.experiment]
        return cast(
            "Intended", self._write_as_driver("intend", [self._keys.trial(trial), self._keys.staged], args).decode()
        )

    def close_trial(self, trial: TrialId, attempt: int, event: bytes) -> bool:
        return bool(self._write_as_driver("close", [self._keys.trial(trial)], [attempt, event]))

    def order(self, orders: Sequence[Order]) -> list[bool]:
        keys = [self._keys.driver, *(self._keys.trial(order.trial) for order in orders)]
        args = [self._epoch, self._control, self.experiment, *itertools.chain.from_iterable(orders)]
        return [run == 1 for run in self._run("order", keys, args)]

    def bring_checkpoint(self, checkpoint: CheckpointId, data: bytes) -> None:
        self._retrying(lambda: self._client.hsetnx(self._keys.checkpoints, checkpoint, data))

    def drop_checkpoints(self, checkpoints: Sequence[CheckpointId], event: bytes) -> None:
        self._write_as_driver("drop", [self._keys.checkpoints], [event, *checkpoints])

    def checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        return cast("bytes | None", self._retrying(lambda: self._client.hget(self._keys.checkpoints, checkpoint)))

    def _now_ms(self) -> int:
        """Return the server's time in milliseconds. Count an outage if its clock was set forward."""
        seconds, microseconds = self._retrying(self._client.time)
        ahead_s = seconds - time.monotonic()
        if ahead_s - self._ahead_s > CLOCK_STEP_S:
            # Leases and locks have expired too early.
            self._count_outage()
        self._ahead_s = ahead_s
        return int(seconds * 1000 + microseconds // 1000)

    def _read_up_to(self, key: str, ms: float, count: int | None = None) -> list[TrialId]:
        """Return up to *count* tasks with a time of at most *ms* in a sorted set, earliest first."""
        limit = {} if count is None else {"start": 0, "num": count}

        def fetch() -> list[bytes]:
            try:
                return list(self._client.zrangebyscore(key, "-inf", ms, **limit))
            except ResponseError as error:
                if WRONG_TYPE not in str(error):
                    raise
                # Renewals and ``look`` restore its content.
                logger.warning("the key %s is not a sorted set, so it is deleted: mqtune did not write it", key)
                self._client.delete(key)
                return []

        return [TrialId(trial.decode(errors="replace")) for trial in self._retrying(fetch)]

    def expired(self) -> list[TrialId]:
        return self._read_up_to(self._keys.leases, self._now_ms())

    def look(self, attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> AttemptCheck:
        newest = ""
        are_under_way: list[bool] = []
        for begin in range(0, max(1, len(attempts)), LOOK_COUNT):
            some = attempts[begin : begin + LOOK_COUNT]
            args = [self._epoch, round(lease_s * 1000), *itertools.chain.from_iterable(some)]
            last, *under_way = self._run("look", [self._keys.driver], args)
            # Keep the last script's newest entry. It is after the end of each attempt that an earlier script missed.
            newest = last.decode()
            are_under_way += map(bool, under_way)
        return AttemptCheck(newest, are_under_way)

    def lose(
        self, trial: TrialId, attempt: int, guard: Guard, event: bytes, timestamp: float = 0.0, read: str = ""
    ) -> bool:
        keys = [self._keys.trial(trial), self._keys.leases, self._keys.staged]
        hints = self._control, self.experiment
        return bool(self._write_as_driver("lose", keys, [trial, attempt, guard, event, repr(timestamp), read, *hints]))

    def unclaimed(self, *, older_than_s: float = 0.0, count: int | None = None) -> list[Unclaimed]:
        now_ms = self._now_ms()
        trials = self._read_up_to(self._keys.staged, now_ms - older_than_s * 1000, count)
        fields = ("attempt", "held_until", "held_by", "importing_since")
        unclaimed = []
        for trial, (attempt, until_ms, worker, since_ms) in zip(trials, self._get_hashes(trials, *fields), strict=True):
            held_by, importing_s = "", None
            if number(until_ms) > now_ms:
                held_by = (worker or b"?").decode(errors="replace")
                importing_s = max(0.0, (now_ms - number(since_ms)) / 1000) if since_ms else None
            unclaimed.append(Unclaimed(trial, number(attempt), held_by, importing_s))
        return unclaimed

    def _get_hashes(self, trials: Sequence[TrialId], *fields: str) -> list[list[bytes | None]]:
        """Return the values of these fields in each trial's hash."""

        def fetch() -> list[list[bytes | None]]:
            with self._client.pipeline(transaction=False) as pipe:
                for trial in trials:
                    pipe.hmget(self._keys.trial(trial), fields)
                return list(pipe.execute())

        return self._retrying(fetch) if trials else []

    def read(self, after: str, *, count: int, block_s: float = 0) -> list[Entry]:
        def read_server(after: str, count: int, may_wait: bool) -> tuple[list[Entry], str]:
            return self.read_server(after, count, block_s if may_wait else 0)

        return self._chapters.read(after, count, read_server)

    def read_server(self, after: str, count: int, block_s: float = 0) -> tuple[list[Entry], str]:
        """Return entries as ``read`` does, but only from the server and not from chapters.

        Return also the id of the last entry in a chapter, or an empty text.
        """
        if block_s <= 0:
            page = XRANGE, self._keys.journal, f"({after}", "+", "COUNT", count

            def fetch() -> tuple[list[Entry], str]:
                with uncollected():
                    page_entries, head = read_with(self._client, self._keys, "trimmed", *page)
                    return entries_in(page_entries), id_of(head)

            return self._retrying(fetch)
        block_ms = max(1, round(min(block_s, self.timing.blocking_read_s) * 1000))
        if self._fleet_seen == "$":
            self._fleet_seen = self._newest_of_fleet()
            self.fleet_changed = True
        streams = (self._keys.journal, FLEET, after, self._fleet_seen)
        is_short = block_s <= _SHORT_S
        waiting = () if is_short else ("BLOCK", block_ms)
        reading = (XREAD, *waiting, "COUNT", count, "STREAMS", *streams)
        entries: list[Entry] = []
        by_stream, head = self._retrying(lambda: read_with(self._client, self._keys, "trimmed", *reading))
        if is_short and not by_stream:
            # The next read finds what comes meanwhile.
            time.sleep(block_s)
        for stream, items in by_stream or ():
            if stream.decode() == FLEET:
                self._fleet_seen = items[-1][0].decode()
                self.fleet_changed = True
            else:
                entries = entries_in(items)
        return entries, id_of(head)

    def first(self) -> Entry | None:
        page = XRANGE, self._keys.journal, "-", "+", "COUNT", 1
        page_entries, kept = self._retrying(lambda: read_with(self._client, self._keys, "first", *page))
        return first_of(kept) or next(iter(entries_in(page_entries)), None)

    def newest(self, count: int = 1) -> list[Entry]:
        """Return up to *count* of the newest entries on the server, the newest first."""
        page = XREVRANGE, self._keys.journal, "+", "-", "COUNT", count
        return entries_in(self._retrying(lambda: read_with(self._client, self._keys, "trimmed", *page))[0])

    def count(self) -> int:
        """Return the number of all entries, on the server and in chapters."""
        on_server: int = self._retrying(lambda: self._client.xlen(self._keys.journal))
        return on_server + sum(chapter.entries for chapter in self.chapters())

    def _newest_of_fleet(self) -> str:
        """Return the id of the newest entry in the fleet's stream."""
        newest = self._retrying(lambda: self._client.xrevrange(FLEET, count=1))
        return str(newest[0][0].decode()) if newest else "0-0"

    def holds(self, entry: str) -> bool:
        entries, head = self._retrying(
            lambda: read_with(self._client, self._keys, "trimmed", XRANGE, self._keys.journal, entry, entry)
        )
        is_behind = not head or entry_order(entry) > entry_order(id_of(head))
        return bool(entries) if is_behind else self._chapters.has(entry)

    def chapters(self) -> list[Chapter]:
        return decode_chapters(self._retrying(lambda: self._client.hget(self._keys.chapters, "lines")))

    def trim(self, chapter: Chapter, before: str) -> int | None:
        keys = [self._keys.driver, self._keys.meta, self._keys.journal, self._keys.chapters]
        args = [self._epoch, before, chapter.first, chapter.last, chapter.size, encode_chapters([chapter])]
        left = int(self._run("trim", keys, args))
        return left if left >= 0 else None

    def checkpoints(self) -> set[CheckpointId]:
        names = self._retrying(lambda: self._client.hkeys(self._keys.checkpoints))
        return {CheckpointId(name.decode()) for name in names}

    def restore(
        self,
        entries: Callable[[], Iterable[Entry]],
        attempts: Sequence[LastAttempt],
        events: Sequence[bytes],
        *,
        requests: Mapping[str, str],
        definition: bytes,
        chapters: Sequence[Chapter] = (),
        first: Entry | None = None,
    ) -> None:
        mark = uuid.uuid4().hex
        restored = self._keys.restored(mark)
        keys = [self._keys.driver, self._keys.meta, self._keys.journal, restored, self._keys.leases, self._keys.staged]
        keys += [EXPERIMENTS, self._keys.requests, self._keys.chapters]
        keys += [self._keys.trial(attempt.trial) for attempt in attempts]
        head = [self._keys.metrics, self._epoch, *self._lock, self.experiment, mark, definition]
        begin = b"" if first is None else f"{first.id} ".encode() + first.data
        args: list[object] = [chapters[-1].last if chapters else "", encode_chapters(chapters), begin]
        args += [len(events), *events, len(requests), *itertools.chain.from_iterable(requests.items())]
        for attempt in attempts:
            args += (attempt.attempt, repr(attempt.timestamp))
        size = 0
        while not self._run("restore", keys, [*head, size, *args]):
            size = self._retrying(lambda: self._upload(restored, entries()))
        self.on_restored()

    def erase(self, trials: Sequence[TrialId]) -> None:
        keys = self._keys
        names = [keys.driver, keys.journal, keys.meta, keys.leases, keys.staged, keys.checkpoints, keys.requests]
        names += [keys.code, keys.chapters, *map(keys.trial, trials)]
        self._run("erase", names, [self._epoch])

    def _upload(self, key: str, entries: Iterable[Entry]) -> int:
        """Replace a stream's content by entries, at least one. Return the bytes of their events."""
        self._client.delete(key)
        source, size = iter(entries), 0
        while some := list(itertools.islice(source, UPLOAD_COUNT)):
            with self._client.pipeline(transaction=False) as pipe:
                for id_, data in some:
                    pipe.xadd(key, {"e": data}, id=id_)
                # If the driver dies here, nothing else removes the stream.
                pipe.expire(key, UPLOAD_EXPIRES_S)
                pipe.execute()
            size += sum(len(data) for _, data in some)
        return size

    def request(self, event: Requested) -> str:
        # A full server accepts other requests, because they may free memory.
        is_small = int(event.action not in _GROWING)
        entry = self._write("request", [self._keys.requests], [event.id, event.encode(), is_small])
        if not entry:
            raise JournalGone(f"Redis has lost experiment {self.experiment!r}; run its driver to restore it")
        return str(entry.decode())

    def hold(self, held: Sequence[Unclaimed], hold_s: float) -> None:
        args: list[object] = [round(hold_s * 1000)]
        for _, attempt, worker, importing_s in held:
            args += (attempt, worker, "" if importing_s is None else round(importing_s * 1000))
        self._run("hold", [self._keys.staged, *(self._keys.trial(claimed.trial) for claimed in held)], args)

    def claim(
        self, claim: Claim, worker: str, lease_s: float, event: bytes, address: str = ""
    ) -> Grant | Refusal | Reserved:
        keys = [self._keys.trial(claim.trial), self._keys.staged, self._keys.leases, QUOTAS, self._keys.requests]
        args = [claim.trial, claim.attempt, worker, claim.token, round(lease_s * 1000), event, self.experiment, address]
        answer, assignment, timestamp, leads = self._write("claim", keys, args)
        if answer == b"granted":
            return Grant(Assignment.decode(assignment), _time(timestamp), leads.decode(errors="replace"))
        return cast("Refusal | Reserved", answer.decode())

    def report(self, segments: Sequence[Segment]) -> list[Answer]:
        args: list[object] = [self._keys.metrics, REPORTS_PREFIX]
        for claim, first, size, timestamp, data in segments:
            args += (claim.trial, claim.attempt, claim.token, first, size, repr(timestamp), data)
        return [_answer(answer) for answer in self._run("report", [self._keys.meta], args, full_patience_s=0.0)]

    def put_checkpoint(self, claim: Claim, checkpoint: CheckpointId, data: bytes) -> Answer:
        keys = [self._keys.trial(claim.trial), self._keys.checkpoints]
        args = [claim.attempt, claim.token, checkpoint, data]
        return _answer(self._run("put_checkpoint", keys, args, full_patience_s=0.0))

    def saved(self, claim: Claim, events: Mapping[CheckpointId, bytes]) -> Answer:
        keys = [self._keys.meta, self._keys.journal, self._keys.trial(claim.trial)]
        args = [self._keys.metrics, claim.attempt, claim.token, *itertools.chain.from_iterable(events.items())]
        return _answer(self._run("saved", keys, args, full_patience_s=0.0))

    def renew(self, claims: Sequence[Claim], lease_s: float) -> list[Answer]:
        (answers,) = renew_all([(self, claims)], lease_s)
        if isinstance(answers, ResponseError):
            raise answers
        return answers

    def compare(self, fared: Fared, worker: str, device: str) -> Others:
        keys, args = [self._keys.meta, self._keys.leases], [fared, worker, device, round(BROKEN_S * 1000)]
        *since_ms, broken, running = retrying(lambda: script("compare")(self._client, keys, args), patience_s=0)
        well, failed = (math.inf if ms < 0 else ms / 1000 for ms in since_ms)
        return Others(well, failed, bool(broken), running)

    def end(self, claim: Claim, event: bytes, reports: int = 0, by: EndedBy = "itself") -> bool:
        keys = [self._keys.trial(claim.trial), self._keys.leases, QUOTAS]
        args = [claim.trial, claim.attempt, claim.token, event, self.experiment, reports, by]
        return bool(self._write("end", keys, args) == b"ended")


def _answer(answer: bytes | None) -> Answer:
    """Decode a script's answer. Missing or malformed orders must not fail the whole batch."""
    return (answer or b"").decode(errors="replace")


def renew_all(
    renewals: Sequence[tuple[RedisJournal, Sequence[Claim]]], lease_s: float
) -> list[list[Answer] | ResponseError]:
    """Renew leases of several experiments in one step. Their journals share a client.

    Return for each journal the result of its ``renew``. If an experiment's keys are broken, its result is an error, and
    the others' leases are still renewed.
    """
    first = renewals[0][0]
    args: list[object] = [round(lease_s * 1000)]
    for _, claims in renewals:
        args += (len(claims), *itertools.chain.from_iterable(claims))
    keys = [QUOTAS, *(journal._keys.meta for journal, _ in renewals)]

    def renew() -> list[bytes | list[bytes]]:
        answers: list[bytes | list[bytes]] = script("renew")(first._client, keys, args)
        for text in (answer.decode(errors="replace") for answer in answers if isinstance(answer, bytes)):
            if is_about_server(text):
                raise ResponseError(text)
        return answers

    return [
        ResponseError(answers.decode(errors="replace"))
        if isinstance(answers, bytes)
        else [_answer(answer) for answer in answers]
        for answers in first._retrying(renew)
    ]
