"""Reads the pipe of one attempt, and checks the data before it goes to the journal."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import reprlib
import threading
import time
from typing import Final, NamedTuple, Protocol

from mqtune.checkpoints import MAX_DICT_BYTES
from mqtune.core.codec import MAX_REPORT_BYTES, check_depth, decode_value, segment_bytes
from mqtune.core.trial import AttemptEnd, CheckpointId, are_report_fields, is_checkpoint_of, is_in_memory
from mqtune.journal.base import WAIT, Answer, Claim, Journal, Segment
from mqtune.trainable.process.late_imports import check_batches
from mqtune.trainable.process.protocol import FRAME, FRAME_CHECKPOINT, FRAME_END, FRAME_REPORT, FRAME_SAVED

#: The most bytes of one read: some thousand reports, and small beside a Redis client's output buffer.
READ_BYTES: Final = 512 * 1024
#: The size of the first read: most pipes hold less. For a buffer above 128 KiB the C library asks the kernel for
#: memory, which takes ten times as long as the read.
_FIRST_READ_BYTES: Final = 64 * 1024
#: The most checkpoints without a report in one call. For its duration, some milliseconds, Redis serves no other client.
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
#: The ends that a trainable may report. The other ends are set by its worker or its driver.
_ENDS: Final = frozenset(
    end.value for end in (AttemptEnd.COMPLETED, AttemptEnd.STOPPED, AttemptEnd.PAUSED, AttemptEnd.FAILED)
)
_END_FIELDS: Final = ("end", "error_type", "error", "heard")
#: The end of an answer that tells the attempt to wait.
_WAIT: Final = re.compile(rf"(?:^| ){WAIT}$")
_F_SETPIPE_SZ: Final = getattr(fcntl, "F_SETPIPE_SZ", None)


class StreamListener(Protocol):
    """Handles the events of an attempt's stream, and tells it how urgent the data is."""

    @property
    def is_ending(self) -> bool:
        """Whether the attempt is ending. Its pipe is then read even if the journal asks to wait."""

    @property
    def drops_unwritten(self) -> bool:
        """Whether the trial has ended permanently. If the server is full, its reports are dropped."""

    def on_answer(self, answer: str) -> None:
        """Handle the journal's answer to a batch: an intent, or that the attempt was fenced."""

    def on_end_frame(self) -> None:
        """Handle the message that the trainable has ended. Its process will end soon."""

    def on_noise(self, fault: str) -> None:
        """Handle malformed data. Nothing more is read from the stream."""


class StreamPart(NamedTuple):
    """The data of one read. It is written in the order ``held``, ``segment``, ``saved``.

    If any of it may be lost, all of it is written again.

    Attributes:
        segment: its reports; None without one.
        held: the id and the packed dict of each dict checkpoint that ``segment`` or ``saved`` refers to.
        saved: the ids of checkpoints without a report.
    """

    segment: Segment | None
    held: list[tuple[CheckpointId, bytes]]
    saved: list[CheckpointId]


