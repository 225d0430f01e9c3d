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
import logging
import math
import os
import selectors
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from mqtune.core.clock import Clock
from mqtune.core.errors import BrokerFull, BrokerUnavailable, MqtuneError
from mqtune.core.events import CheckpointSaved
from mqtune.core.timing import Timing
from mqtune.core.trial import CheckpointId
from mqtune.journal.base import FENCED, GAP, Answer, Journal, Segment
from mqtune.worker.host.threads import Step, guarded
from mqtune.worker.reports.stream import Stream, StreamPart

logger = logging.getLogger(__name__)

#: The usual size limit of one entry. A longer one would block Redis for other clients. Without a limit, the reports of
#: some hundred slots would come near the longest value that Redis accepts (512 MB).
ENTRY_BYTES: Final = 4 * 2**20
#: The answer to the write of a part that a full server refused.
_REFUSED: Final = "refused"
#: How often a thread that waits for a stream's end checks whether the uplink is closed.
_CLOSING_POLL_S: Final = 1.0


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


class Uplink:
    """Reads the streams of all attempts, and writes their data to the journals in batches.

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
        #: Suspended streams, which the selector does not watch.
        self._held: set[Stream] = set()
        #: Streams whose last part must be repeated, or for which the journal may have room again.
        self._doubtful: deque[Stream] = deque()
        #: Since when the server has been full, by the monotonic clock; None while it has room.
        self._full_since: float | None = None
        #: Streams that can send nothing more.
        self._leaving: deque[Stream] = deque()
        #: Streams with complete frames that are read and not yet processed.
        self._unfinished: list[Stream] = []
        self._closing = False
        # A failed step loses data of streams, and later data must not follow it.
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
        """Write a stream's last part again if it may be lost, and resume reading if there is room.

        The journal ignores a part that it has. Without this, a trial that waits for an answer to its report would wait
        for ever after the server was set back. If the stream has ended, the calling thread writes; otherwise the
        uplink's thread does so soon.
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
        """Wait for data, and write one part of each stream, so that none waits for another's flood."""
        now = time.monotonic()
        self._release_held(now)
        ready = dict.fromkeys(stream for stream in self._unfinished if not stream.is_held)
        is_due = bool(ready) or any(not stream.is_slowed(now) for stream in list(self._leaving))
        read_from = min((stream.read_from for stream in self._held), default=math.inf)
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
        #: For each stream in ``_leaving``, the bytes taken from its pipe so far; -1 if some of them are not processed
        #: yet.
        leaving: dict[Stream, int] = {}
        for _ in range(len(self._leaving)):
            stream = self._leaving.popleft()
            if stream.is_slowed(now):
                self._leaving.append(stream)
            elif not stream.drained.is_set():
                leaving[stream] = -1 if stream.has_more else stream.taken
        self._write_next_parts(dict.fromkeys([*ready, *leaving]))
        unfinished = dict.fromkeys([*self._unfinished, *ready])
        self._unfinished = [stream for stream in unfinished if stream.has_more and stream not in leaving]
        for stream in (*ready, *leaving):
            self._hold_or_read(stream)
        for stream, before in leaving.items():
            if stream.taken != before or stream.has_more:
                self._leaving.append(stream)
            elif not stream.drained.is_set():
                # Its pipe may never end, because another process holds it open.
                self._finish(stream)
        if self._full_since is not None and not any(stream.is_refused for stream in self._held):
            full_s = time.monotonic() - self._full_since
            logger.warning("no data of trials waits for room in Redis any more, after %.1f s", full_s)
            self._full_since = None

    def _release_held(self, now: float) -> None:
        """Resume suspended streams whose time has come. Write the refused part of each first."""
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
                    self._finish(stream)
            elif stream.read_from <= now:
                # One refusal holds for all streams: a thousand more calls would be useless load.
                stream.read_from = now + self._full_retry_s
            self._hold_or_read(stream)

    def _repeat(self, stream: Stream) -> None:
        if stream.is_held and not (stream.may_be_lost or stream.is_refused):
            asking = Segment(stream.claim, 0, 0, 0.0, b"")
            self._send([stream], lambda: stream.journal.report([asking]))
        elif stream.last is not None:
            self._write(stream.journal, [(stream, stream.last)])

    def _hold_or_read(self, stream: Stream) -> None:
        """Suspend or resume reading a stream, according to its ``is_held``."""
        if stream.is_held == (stream in self._held) or stream.drained.is_set():
            return
        if stream.is_held:
            if stream.read_from == math.inf:
                text = "trial %s attempt %d: its journal is full, and report() waits"
                logger.info(text, *stream.claim[:2], extra=_fields_of(stream))
            self._held.add(stream)
            # As in ``_finish``.
            with contextlib.suppress(KeyError):
                self._selector.unregister(stream)
        else:
            self._held.remove(stream)
            self._selector.register(stream, selectors.EVENT_READ)

    def _finish(self, stream: Stream) -> None:
        """Stop reading a stream, close it, and mark it as drained."""
        self._held.discard(stream)
        stream.read_from = 0.0
        # A process without free descriptors could not attach it.
        with contextlib.suppress(KeyError):
            self._selector.unregister(stream)
        stream.close()
        stream.drained.set()

    def _write_next_parts(self, ready: Iterable[Stream]) -> None:
        """Write the next part of each of these streams."""
        batches: dict[Journal, list[tuple[Stream, StreamPart]]] = defaultdict(list)
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
                self._finish(stream)

    def _write_all(self, batches: dict[Journal, list[tuple[Stream, StreamPart]]]) -> None:
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

    def _write(self, journal: Journal, batch: list[tuple[Stream, StreamPart]]) -> None:
        """Write a batch in order: checkpoints in memory, reports as one entry, other checkpoints."""
        batch = [(stream, cut) for stream, cut in batch if stream.begin_write(cut)]
        batch = [
            (stream, cut) for stream, cut in batch if all(self._put_checkpoint(stream, *held) for held in cut.held)
        ]
        reporting = [(stream, cut.segment) for stream, cut in batch if cut.segment is not None]
        if reporting:
            segments = [segment for _, segment in reporting]
            answers = self._send([stream for stream, _ in reporting], lambda: journal.report(segments))
            for (stream, _), answer in zip(reporting, answers, strict=True):
                if answer != _REFUSED:
                    stream.unwritten = None
        for stream, cut in batch:
            if cut.saved and stream.last is cut and not stream.is_refused:
                self._journal_saved(stream, cut.saved)

    def _put_checkpoint(self, stream: Stream, checkpoint: CheckpointId, data: bytes) -> bool:
        """Store a dict checkpoint in Redis. Return False after a failure: no report may refer to it."""
        journal, claim = stream.journal, stream.claim
        (answer,) = self._send([stream], lambda: [journal.put_checkpoint(claim, checkpoint, data)], closing=GAP)
        return answer not in (FENCED, GAP, _REFUSED)

    def _journal_saved(self, stream: Stream, checkpoints: list[CheckpointId]) -> None:
        claim, now = stream.claim, self._clock.time()
        events = {
            checkpoint: CheckpointSaved(
                trial=claim.trial, attempt=claim.attempt, checkpoint=checkpoint, at=now
            ).encode()
            for checkpoint in checkpoints
        }
        self._send([stream], lambda: [stream.journal.saved(claim, events)])

    def _send(self, streams: list[Stream], write: Callable[[], list[Answer]], *, closing: Answer = "") -> list[Answer]:
        """Write data by *write*. Pass its answers to the streams, and return them.

        After an error, all answers are GAP, which ends the attempts. They are *closing* if the server is away while the
        worker shuts down, and _REFUSED if the server is full.
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
            if told := stream.apply_answer(answer):
                stream.listener.on_answer(told)
        return answers


def _fields_of(stream: Stream) -> dict[str, object]:
    """Return the fields of a log record about a stream's attempt."""
    trial, attempt, _ = stream.claim
    return {"experiment": stream.journal.experiment, "trial": trial, "attempt": attempt}


def _read(stream: Stream) -> StreamPart | None:
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
