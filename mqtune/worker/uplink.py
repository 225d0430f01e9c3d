"""The uplink of a worker's trials.

One thread reads all their pipes and writes their reports to the journal.

Batches adapt to the load. During a write, reports collect in the pipes, and the next write takes all of them: a lone
report is written immediately, a flood in large entries. While Redis is away, the thread waits with its batch, the pipes
fill, and ``report()`` blocks: memory is bounded and nothing is lost. While the journal of an experiment is full, only
its pipes are left unread. While Redis has no memory left (``maxmemory``), each stream waits alone. An attempt that must
end does not wait: its unwritten reports are dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import re
import reprlib
import selectors
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from mqtune.checkpoints import MAX_DICT_BYTES
from mqtune.core.clock import Clock
from mqtune.core.codec import MAX_REPORT_BYTES, check_depth, decode_value, segment_bytes
from mqtune.core.errors import BrokerFull, BrokerUnavailable, MqtuneError
from mqtune.core.events import CheckpointSaved
from mqtune.core.timing import Timing
from mqtune.core.trial import AttemptEnd, CheckpointId, are_report_fields, is_checkpoint_of, is_in_memory
from mqtune.journal.base import FENCED, GAP, WAIT, Answer, Claim, Journal, Segment
from mqtune.trainable.process.late_imports import check_batches
from mqtune.trainable.process.protocol import FRAME, FRAME_CHECKPOINT, FRAME_END, FRAME_REPORT, FRAME_SAVED
from mqtune.worker.threads import Step, guarded

logger = logging.getLogger(__name__)

#: The most bytes of one read: some thousand reports, and small beside a Redis client's output buffer.
READ_BYTES: Final = 512 * 1024
#: The usual limit of one entry. A longer one would block Redis for other clients, and the reports of some hundred slots
#: would come near the longest value that Redis accepts (512 MB).
ENTRY_BYTES: Final = 4 * 2**20
#: The size of the first read, more than most pipes hold. For a buffer above 128 KiB the C library asks the kernel for
#: memory, which takes ten times as long as the read.
_FIRST_READ_BYTES: Final = 64 * 1024
#: The most checkpoints without a report in one call, in which Redis serves no other client: some milliseconds.
_SAVED_COUNT: Final = 500
#: The size of a pipe. Linux allows an ordinary user 1 MiB by default.
PIPE_BYTES: Final = 1024 * 1024
#: The most bytes of a frame of each kind. A longer frame is malformed.
_MOST_BYTES: Final = {
    FRAME_REPORT: MAX_REPORT_BYTES,
    # The packed dict and its id.
    FRAME_CHECKPOINT: MAX_DICT_BYTES + 200,
    FRAME_SAVED: 1_000,
    # The sender cuts the error far below this.
    FRAME_END: 2**20,
}
#: The first invalid time, in seconds since the epoch: dates end with the year 9999.
_END_OF_TIME: Final = 253_402_300_800.0
#: The ends that a trainable may report. Its worker and its driver decide on the others.
_ENDS: Final = frozenset(
    end.value for end in (AttemptEnd.COMPLETED, AttemptEnd.STOPPED, AttemptEnd.PAUSED, AttemptEnd.FAILED)
)
_END_FIELDS: Final = ("end", "error_type", "error", "heard")
#: The answer for a part that a full server refused.
_REFUSED: Final = "refused"
#: How often a thread that waits for a stream's end checks whether the uplink is closed.
_CLOSING_POLL_S: Final = 1.0
#: At the end of an answer: the attempt must wait.
_WAIT: Final = re.compile(rf"(?:^| ){WAIT}$")
_F_SETPIPE_SZ: Final = getattr(fcntl, "F_SETPIPE_SZ", None)


class Wake:
    """A pipe that wakes a thread from its poll."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._closing = threading.Lock()
        self._closed = False
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._read

    def set(self) -> None:
        """Wake the other thread from its poll, or from its next one. Do nothing after ``close``."""
        # Without the lock, the byte could go to another file that got this descriptor's number after the close.
        with self._closing, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.write(self._write, b"!")

    def clear(self) -> None:
        """Reset it."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        """Close both ends."""
        with self._closing:
            self._closed = True
            os.close(self._read)
            os.close(self._write)


class StreamListener(Protocol):
    """Gets the events of an attempt's stream."""

    @property
    def is_ending(self) -> bool:
        """Whether the attempt must end, so that the rest of its pipe is read without a wait."""

    @property
    def drops_unwritten(self) -> bool:
        """Whether the trial has ended permanently, so that its reports may be dropped on a full server."""

    def on_answer(self, answer: str) -> None:
        """Handle the journal's answer to a batch: an intent, or that the attempt was fenced."""

    def on_end_frame(self) -> None:
        """Handle the message that the trainable has ended. Its process will end soon."""

    def on_noise(self, what: str) -> None:
        """Handle malformed data, the last that is read from the stream."""


class Cut(NamedTuple):
    """A part of a stream.

    It is written in the order ``held``, ``segment``, ``saved``, and repeated as a whole.

    Attributes:
        segment: its reports.
        held: checkpoints in memory that ``segment`` or ``saved`` name.
        saved: checkpoints without a report, sent after the segment.
    """

    segment: Segment | None
    held: list[tuple[CheckpointId, bytes]]
    saved: list[CheckpointId]


class Stream:
    """The data of one attempt on its way from its pipe to the journal.

    User code can write to the pipe. So each report is decoded before it is journaled, and may name only checkpoints of
    the attempt. After the first malformed frame nothing more is read, and ``noise`` has the reason.
    """

    def __init__(self, journal: Journal, claim: Claim, listener: StreamListener) -> None:
        self.journal = journal
        self.claim = claim
        self._is_first = claim.seat[1] == 0
        self.listener = listener
        self.sequence = 0
        #: The number of bytes taken from the pipe.
        self.taken = 0
        self.last_report: bytes | None = None
        #: The part that was written last, and the number of the journal's outages before that.
        self.last: Cut | None = None
        self.written_after = 0
        #: Monotonic time at which reading resumes: infinite until the journal has room, 0 while it is read.
        self.read_from = 0.0
        #: Whether a full server refused the last part, and the reports of it that the journal may lack.
        self.is_refused = False
        self.unwritten: Segment | None = None
        #: When the first refused call began; None while nothing waits for memory.
        self._refused_since: float | None = None
        #: How many seconds its data has waited for a server that was full, away or refused the login.
        self.waited_s = 0.0
        #: How many reports were dropped because the server was full when the attempt had to end. Later ones follow.
        self.dropped = 0
        self._is_dropping = False
        #: The trainable's packed message about its end; None before that.
        self.end: bytes | None = None
        self.drained = threading.Event()
        #: Whether whole frames are left after the last part.
        self.has_more = False
        #: Why the last frame is malformed; empty if it isn't.
        self.noise = ""
        #: The time of the last report. Times never go back.
        self._timestamp = 0.0
        self._held: list[tuple[CheckpointId, bytes]] = []
        #: The last checkpoint in memory, until the next frame names it.
        self._unnamed: tuple[CheckpointId, bytes] | None = None
        self._saved: list[CheckpointId] = []
        self._rest = b""
        self._ended = False
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        if _F_SETPIPE_SZ is not None:
            # Above what the system allows a user, the pipe keeps its default size.
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._read, _F_SETPIPE_SZ, PIPE_BYTES)

    def fileno(self) -> int:
        """Return the pipe's read end."""
        return self._read

    def read(self) -> Cut | None:
        """Return the next part, from the pipe or from the rest of the last read.

        Return None without a complete frame.

        At the pipe's end, ``is_over`` becomes true.
        """
        if self.has_more:
            data = self._rest
        else:
            try:
                data = os.read(self._read, _FIRST_READ_BYTES)
            except BlockingIOError:
                return None
            if len(data) == _FIRST_READ_BYTES:
                with contextlib.suppress(BlockingIOError):
                    data += os.read(self._read, READ_BYTES - _FIRST_READ_BYTES)
            if not data:
                self._ended = True
                return None
            self.taken += len(data)
            if self._rest:
                data = self._rest + data
        reports: list[bytes] = []
        try:
            self._cut(data, reports)
        except (ValueError, TypeError) as error:
            self._give_up(str(error) or "bytes that can't be read")
        segment = self._segment(reports) if reports else None
        held, saved = self._held, self._saved
        self._held, self._saved = [], []
        return Cut(segment, held, saved) if segment is not None or held or saved else None

    @property
    def may_be_lost(self) -> bool:
        """Whether an outage followed the last write: a server that was set back may have lost the part."""
        return self.last is not None and self.written_after != self.journal.outages

    @property
    def is_held(self) -> bool:
        """Whether reading waits until the journal wants more."""
        return self.read_from > 0

    def is_slowed(self, now: float) -> bool:
        """Whether it is held until a known time."""
        return now < self.read_from < math.inf

    def hear(self, answer: Answer) -> Answer:
        """Hold the stream if an answer of the journal says so, and return the orders in the answer."""
        self._count_refusal()
        waits = not self.listener.is_ending and _WAIT.search(answer) is not None
        self.read_from = math.inf if waits else 0.0
        return _WAIT.sub("", answer)

    def begin_write(self, cut: Cut) -> bool:
        """Note that a part is written now. Return False if it is dropped instead."""
        self.last, self.written_after = cut, self.journal.outages
        self.unwritten, self.is_refused = cut.segment, False
        if self._is_dropping:
            self._drop_last()
        return not self._is_dropping

    def refuse(self, since: float, retry_s: float) -> None:
        """Hold the stream, whose last part a full server refused, or drop that part.

        The refused call began at *since* by the monotonic clock. The part is repeated after *retry_s* seconds.
        """
        if self._refused_since is None:
            self._refused_since = since
        if self.listener.drops_unwritten:
            self._is_dropping = True
            self._drop_last()
        else:
            self.is_refused, self.read_from = True, time.monotonic() + retry_s

    def _drop_last(self) -> None:
        if self.unwritten is not None:
            self.dropped += self.unwritten.size
            # The end names the last report that the journal has.
            self.sequence = self.unwritten.first - 1
        self.last, self.unwritten, self.is_refused, self.read_from = None, None, False, 0.0
        self._count_refusal()

    def _count_refusal(self) -> None:
        """Add the time since the first refusal to the waited time, as nothing waits for memory now."""
        if self._refused_since is not None:
            self.waited_s += time.monotonic() - self._refused_since
            self._refused_since = None

    @property
    def is_in_doubt(self) -> bool:
        """Whether to ask the journal: it may have lost a part, or may take more by now."""
        return self.may_be_lost or self.is_held

    @property
    def is_over(self) -> bool:
        """Whether the pipe has ended and all of it was taken."""
        return self._ended and not self.has_more

    def _cut(self, data: bytes, reports: list[bytes]) -> None:
        """Add the reports and checkpoints of a part, which ends with checkpoints that have no report.

        Raises:
            ValueError, TypeError: the next frame is malformed.
        """
        at, size, head = 0, len(data), FRAME.size
        self.has_more = False
        while size - at >= head:
            length, kind = FRAME.unpack_from(data, at)
            end = at + head + length
            if end > size:
                if length > _MOST_BYTES.get(kind, 0):
                    raise ValueError(f"a frame of kind {kind} with {length:,} bytes")
                break
            if self._saved and (kind != FRAME_SAVED or len(self._saved) >= _SAVED_COUNT):
                # Later frames must be journaled after these.
                self.has_more = True
                break
            if kind != FRAME_CHECKPOINT and self._unnamed is not None:
                self._held.append(self._unnamed)
                self._unnamed = None
            if kind == FRAME_REPORT:
                reports.append(data[at + head : end])
                at = end
                continue
            body = data[at + head : end]
            at = end
            if kind == FRAME_CHECKPOINT:
                self._unnamed = self._checked_checkpoint(body)
            elif kind == FRAME_SAVED:
                self._saved.append(self._own(body.decode()))
            elif kind == FRAME_END:
                _check_end(body)
                self.end = body
                self.listener.on_end_frame()
            else:
                raise ValueError(f"a frame of kind {kind}")
        self._rest = data[at:]

    def _segment(self, reports: list[bytes]) -> Segment | None:
        """Return the segment of these reports, or of those before the first malformed one."""
        trial, attempt, _ = self.claim
        if not self._is_first:
            self._give_up("a report, which only seat 0 of a gang sends")
            return None
        first = self.sequence + 1
        packed = segment_bytes(trial, attempt, first, reports)
        try:
            self._check(packed, len(reports))
        except (ValueError, TypeError, LookupError):
            # One check of all takes half the time of single ones, which are needed here to find the malformed one.
            reports = reports[: self._count_sound(reports)]
            if not reports:
                return None
            packed = segment_bytes(trial, attempt, first, reports)
        self.sequence += len(reports)
        self.last_report = reports[-1]
        return Segment(self.claim, first, len(reports), self._timestamp, packed)

    def _count_sound(self, reports: list[bytes]) -> int:
        """Return how many reports come before the first malformed one, and stop reading there."""
        for number, report in enumerate(reports):
            try:
                self._check(segment_bytes("", 0, 0, [report]), 1)
            except (ValueError, TypeError, LookupError) as error:
                self._give_up(f"a report: {error}" if str(error) else "a report that can't be read")
                # They came after the malformed report.
                self._saved = []
                return number
        # Each can be decoded alone, but not all together. So none can be trusted.
        self._give_up("reports that can't be told apart")
        return 0

    def _check(self, packed: bytes, count: int) -> None:
        """Raise an error unless a packed segment has *count* valid reports of this attempt."""
        check_depth(packed)
        found = decode_value(packed)[-1]
        before = self._timestamp
        for report in found:
            at, metrics, *others = report
            if type(at) is not float or not before <= at < _END_OF_TIME or type(metrics) is not dict:
                raise TypeError("it has neither metrics nor a time that follows the one before")
            # The fastest check that all keys are strings.
            "".join(metrics)
            if others:
                if not are_report_fields(others):
                    raise TypeError(f"it has other fields than a report: {reprlib.repr(others)}")
                if others[0]:
                    self._own(others[0])
            before = at
        if len(found) != count:
            raise TypeError(f"there are {len(found)} in {count} frames")
        self._timestamp = before

    def _own(self, checkpoint: object) -> CheckpointId:
        """Return the id of a checkpoint of this attempt.

        Raises:
            ValueError: it is malformed, or of another attempt.
        """
        if not is_checkpoint_of(checkpoint, *self.claim[:2], self.claim.mark):
            raise ValueError(f"the checkpoint {reprlib.repr(checkpoint)}, which is not its own")
        return CheckpointId(str(checkpoint))

    def _checked_checkpoint(self, body: bytes) -> tuple[CheckpointId, bytes]:
        name, content = decode_value(body)
        if not is_in_memory(self._own(name)) or type(content) is not bytes:
            raise TypeError("a checkpoint that is not a dict")
        return CheckpointId(name), content

    def _give_up(self, why: str) -> None:
        """Stop reading: no frame boundary can be trusted now."""
        self.noise = self.noise or why
        self._ended, self.has_more, self._rest = True, False, b""

    def close(self) -> None:
        """Close the read end."""
        os.close(self._read)


class Uplink:
    """Reads the streams of all attempts and writes their data, one entry at a time for each experiment.

    Args:
        clock: the time that all machines share.
        timing: its intervals.
        entry_bytes: the usual limit of reports in one entry.
    """

    def __init__(self, clock: Clock, timing: Timing = Timing(), *, entry_bytes: int = ENTRY_BYTES) -> None:
        self._full_retry_s = timing.full_retry_s
        self._clock = clock
        self._entry_bytes = entry_bytes
        self._selector = selectors.DefaultSelector()
        self._wake = Wake()
        self._selector.register(self._wake, selectors.EVENT_READ)
        #: Held streams, which the selector does not watch.
        self._held: set[Stream] = set()
        #: Streams whose last part must be repeated, or for which the journal may have room again.
        self._doubtful: deque[Stream] = deque()
        #: Since when the server has been full, by the monotonic clock; None while it has room.
        self._full_since: float | None = None
        #: Streams that can send nothing more.
        self._leaving: deque[Stream] = deque()
        #: Streams with data that was read and not yet written.
        self._unfinished: list[Stream] = []
        self._closing = False
        # A step that fails loses its data, and the streams would lack it.
        self._thread = guarded("mqtune-uplink", self._steps, vital=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def attach(self, stream: Stream) -> None:
        """Read this stream until its pipe ends or it is detached."""
        # The operating system adds it to the running poll; no wake is needed.
        if not self._closing:
            self._selector.register(stream, selectors.EVENT_READ)

    def write_again(self, stream: Stream) -> None:
        """Write the last part of a stream again if it may be lost, and read on if the journal takes more.

        A part that the journal has is ignored there. Without this, a trial that waits for an answer to its report would
        wait for ever after the server was set back. It runs in the calling thread if the stream has ended, else soon.
        """
        if stream.drained.is_set():
            self._repeat(stream)
        else:
            self._doubtful.append(stream)
            self._wake.set()

    def detach(self, stream: Stream) -> bool:
        """Write the rest of the stream and close it. Return False if this uplink is closed before.

        The trial's process group must be gone. A process that left the group may still hold the pipe open.
        """
        if not stream.drained.is_set():
            self._leaving.append(stream)
            self._wake.set()
        while not stream.drained.wait(_CLOSING_POLL_S):
            if self._closing:
                return False
        return True

    def close(self) -> None:
        """End the thread. Data in a pipe is not written."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._selector.close()
            self._wake.close()

    def _steps(self) -> Iterator[Step]:
        while not self._closing:
            yield self._carry_ready

    def _carry_ready(self) -> None:
        """Wait for work and do it, one part of each stream, so that none waits for the flood of another."""
        now = time.monotonic()
        self._release_held(now)
        ready = dict.fromkeys(each for each in self._unfinished if not each.is_held)
        is_due = bool(ready) or any(not each.is_slowed(now) for each in list(self._leaving))
        read_from = min((each.read_from for each in self._held), default=math.inf)
        for key, _ in self._selector.select(0 if is_due else None if read_from == math.inf else read_from - now):
            if key.fileobj is self._wake:
                self._wake.clear()
            else:
                assert isinstance(key.fileobj, Stream)  # noqa: S101 - nothing else is registered
                ready[key.fileobj] = None
        # On a starved machine a write can take longer than a heartbeat, which puts its streams in doubt again. They
        # wait for the next round; otherwise no other data would ever be written.
        for _ in range(len(self._doubtful)):
            self._repeat(stream := self._doubtful.popleft())
            self._hold_or_read(stream)
        #: The bytes taken from each stream that leaves; -1 if a part of them is not carried yet.
        leaving: dict[Stream, int] = {}
        for _ in range(len(self._leaving)):
            stream = self._leaving.popleft()
            if stream.is_slowed(now):
                self._leaving.append(stream)
            elif not stream.drained.is_set():
                leaving[stream] = -1 if stream.has_more else stream.taken
        self._carry(dict.fromkeys([*ready, *leaving]))
        unfinished = dict.fromkeys([*self._unfinished, *ready])
        self._unfinished = [stream for stream in unfinished if stream.has_more and stream not in leaving]
        for stream in (*ready, *leaving):
            self._hold_or_read(stream)
        for stream, before in leaving.items():
            if stream.taken != before or stream.has_more:
                self._leaving.append(stream)
            elif not stream.drained.is_set():
                # Its pipe may never end, because another process holds it open.
                self._drop(stream)
        if self._full_since is not None and not any(stream.is_refused for stream in self._held):
            full_s = time.monotonic() - self._full_since
            logger.warning("no data of trials waits for room in Redis any more, after %.1f s", full_s)
            self._full_since = None

    def _release_held(self, now: float) -> None:
        """Read the held streams again whose time has come, after a refused part was written."""
        is_full = False
        for stream in list(self._held):
            if not stream.is_refused:
                if stream.read_from <= now or stream.listener.is_ending:
                    stream.read_from = 0.0
            elif stream.listener.drops_unwritten or (stream.read_from <= now and not is_full):
                stream.read_from = 0.0
                self._repeat(stream)
                is_full = stream.is_refused
                if stream.is_over and not is_full:
                    self._drop(stream)
            elif stream.read_from <= now:
                # One refusal holds for all streams: a thousand more calls would be useless load.
                stream.read_from = now + self._full_retry_s
            self._hold_or_read(stream)

    def _repeat(self, stream: Stream) -> None:
        if stream.is_held and not (stream.may_be_lost or stream.is_refused):
            asking = Segment(stream.claim, 0, 0, 0.0, b"")
            self._tried([stream], lambda: stream.journal.report([asking]))
        elif stream.last is not None:
            self._write(stream.journal, [(stream, stream.last)])

    def _hold_or_read(self, stream: Stream) -> None:
        """Stop or resume reading a stream, as its journal wants."""
        if stream.is_held == (stream in self._held) or stream.drained.is_set():
            return
        if stream.is_held:
            if stream.read_from == math.inf:
                text = "trial %s attempt %d: its journal is full, and report() waits"
                logger.info(text, *stream.claim[:2], extra=_fields_of(stream))
            self._held.add(stream)
            # As in ``_drop``.
            with contextlib.suppress(KeyError):
                self._selector.unregister(stream)
        else:
            self._held.remove(stream)
            self._selector.register(stream, selectors.EVENT_READ)

    def _drop(self, stream: Stream) -> None:
        self._held.discard(stream)
        stream.read_from = 0.0
        # A process without free descriptors could not attach it.
        with contextlib.suppress(KeyError):
            self._selector.unregister(stream)
        stream.close()
        stream.drained.set()

    def _carry(self, ready: Iterable[Stream]) -> None:
        """Write the next part of each of these streams."""
        batches: dict[Journal, list[tuple[Stream, Cut]]] = defaultdict(list)
        size = 0
        for stream in ready:
            cut = _read(stream)
            if cut is None:
                continue
            batches[stream.journal].append((stream, cut))
            size += len(cut.segment.data) if cut.segment is not None else 0
            if size > self._entry_bytes:
                self._write_all(batches)
                size = 0
        self._write_all(batches)
        for stream in ready:
            if stream.is_over and not stream.is_refused:
                self._drop(stream)

    def _write_all(self, batches: dict[Journal, list[tuple[Stream, Cut]]]) -> None:
        unwritten = {stream for batch in batches.values() for stream, _ in batch}
        for journal, batch in batches.items():
            began, outages = time.monotonic(), journal.outages
            self._write(journal, batch)
            if journal.outages != outages:
                self._count_outage(unwritten, time.monotonic() - began)
            unwritten.difference_update(stream for stream, _ in batch)
        batches.clear()

    def _count_outage(self, unwritten: set[Stream], away_s: float) -> None:
        """Add an outage to the waited time of all streams with unwritten data."""
        readable = {key.fileobj for key, _ in self._selector.select(0) if isinstance(key.fileobj, Stream)}
        for stream in unwritten | readable:
            # A refused stream counts its own time, from its refused call on.
            if not stream.is_refused:
                stream.waited_s += away_s

    def _write(self, journal: Journal, batch: list[tuple[Stream, Cut]]) -> None:
        """Write a batch in order: checkpoints in memory, reports as one entry, other checkpoints."""
        batch = [(stream, cut) for stream, cut in batch if stream.begin_write(cut)]
        batch = [(stream, cut) for stream, cut in batch if all(self._hold(stream, *held) for held in cut.held)]
        reporting = [(stream, cut.segment) for stream, cut in batch if cut.segment is not None]
        if reporting:
            segments = [segment for _, segment in reporting]
            answers = self._tried([stream for stream, _ in reporting], lambda: journal.report(segments))
            for (stream, _), answer in zip(reporting, answers, strict=True):
                if answer != _REFUSED:
                    stream.unwritten = None
        for stream, cut in batch:
            if cut.saved and stream.last is cut and not stream.is_refused:
                self._announce(stream, cut.saved)

    def _hold(self, stream: Stream, checkpoint: CheckpointId, data: bytes) -> bool:
        """Store a checkpoint in Redis. Return False if that failed: then nothing may name it."""
        journal, claim = stream.journal, stream.claim
        (answer,) = self._tried([stream], lambda: [journal.put_checkpoint(claim, checkpoint, data)], closing=GAP)
        return answer not in (FENCED, GAP, _REFUSED)

    def _announce(self, stream: Stream, checkpoints: list[CheckpointId]) -> None:
        claim, now = stream.claim, self._clock.time()
        events = {
            each: CheckpointSaved(trial=claim.trial, attempt=claim.attempt, checkpoint=each, at=now).encode()
            for each in checkpoints
        }
        self._tried([stream], lambda: [stream.journal.saved(claim, events)])

    def _tried(self, streams: list[Stream], write: Callable[[], list[Answer]], *, closing: Answer = "") -> list[Answer]:
        """Write data of these streams, pass the answers on, and return them.

        The answer of a failed write is GAP, which ends the attempts. It is *closing* while the worker shuts down, and
        _REFUSED if the server is full.
        """
        experiment, began = streams[0].journal.experiment, time.monotonic()
        try:
            answers = write()
        except BrokerFull as error:
            if self._full_since is None:
                self._full_since = time.monotonic()
                logger.warning("%s", error, extra={"action": "broker_is_full"})
            for stream in streams:
                stream.refuse(began, self._full_retry_s)
            return [_REFUSED] * len(streams)
        except BrokerUnavailable:
            # It comes only while the worker shuts down. Before that the journal retries.
            logger.warning(
                "experiment %s: data of %d trials was not written: the worker is shutting down",
                experiment,
                len(streams),
                extra={"experiment": experiment},
            )
            answers = [closing] * len(streams)
        except MqtuneError as error:
            logger.error("data of %d trials was not written, and their attempts end: %s", len(streams), error)  # noqa: TRY400 - it says all
            answers = [GAP] * len(streams)
        except Exception:
            # The broken keys of one experiment must not end the reports of others.
            text = "experiment %s: data of trials could not be written; their attempts end"
            logger.exception(text, experiment, extra={"experiment": experiment})
            answers = [GAP] * len(streams)
        for stream, answer in zip(streams, answers, strict=True):
            if told := stream.hear(answer):
                stream.listener.on_answer(told)
        return answers


def _fields_of(stream: Stream) -> dict[str, object]:
    """Return the fields of a log record about a stream's attempt."""
    trial, attempt, _ = stream.claim
    return {"experiment": stream.journal.experiment, "trial": trial, "attempt": attempt}


def _read(stream: Stream) -> Cut | None:
    """Return the next part of a stream. Malformed data ends its attempt, and no other."""
    cut = stream.read()
    if stream.noise:
        trial, attempt, _ = stream.claim
        logger.warning(
            "trial %s attempt %d: it has sent malformed data (%s); it ends here",
            trial,
            attempt,
            stream.noise,
            extra=_fields_of(stream),
        )
        stream.listener.on_noise(stream.noise)
    return cut


def _check_end(body: bytes) -> None:
    """Raise an error unless *body* is a valid message about a trainable's end."""
    said = decode_value(body)
    texts = [said.get(name) for name in _END_FIELDS] if type(said) is dict else []
    if not texts or any(type(text) is not str for text in texts) or texts[0] not in _ENDS:
        raise TypeError(f"that it ended so: {reprlib.repr(said)}")
    check_batches(said.get("imported", []))