class Stream:
    """The data of one attempt on its way from its pipe to the journal.

    User code could write anything to the pipe. So each report is decoded before it is journaled, and may refer only to
    checkpoints of this attempt. After the first malformed frame nothing more is read, and ``noise`` has the reason.
    """

    def __init__(self, journal: Journal, claim: Claim, listener: StreamListener) -> None:
        self.journal = journal
        self.claim = claim
        self._is_first = claim.task[1] == 0
        self.listener = listener
        #: The number of the last report.
        self.sequence = 0
        #: The number of bytes taken from the pipe.
        self.taken = 0
        self.last_report: bytes | None = None
        #: The part that was written last, and how many outages the journal had had by then.
        self.last: StreamPart | None = None
        self.written_after = 0
        #: Monotonic time at which reading resumes: infinite until the journal has room, 0 while it is read.
        self.read_from = 0.0
        #: Whether a full server refused the last part; and those of its reports that the journal may lack.
        self.is_refused = False
        self.unwritten: Segment | None = None
        #: When the first refused call began; None while nothing waits for memory.
        self._refused_since: float | None = None
        #: How many seconds its data has waited for a server that was full, away or refused the login.
        self.waited_s = 0.0
        #: How many reports were dropped because the server was full when the attempt had to end. Later reports are
        #: dropped, too.
        self.dropped = 0
        self._is_dropping = False
        #: The trainable's packed message about its end; None before that.
        self.end: bytes | None = None
        self.drained = threading.Event()
        #: Whether the data already read has complete frames for another part.
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

    def read(self) -> StreamPart | None:
        """Return the next part of the data; None if no complete frame has come yet.

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
            self._split_frames(data, reports)
        except (ValueError, TypeError) as error:
            self._give_up(str(error) or "bytes that can't be read")
        segment = self._make_segment(reports) if reports else None
        held, saved = self._held, self._saved
        self._held, self._saved = [], []
        return StreamPart(segment, held, saved) if segment is not None or held or saved else None

    @property
    def may_be_lost(self) -> bool:
        """Whether an outage followed the last write: the server may have come back without it."""
        return self.last is not None and self.written_after != self.journal.outages

    @property
    def is_held(self) -> bool:
        """Whether reading is suspended, because the journal or the server is full."""
        return self.read_from > 0

    def is_slowed(self, now: float) -> bool:
        """Whether reading is suspended until a known time."""
        return now < self.read_from < math.inf

    def apply_answer(self, answer: Answer) -> Answer:
        """Suspend or resume reading as the journal's answer says, and return the rest of the answer."""
        self._count_refusal()
        waits = not self.listener.is_ending and _WAIT.search(answer) is not None
        self.read_from = math.inf if waits else 0.0
        return _WAIT.sub("", answer)

    def begin_write(self, cut: StreamPart) -> bool:
        """Record that a part is about to be written. Return False if it is dropped instead."""
        self.last, self.written_after = cut, self.journal.outages
        self.unwritten, self.is_refused = cut.segment, False
        if self._is_dropping:
            self._drop_last()
        return not self._is_dropping

    def refuse(self, since: float, retry_s: float) -> None:
        """Handle the refusal of the last part by a full server.

        If the listener ``drops_unwritten``, the part is dropped. Otherwise reading is suspended, and the part is due
        again in *retry_s* seconds. The refused call began at *since* by the monotonic clock.
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
            # The attempt's end will name the last report that the journal has.
            self.sequence = self.unwritten.first - 1
        self.last, self.unwritten, self.is_refused, self.read_from = None, None, False, 0.0
        self._count_refusal()

    def _count_refusal(self) -> None:
        """Add the time since the first refusal to ``waited_s``. Nothing waits for memory now."""
        if self._refused_since is not None:
            self.waited_s += time.monotonic() - self._refused_since
            self._refused_since = None

    @property
    def is_in_doubt(self) -> bool:
        """Whether to call the journal again: it may have lost the last part, or have room by now."""
        return self.may_be_lost or self.is_held

    @property
    def is_over(self) -> bool:
        """Whether the pipe has ended, and ``read`` has returned all its data."""
        return self._ended and not self.has_more

    def _split_frames(self, data: bytes, reports: list[bytes]) -> None:
        """Split data into frames: add its reports to *reports*, and its checkpoints to this object.

        Stop after checkpoints without a report. Keep the rest of the data for the next call.

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
                self._unnamed = self._read_checkpoint(body)
            elif kind == FRAME_SAVED:
                self._saved.append(self._check_own(body.decode()))
            elif kind == FRAME_END:
                _check_end(body)
                self.end = body
                self.listener.on_end_frame()
            else:
                raise ValueError(f"a frame of kind {kind}")
        self._rest = data[at:]

    def _make_segment(self, reports: list[bytes]) -> Segment | None:
        """Return a segment of the reports before the first malformed one; None without any."""
        trial, attempt, _ = self.claim
        if not self._is_first:
            self._give_up("a report from another task than task 0, which alone may report")
            return None
        first = self.sequence + 1
        packed = segment_bytes(trial, attempt, first, reports)
        try:
            self._check(packed, len(reports))
        except (ValueError, TypeError, LookupError):
            # To check all together takes half the time. Single checks find the malformed report.
            reports = reports[: self._count_valid(reports)]
            if not reports:
                return None
            packed = segment_bytes(trial, attempt, first, reports)
        self.sequence += len(reports)
        self.last_report = reports[-1]
        return Segment(self.claim, first, len(reports), self._timestamp, packed)

    def _count_valid(self, reports: list[bytes]) -> int:
        """Return how many reports come before the first malformed one, and stop reading there."""
        for number, report in enumerate(reports):
            try:
                self._check(segment_bytes("", 0, 0, [report]), 1)
            except (ValueError, TypeError, LookupError) as error:
                self._give_up(f"a report: {error}" if str(error) else "a report that can't be read")
                # These checkpoints came after the malformed report.
                self._saved = []
                return number
        # Each can be decoded alone, but not all together. So none can be trusted.
        self._give_up("reports that can't be told apart")
        return 0

    def _check(self, packed: bytes, count: int) -> None:
        """Raise an error unless a packed segment has *count* valid reports of this attempt."""
        check_depth(packed)
        reports = decode_value(packed)[-1]
        before = self._timestamp
        for report in reports:
            at, metrics, *others = report
            if type(at) is not float or not before <= at < _END_OF_TIME or type(metrics) is not dict:
                raise TypeError("a report has no metrics, or its time is before that of the last report")
            # The fastest check that all keys are strings.
            "".join(metrics)
            if others:
                if not are_report_fields(others):
                    raise TypeError(f"a report has unknown fields: {reprlib.repr(others)}")
                if others[0]:
                    self._check_own(others[0])
            before = at
        if len(reports) != count:
            raise TypeError(f"{len(reports)} reports in {count} frames")
        self._timestamp = before

    def _check_own(self, checkpoint: object) -> CheckpointId:
        """Return a checkpoint's id, after a check that it belongs to this attempt.

        Raises:
            ValueError: it is malformed, or of another attempt.
        """
        if not is_checkpoint_of(checkpoint, *self.claim[:2], self.claim.mark):
            raise ValueError(f"the checkpoint {reprlib.repr(checkpoint)}, which is not of this attempt")
        return CheckpointId(str(checkpoint))

    def _read_checkpoint(self, body: bytes) -> tuple[CheckpointId, bytes]:
        name, content = decode_value(body)
        if not is_in_memory(self._check_own(name)) or type(content) is not bytes:
            raise TypeError("a checkpoint that is not a dict")
        return CheckpointId(name), content

    def _give_up(self, why: str) -> None:
        """Stop reading: no frame boundary can be trusted now."""
        self.noise = self.noise or why
        self._ended, self.has_more, self._rest = True, False, b""

    def close(self) -> None:
        """Close the read end."""
        os.close(self._read)


def _check_end(body: bytes) -> None:
    """Raise an error unless *body* is a valid message about a trainable's end."""
    said = decode_value(body)
    texts = [said.get(name) for name in _END_FIELDS] if type(said) is dict else []
    if not texts or any(type(text) is not str for text in texts) or texts[0] not in _ENDS:
        raise TypeError(f"a malformed end: {reprlib.repr(said)}")
    check_batches(said.get("imported", []))
