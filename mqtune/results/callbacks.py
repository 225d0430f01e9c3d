"""The dispatcher that calls callbacks, and the callback that writes ``errors.txt``."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mqtune.core.callback import Callback
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import Attempt, AttemptEnd, Report, Trial, TrialStatus

if TYPE_CHECKING:
    from mqtune.core.experiment import Experiment

logger = logging.getLogger(__name__)

#: While this many events are queued, which takes at most about 50 MB, reports are dropped.
MOST_WAITING: Final = 50_000
#: The events that may be dropped. There are only a few others for each attempt.
_DROPPABLE: Final = frozenset({"on_report", "on_checkpoint"})
#: Seconds for queued events when the run ends, short enough for a user who pressed Ctrl-C.
_CLOSE_S: Final = 10.0
#: Seconds that the idle thread sleeps. Waking it for each event would cost the driver as much as the event.
_REST_S: Final = 0.01

_METHODS: Final = tuple(name for name in vars(Callback) if name.startswith("on_"))


class _Listener(NamedTuple):
    """A callback, and its method for an event."""

    callback: Callback
    call: Callable[..., None]


class CallbackDispatcher:
    """Calls callbacks. Their errors don't end the run. Only one thread may use an instance.

    Callbacks are called in one thread of their own, in the order of ``tell``, so slow ones don't delay the run.
    Callbacks with ``in_loop`` are called directly by ``tell``. Methods that are not overridden cost nothing.

    While *most_waiting* events are queued, reports and checkpoints are not passed to the thread but counted. The
    journal has them. At most one ``on_step`` is queued, and called with the newest text.

    Raises:
        ConfigurationError: a given object is not a Callback.
    """

    def __init__(self, callbacks: Iterable[Callback], *, most_waiting: int = MOST_WAITING) -> None:
        self._most_waiting = most_waiting
        self._callbacks = list(callbacks)
        for callback in self._callbacks:
            if not isinstance(callback, Callback):
                hint = f"; give {callback.__name__}(…)" if isinstance(callback, type) else ""
                raise ConfigurationError(f"callbacks: {callback!r} is not a mqtune.Callback{hint}")
        self._in_loop = {name: self._listeners(name, in_loop=True) for name in _METHODS}
        self._in_thread = {name: self._listeners(name, in_loop=False) for name in _METHODS}
        self._queue: SimpleQueue[tuple[str, tuple[Any, ...]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        #: The argument of the next on_step, and whether an on_step is queued.
        self._waiting_for = ""
        self._step_waits = False
        #: The method and callback of the thread's running call, or None.
        self._telling: tuple[str, Callback] | None = None
        self._dropped: Counter[str] = Counter()
        self._unfinished = ""
        #: By the callback's id.
        self._failures: dict[int, _Failures] = {}

    def _listeners(self, method: str, *, in_loop: bool) -> list[_Listener]:
        base = getattr(Callback, method)
        return [
            _Listener(callback, call)
            for callback in self._callbacks
            if bool(callback.in_loop) is in_loop
            and getattr(call := getattr(callback, method), "__func__", call) is not base
        ]

    @property
    def interval_s(self) -> float | None:
        """The longest time between calls of ``on_step``, in seconds, or None without a limit."""
        return min((c.interval_s for c in self._callbacks if c.interval_s is not None), default=None)

    def describe_problems(self) -> tuple[str, ...]:
        """Return the problems with callbacks so far, a sentence each."""
        texts = [failures.text() for failures in list(self._failures.values())]
        if self._dropped:
            numbers = " and ".join(f"{count} {method}" for method, count in sorted(self._dropped.items()))
            slow = ", ".join(sorted({_name(c) for m in self._dropped for c, _ in self._in_thread[m]}))
            texts.append(f"{slow} could not keep up: {numbers} events were dropped; the journal has them")
        if self._unfinished:
            texts.append(self._unfinished)
        return tuple(texts)

    def hears(self, method: str) -> bool:
        """Return whether any callback overrides *method*. If not, the caller may skip ``tell``."""
        return bool(self._in_loop[method] or self._in_thread[method])

    def tell(self, method: str, *arguments: Any) -> None:
        """Call *method* of every callback that overrides it, with these arguments.

        It never raises a callback's error and never waits for the thread. Callbacks with ``in_loop`` are called before
        it returns. The thread receives copies of trials in their current state. After ``close`` it does nothing.
        """
        if self._is_closed:
            return
        for listener in self._in_loop[method]:
            try:
                listener.call(*arguments)
            except Exception as error:  # noqa: BLE001 - no error of a callback's may end the run
                self._note(listener.callback, method, arguments, error)
        if self._in_thread[method]:
            self._enqueue(method, arguments)

    def _enqueue(self, method: str, arguments: tuple[Any, ...]) -> None:
        if method in _DROPPABLE and self._queue.qsize() >= self._most_waiting:
            if not self._dropped:
                logger.warning(
                    "callbacks: %d events are queued; reports are dropped until there are fewer", self._most_waiting
                )
            self._dropped[method] += 1
            return
        if method == "on_step":
            (self._waiting_for,) = arguments
            if self._step_waits:
                return
            self._step_waits = True
        self._queue.put((method, tuple(_copied(a) if isinstance(a, Trial) else a for a in arguments)))
        if self._thread is None:
            # A daemon, so that a hanging callback does not keep the process alive.
            self._thread = threading.Thread(target=self._run, name="mqtune-callbacks", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Wait until the queue is empty, at most *timeout_s* seconds. Later calls do nothing.

        Call ``tell("on_end")`` before. A callback that is still busy is abandoned, which ``describe_problems`` reports.
        Later calls of any method do nothing.
        """
        if self._is_closed:
            return
        self._queue.put(None)
        try:
            if self._thread is not None:
                self._thread.join(timeout_s)
        finally:
            self._is_closed = True
        if self._thread is not None and self._thread.is_alive():
            self._unfinished = self._unfinished_text()
        for problem in self.describe_problems():
            logger.warning("callbacks: %s", problem)

    def _unfinished_text(self) -> str:
        telling = self._telling
        busy = f"{_name(telling[1])} was still busy with {telling[0]}" if telling else "callbacks were still busy"
        # The last element of the queue is the None that ends the thread.
        left = self._queue.qsize() - 1
        return f"{busy} when the run ended" + (f"; {left} events were not delivered" if left > 0 else "")

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            method, arguments = event
            if method == "on_step":
                # Reset before the text is read: a later text is for the next on_step.
                self._step_waits = False
                arguments = (self._waiting_for,)
            for listener in self._in_thread[method]:
                if self._is_closed:
                    return
                self._telling = method, listener.callback
                try:
                    listener.call(*arguments)
                except BaseException as error:  # noqa: BLE001 - sys.exit() in a callback must not end the others
                    self._note(listener.callback, method, arguments, error)
            self._telling = None
            if self._queue.empty():
                time.sleep(_REST_S)

    def _note(self, callback: Callback, method: str, arguments: tuple[Any, ...], error: BaseException) -> None:
        failures = self._failures.get(id(callback))
        if failures is not None:
            failures.count += 1
            return
        event = method + _about(arguments)
        self._failures[id(callback)] = _Failures(_name(callback), event, f"{type(error).__name__}: {error}")
        logger.error(
            "callback %s: %s failed; the run continues with the callback, whose further errors are only counted",
            _name(callback),
            event,
            exc_info=error,
        )


@dataclasses.dataclass(slots=True)
class _Failures:
    name: str
    method: str
    error: str
    count: int = 1

    def text(self) -> str:
        return f"{self.name} failed {self.count} times, first in {self.method}: {self.error}"


def _about(arguments: tuple[Any, ...]) -> str:
    """Return the subject of a call, such as `` on report 7 of trial 0003``."""
    report = next((f"report {argument.sequence} of " for argument in arguments if isinstance(argument, Report)), "")
    return next((f" on {report}trial {argument.id}" for argument in arguments if isinstance(argument, Trial)), "")


def _name(callback: Callback) -> str:
    return type(callback).__qualname__


def _copied(trial: Trial) -> Trial:
    """Return a copy of a trial, with a copy of the last attempt. Earlier attempts don't change."""
    attempts = [*trial.attempts[:-1], *map(dataclasses.replace, trial.attempts[-1:])]
    return dataclasses.replace(
        trial, attempts=attempts, history=list(trial.history), checkpoints=dict(trial.checkpoints)
    )


ERROR_FILE: Final = "errors.txt"
_INDENT: Final = "    "


class ErrorLog(Callback):
    """Appends failed attempts to ``errors.txt``, with time (UTC), worker, error and traceback.

    An attempt has failed if its user code failed, if its worker was lost or could not start it, or if it ended without
    reporting the metric. The file is never shortened. A resumed driver adds the failures that happened without a
    driver, and no failure twice. The first write error is logged. After an error, the next failure is written again.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ERROR_FILE
        #: First lines of all entries, even if an entry could not be written.
        self._known_heads: set[str] = set()
        #: Whether the last entry of the file is incomplete.
        self._is_cut = False
        self._has_warned = False

    def on_start(self, experiment: Experiment) -> None:
        self._read_file()
        missed = [
            (attempt.ended_at or 0.0, trial, attempt)
            for trial in list(experiment.trials.values())
            for attempt in list(trial.attempts)
            if _has_failed(trial, attempt)
        ]
        for _, trial, attempt in sorted(missed, key=lambda attempt: attempt[0]):
            self._log_failure(trial, attempt)

    def on_attempt_end(self, trial: Trial, attempt: Attempt) -> None:
        if _has_failed(trial, attempt):
            self._log_failure(trial, attempt)

    def _read_file(self) -> None:
        line = "\n"
        with contextlib.suppress(FileNotFoundError), self._path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.strip() and not line.startswith(_INDENT):
                    self._known_heads.add(line.rstrip("\n"))
        # A crash, or a full disk, may have left half an entry.
        self._is_cut = line != "\n"

    def _log_failure(self, trial: Trial, attempt: Attempt) -> None:
        head = _head(trial, attempt)
        if head in self._known_heads:
            return
        self._known_heads.add(head)
        body = attempt.error or (trial.reason if attempt.number == len(trial.attempts) else "") or attempt.stderr_tail
        # splitlines() also cuts at form feeds and the like. Without an indent, such a part would look like a head.
        lines = [head, *(_INDENT + line for line in body.splitlines() if line.strip()), "", ""]
        entry = "\n".join(lines).encode()
        try:
            self._append(entry)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s can't be written: %s; the journal has all failures, and the next failure will be written again",
                    self._path,
                    error,
                )

    def _append(self, entry: bytes) -> None:
        """Append an entry, in one write if the disk has free space.

        Raises:
            OSError: the disk is full. Part of the entry may be in the file.
        """
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            rest = b"\n\n" + entry if self._is_cut else entry
            self._is_cut = True
            while rest:
                rest = rest[os.write(file, rest) :]
            self._is_cut = False
        finally:
            with contextlib.suppress(OSError):
                os.close(file)


def _has_failed(trial: Trial, attempt: Attempt) -> bool:
    """Return whether an attempt failed. *trial* is its trial after the attempt's end."""
    if attempt.end in (AttemptEnd.FAILED, AttemptEnd.LOST) or attempt.could_not_start:
        return True
    if attempt.end is None or attempt.number != len(trial.attempts):
        return False
    # It ended without having reported the metric, and may be retried.
    wants_retry = trial.status is TrialStatus.QUEUED and attempt.end is AttemptEnd.COMPLETED
    return trial.status is TrialStatus.FAILED or wants_retry


def _head(trial: Trial, attempt: Attempt) -> str:
    at = datetime.fromtimestamp(attempt.ended_at or 0.0, UTC).isoformat(timespec="milliseconds")
    parts = [f"{at} trial {trial.id} attempt {attempt.number}"]
    parts.append(f"on {attempt.worker}" if attempt.worker else "on no worker")
    if attempt.error_type:
        parts.append(attempt.error_type)
    elif attempt.end is AttemptEnd.LOST:
        parts.append("its worker was lost")
    if attempt.signal is not None:
        parts.append(f"signal {attempt.signal}")
    elif attempt.exit_code:
        parts.append(f"exit code {attempt.exit_code}")
    return ", ".join(parts).replace("\n", " ")
