"""The trial's side of its pipes: it sends reports to the worker, and reads the worker's orders."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from mqtune.core.codec import decode_value, encode_value, pack_metrics, report_packer
from mqtune.core.errors import ReportingClosed
from mqtune.core.trial import ITERATION, TIME_THIS_ITER, TIME_TOTAL, AttemptEnd, CheckpointId, Metrics
from mqtune.trainable.process.children import mark_descendants, refuse
from mqtune.trainable.process.output import flush
from mqtune.trainable.process.protocol import (
    ANSWER,
    CLEARED,
    FRAME,
    FRAME_CHECKPOINT,
    FRAME_END,
    FRAME_REPORT,
    FRAME_SAVED,
    PAUSE,
    PIPE_CLOSED,
    RECORD,
    SAVE,
    STOP,
    StartMessage,
    StopOrder,
)
from mqtune.trainable.process.saver import Saver, make_folder

if TYPE_CHECKING:
    from mqtune.checkpoints import Checkpoint
    from mqtune.trainable.process.late_imports import Batch
    from mqtune.trainable.process.saver import Savable

#: Bytes to read from the control pipe at a time: whole records.
_CONTROL_BYTES: Final = 256 * RECORD.size
#: In lockstep, how often a waiting thread checks whether another thread has read the awaited record.
_CHECK_AGAIN_MS: Final = 20
#: The metrics that are added to each report.
_COUNTED: Final = frozenset({ITERATION, TIME_THIS_ITER, TIME_TOTAL})
#: The file of a descriptor that is not open, for ``file_of``.
_NO_FILE: Final = (-1, -1)
#: How often the main thread gets StopTrial before a report ends the process: once by the stop signal, and once by a
#: report during clean-up, such as in a ``finally`` block.
RAISED_AT_MOST: Final = 2


#: How many forks lie between the start of Python and this process. A report compares it, to notice that it comes from a
#: child process; this is cheaper than asking for the process id.
_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - of the process
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class StopTrial(BaseException):
    """The trial should end now.

    It is raised in the trial's main thread, wherever that is, and by a later ``report`` of any thread. It is a
    BaseException, so ``except Exception`` doesn't catch it. If a trial has caught it and the main thread reports again,
    the process is ended by SIGTERM.

    ``finally`` blocks run, in the time that is left of the grace. ``save_checkpoint`` still works meanwhile. So a
    function can catch StopTrial and save, to be resumed from exactly here.

    Args:
        action: "stop", for ever, or "pause": the trial may be resumed from its newest checkpoint, perhaps elsewhere.
    """

    def __init__(self, action: StopOrder = "stop") -> None:
        super().__init__(action)
        self.action = action


def explain_ignored_order(order: StopOrder) -> str:
    """Return the text that explains why a trial has not ended despite this order."""
    return (
        f"did not end when it was told to {order or 'stop'}: a bare `except:` or `except BaseException:` has caught "
        "StopTrial; write `except Exception:`"
    )


@dataclass(frozen=True, slots=True)
class Context:
    """The trial that this process runs, and its seat in the trial.

    Outside a trial, all fields have their defaults.

    ``seat`` is 0 and ``seats`` is 1, unless the trial has several seats (``Resources(machines=…)`` or ``seats=…``).
    Then ``address`` is a host and a free port of seat 0, such as "10.0.0.7:41234", by which the others reach it.
    Otherwise it is empty.

    ``folder`` is the attempt's own folder. By default it is the current directory: it has links to the program's files,
    and its new files are kept as ``keep_working_dir`` says. With ``Process(working_dir="code")`` it begins empty, and
    is deleted when the attempt has ended.
    """

    trial: str = ""
    attempt: int = 0
    experiment: str = ""
    folder: Path = Path()
    seat: int = 0
    seats: int = 1
    address: str = ""


class Session:
    """One attempt in its process: it sends messages to the worker, and gets orders from it.

    Args:
        fds: the write end of the pipe to the worker, and the read end of the control pipe. The first blocks, so a full
            pipe makes ``report`` wait. The second does not block.
    """

    def __init__(self, message: StartMessage, fds: Sequence[int]) -> None:
        self.message = message
        #: How many reports were sent.
        self.sequence = 0
        #: Whether the caller handles a pause itself, between steps. Then a pause raises nothing, and ``acknowledge``
        #: returns it.
        self.defer_pause = False
        #: A folder to use as the checkpoint of the next report without a checkpoint.
        self.next_checkpoint: Path | None = None
        #: The newest order that the trainable has seen.
        self.known_order: StopOrder = ""
        #: The packages that a script below this process has imported.
        self.imported: list[Batch] = []
        #: The newest order that the worker has sent.
        self._order: StopOrder = ""
        #: How often the main thread has raised StopTrial for the order in ``known_order``.
        self._raised = 0
        self.connect(fds)
        #: Whether this is seat 0. The further seats of a trial don't report, save or ask.
        self.is_first = message["seat"] == 0
        self._has_warned = False
        self._lockstep = message["sync"] == "lockstep"
        self._timestamp = message["timestamp"]
        self._epoch_s = message["epoch_s"]
        self._last_report = b""
        self._saver = Saver(message)
        self._lock = threading.Lock()
        self._hearing = threading.Lock()
        self._main = threading.main_thread().ident
        self._packer = report_packer()
        self._forks = _forks
        #: Whether the stop signal must not interrupt the main thread now, and whether it came meanwhile.
        self._busy = False
        self._signalled = False
        self._saving = False
        self._has_ended = False
        self._cleared = 0
        #: The pieces of the next answer, and the last complete answer.
        self._pieces = self._answer = b""
        self._asking = threading.Lock()
        #: The number of the newest request to save a checkpoint, and of the newest fulfilled one.
        self._saves_requested = self._saves_done = 0
        #: Whether the trial has fetched its initial checkpoint. Its counters continue from the checkpoint's.
        self._has_resumed = False
        self._iterations_before = 0
        #: The counters of the last report, or else of the initial checkpoint.
        self._iteration = 0
        self._time_total_s = 0.0
        #: When the last report returned, or else when the attempt began.
        self._since = monotonic()

    def connect(self, fds: Sequence[int]) -> None:
        """Use these descriptors as the pipes from now on."""
        self._pipe, self._control = fds
        # User code may close the pipes, and its own files may then get their numbers.
        self._pipe_file, self._control_file = file_of(self._pipe), file_of(self._control)

    def enter(self) -> None:
        """Set the attempt's environment variables, and mark further child processes as the attempt's."""
        os.environ.update(self.message["environment"])
        mark_descendants(self.message["folder"])

    def ensure_folder(self) -> Path:
        """Return the attempt's own folder for users, and make it if it is missing.

        It is the attempt's working directory. An attempt without one has the folder of ``ensure_scratch``.
        """
        working_dir = self.message["working_dir"]
        return make_folder(Path(working_dir)) if working_dir else self.ensure_scratch()

    def ensure_scratch(self) -> Path:
        """Return the folder for files that are deleted at the attempt's end. Make it if it is missing."""
        return self._saver.ensure_folder()

    @property
    def context(self) -> Context:
        """The trial, attempt and seat of this process."""
        message = self.message
        seat = message["seat"], message["seats"], message["address"]
        return Context(message["trial"], message["attempt"], message["experiment"], self.ensure_folder(), *seat)

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a child of the trial's process, which alone may send messages."""
        return _forks != self._forks

    @property
    def last_metrics(self) -> Metrics:
        """The metrics of the last report; empty before the first."""
        return decode_value(self._last_report)[1] if self._last_report else {}

    def acknowledge(self) -> StopOrder:
        """Return the trial's order and mark it as seen by the trainable."""
        self.known_order = order = self._order
        return order

    def is_save_wanted(self) -> bool:
        """Return whether a checkpoint was requested and none has been saved since."""
        if not self.is_first:
            return False
        if not self.is_inherited:
            with self._defer_signals():
                self._read_control()
        return self._saves_requested > self._saves_done

    def report(
        self,
        metrics: Metrics,
        checkpoint: Savable | None = None,
        counters: Mapping[str, object] | None = None,
        *,
        is_question: bool = False,
    ) -> None:
        """Send one report, as ``mqtune.report`` does.

        Args:
                checkpoint: a dict, a folder or a fetched checkpoint. It is saved before the report is sent.
            counters: the counters to save with the checkpoint; None for the session's own.
            is_question: whether to wait for the driver's answer.
        """
        if self._order:
            is_deaf = self._raised >= RAISED_AT_MOST and not self._has_ended
            if is_deaf and threading.get_ident() == self._main and not self.is_inherited:
                self._end_deaf_process()
            self._raise_if_ordered()
        if self.is_inherited:
            refuse("report")
        now = monotonic()
        took_s = now - self._since
        data, name = None, CheckpointId("")
        if checkpoint is None and self.next_checkpoint is not None:
            checkpoint, self.next_checkpoint = self.next_checkpoint, None
        if checkpoint is not None:
            # An invalid report raises here, before its checkpoint is saved.
            row = self._add_counters(metrics, took_s)
            pack_metrics(0.0, row)
            name, data = self._save(checkpoint, self._counters_of(row, took_s) if counters is None else counters)
            now = monotonic()
        with self._defer_signals():
            with self._lock:
                # This machine's own clock may be hours off, and any clock may step back.
                self._timestamp = max(self._epoch_s + now, self._timestamp)
                row = self._add_counters(metrics, took_s)
                packed = pack_metrics(self._timestamp, row, name, self._packer)
                if data is not None:
                    self._send(FRAME_CHECKPOINT, encode_value([name, data]))
                self._send(FRAME_REPORT, packed)
                self._last_report = packed
                self.sequence = sequence = self.sequence + 1
                self._iteration = _as_whole(row[ITERATION], sequence)
                self._time_total_s += as_seconds(row[TIME_THIS_ITER], took_s)
            if not self.is_first:
                self._warn_once()
            elif self._lockstep or is_question:
                self._wait_until_cleared(sequence)
            self._since = monotonic()
        if self._order:
            self._raise_if_ordered()

    def ask(self, question: Metrics) -> object:
        """Report a question, wait for the driver's answer, and return it, as ``mqtune.ask`` does."""
        if not self.is_first:
            raise RuntimeError(f"ask: this is seat {self.message['seat']} of the trial, and only seat 0 may ask")
        with self._asking:
            self._answer = b""
            while not self._answer:
                # Without an answer, ask again: the driver may have died, or this trial has an order, which report
                # raises.
                self.report(question, is_question=True)
            return decode_value(base64.b64decode(self._answer))

    def save(self, checkpoint: Savable, counters: Mapping[str, object] | None = None) -> CheckpointId:
        """Save a checkpoint without a report, and return its id. This works after an order to end, too."""
        if self.is_inherited:
            refuse("save_checkpoint")
        order = self._order
        known = {ITERATION: self._iteration, TIME_TOTAL: self._time_total_s}
        name, data = self._save(checkpoint, known if counters is None else counters)
        with self._defer_signals(), self._lock:
            if data is not None:
                self._send(FRAME_CHECKPOINT, encode_value([name, data]))
            self._send(FRAME_SAVED, name.encode())
        if not self.is_first:
            self._warn_once()
        if self._order != order:
            self._raise_if_ordered()
        return name

    def draft(self) -> Path:
        """Return a new empty folder for a checkpoint, in the store itself if that saves a copy."""
        return self._saver.draft()

    def get_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint that this attempt starts from, as ``mqtune.get_checkpoint`` does."""
        checkpoint = self._saver.fetch()
        if checkpoint is not None and not self._has_resumed:
            self._has_resumed = True
            counted = checkpoint.counters
            self._iteration = int(counted.get(ITERATION, 0))
            self._iterations_before = self._iteration - self.sequence
            self._time_total_s = float(counted.get(TIME_TOTAL, 0.0))
        return checkpoint

    def end(self, body: bytes) -> None:
        """Send how the trainable ended, as the last message. Later calls raise StopTrial."""
        with self._lock:
            self._send(FRAME_END, body)
            # Another thread's report may wait for the lock. It must not follow the end.
            self._has_ended = True
        self._order = "stop"

    def on_stop_signal(self, *_: object) -> None:
        """Read the orders and raise StopTrial, now or at the end of a critical section."""
        self._signalled = True
        if not self._busy:
            self._handle_signal()

    def _handle_signal(self) -> None:
        """Read the orders that the signal announces, and raise StopTrial once for each order."""
        while self._signalled:
            # The signal may come again meanwhile.
            self._busy, self._signalled = True, False
            # If the control pipe can't be read any more, the trial stops.
            with contextlib.suppress(ReportingClosed):
                self._read_control()
            self._busy = False
        if not self._order:
            self._order = "stop"
        if self._order != self.known_order:
            self._raise_if_ordered()

    def _raise_if_ordered(self) -> None:
        if self._order == "pause" and (self.defer_pause or self._saving):
            return
        if self._order:
            if threading.get_ident() == self._main:
                # Each order has its own count.
                self._raised = self._raised + 1 if self._order == self.known_order else 1
            self.known_order = self._order
            raise StopTrial(self._order)

    def _end_deaf_process(self) -> None:
        """Report that this process has ignored its order to end, and send it SIGTERM.

        User code may handle that signal. Then the worker's next signals end the process.
        """
        why = explain_ignored_order(self.known_order)
        with contextlib.suppress(Exception):
            sys.stderr.write(f"{why}\n")
        flush()
        end = AttemptEnd.PAUSED if self.known_order == "pause" else AttemptEnd.STOPPED
        # The worker may be gone, or the pipe to it closed.
        with contextlib.suppress(StopTrial, ReportingClosed):
            self.end(encode_value({"end": end.value, "error_type": "", "error": why, "heard": self.known_order}))
        os.kill(os.getpid(), signal.SIGTERM)

    def _read_control(self) -> None:
        """Read all records in the control pipe, without waiting for more.

        In the main thread, call it only while the stop signal is deferred.
        """
        with self._hearing:
            if file_of(self._control) != self._control_file:
                raise ReportingClosed(PIPE_CLOSED)
            try:
                data = os.read(self._control, _CONTROL_BYTES)
            except BlockingIOError:
                return
            for kind, number in RECORD.iter_unpack(data[: len(data) - len(data) % RECORD.size]):
                if kind == STOP:
                    self._order = "stop"
                elif kind == PAUSE:
                    self._order = self._order or "pause"
                elif kind == SAVE:
                    self._saves_requested = max(self._saves_requested, number)
                elif kind == CLEARED:
                    self._cleared = max(self._cleared, number)
                    self._answer, self._pieces = self._pieces.rstrip(b"\0"), b""
                elif kind == ANSWER:
                    self._pieces += number.to_bytes(8, "little")
            if not data:
                # The worker is gone.
                self._order = "stop"

    @contextlib.contextmanager
    def _defer_signals(self) -> Iterator[None]:
        """Delay the handling of a stop signal until the end of the block."""
        if threading.get_ident() != self._main or self._busy:
            yield
            return
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            if self._signalled:
                self._handle_signal()

    def _wait_until_cleared(self, sequence: int) -> None:
        is_main = threading.get_ident() == self._main
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while self._cleared < sequence and not self._order and not (is_main and self._signalled):
            poll.poll(_CHECK_AGAIN_MS)
            self._read_control()

    def _add_counters(self, metrics: Metrics, took_s: float) -> Metrics:
        """Return the metrics of the next report with its iteration and times.

        Values that the caller has given take precedence.
        """
        if not isinstance(metrics, dict):
            # pack_metrics raises the error.
            return metrics
        row = {
            **metrics,
            ITERATION: self._iterations_before + self.sequence + 1,
            TIME_THIS_ITER: took_s,
            TIME_TOTAL: self._time_total_s + took_s,
        }
        if _COUNTED.isdisjoint(metrics):
            return row
        row[TIME_TOTAL] = self._time_total_s + as_seconds(metrics.get(TIME_THIS_ITER, took_s), took_s)
        return {**row, **metrics}

    def _counters_of(self, row: Metrics, took_s: float) -> dict[str, int | float]:
        """Return the counters to save with the checkpoint of a report."""
        total_s = self._time_total_s + as_seconds(row[TIME_THIS_ITER], took_s)
        return {
            ITERATION: _as_whole(row[ITERATION], self.sequence + 1),
            TIME_TOTAL: as_seconds(row[TIME_TOTAL], total_s),
        }

    def _save(self, checkpoint: Savable, counters: Mapping[str, object]) -> tuple[CheckpointId, bytes | None]:
        """Save a checkpoint, and return its id and, for a dict, its bytes.

        A pause that comes meanwhile is delayed until the checkpoint is saved. A stop is not.
        """
        requested, is_main = self._saves_requested, threading.get_ident() == self._main
        if is_main:
            self._saving = True
        try:
            saved = self._saver.save(checkpoint, counters)
        finally:
            if is_main:
                self._saving = False
        self._saves_done = max(self._saves_done, requested)
        return saved

    def _warn_once(self) -> None:
        """Print once that this seat's reports and checkpoints are not sent."""
        has_warned, self._has_warned = self._has_warned, True
        if not has_warned:
            seat, seats = self.message["seat"], self.message["seats"]
            # User code may have closed the stream.
            with contextlib.suppress(Exception):
                sys.stderr.write(f"this is seat {seat} of {seats} of the trial: only seat 0 reports and saves\n")

    def _send(self, kind: int, body: bytes) -> None:
        if self._has_ended:
            raise StopTrial
        if not self.is_first and kind != FRAME_END:
            return
        frame = FRAME.pack(len(body), kind) + body
        try:
            # Otherwise the frame could go into a file of user code that has got this number.
            if os.fstat(self._pipe)[1:3] != self._pipe_file:
                raise ReportingClosed(PIPE_CLOSED)
            sent = os.write(self._pipe, frame)
            while sent < len(frame):
                sent += os.write(self._pipe, frame[sent:])
        except BrokenPipeError:
            raise StopTrial from None
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            raise ReportingClosed(PIPE_CLOSED) from None


def file_of(fd: int) -> tuple[int, int]:
    """Return the inode and device of a descriptor's file, or (-1, -1) if it is closed.

    No other file has the same pair while this one is open.
    """
    try:
        status = os.fstat(fd)
    except OSError:
        return _NO_FILE
    return status.st_ino, status.st_dev


def _as_whole(value: object, otherwise: int) -> int:
    return value if type(value) is int else otherwise


def as_seconds(value: object, otherwise: float) -> float:
    """Return a time that a user reported, in seconds, or *otherwise* if it is not a number."""
    if value.__class__ is float:
        return value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise
