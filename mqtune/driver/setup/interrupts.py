"""Ctrl-C handling: the first shuts a run down, the second ends it immediately."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

T = TypeVar("T")

_SAID: Final = "Stopping: running trials are queued again for the next run. Ctrl-C again ends immediately."
_STDERR: Final = 2
#: Time for closing everything after the second Ctrl-C, in seconds. The process must end within a second.
AT_ONCE_S: Final = 0.5
#: Time limit of a shutdown after the first Ctrl-C, in seconds. Trials have 20 s to end; worker and server need as long
#: again. Waiting for an unavailable Redis would take much longer.
ORDERLY_S: Final = 90.0
_TOO_LONG: Final = b"\nThe shutdown takes too long; ending now.\n"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: Plus a signal's number, this is the exit code of a process that the signal has ended, as in shells.
_EXIT_CODE_OF_SIGNAL: Final = 128
_SHOW_CURSOR: Final = b"\x1b[?25h"


class _Interrupted(BaseException):
    """Ends the wait in ``Interrupts.wait``."""


class Interrupts:
    """Counts SIGINT and SIGTERM.

    The first one ends a wait, and a later one raises KeyboardInterrupt. If the shutdown after the first signal lasts
    longer than ``ORDERLY_S``, a second signal is sent. Python handles no signal while the main thread is in a long call
    of C code. Therefore a thread watches too: it ends the process ``AT_ONCE_S`` after a second signal, if the run has
    not ended by then. Only C code that holds the interpreter lock can delay the thread.
    """

    def __init__(self) -> None:
        self.count = 0
        #: The line that this has written to the terminal, for the progress display. Empty without a terminal.
        self.said = ""
        self._waiting = False
        self._defers = False
        self._is_pending = False
        self._raised = False
        self._number = signal.SIGINT

    @property
    def is_urgent(self) -> bool:
        """Whether to end immediately, without waiting for anything."""
        return self.count > 1

    @property
    def exit_code(self) -> int:
        """Exit code for the first signal: 130 for SIGINT, 143 for SIGTERM."""
        return _EXIT_CODE_OF_SIGNAL + self._number

    @contextmanager
    def handled(self, end_at_once: Callable[[], str] = str) -> Iterator[None]:
        """Handle the signals inside the block. Outside the main thread this does nothing.

        Args:
            end_at_once: the watching thread calls this just before it ends the process, and prints the returned text.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        watch = _Watch(end_at_once)
        before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            watch.stop()

    def wait(self, call: Callable[[], T], *, interrupted: T) -> T:
        """Call *call*, which waits for something, and return its result.

        The first signal ends the wait, and *interrupted* is returned. If the signal came before the first wait, that
        wait doesn't begin. Later waits are not ended.
        """
        try:
            self._waiting = True
            try:
                if self.count:
                    self._end_wait()
                return call()
            finally:
                self._waiting = False
        except _Interrupted:
            return interrupted

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay the message about a signal until the end of the block, which draws on the terminal."""
        self._defers = True
        try:
            yield
        finally:
            self._defers = False
            if self._is_pending:
                self._is_pending = False
                self._say_stopping()

    def sleep(self, seconds: float) -> None:
        """Sleep. Raise KeyboardInterrupt if a signal comes, or has come before."""
        self.wait(lambda: time.sleep(seconds), interrupted=None)
        if self.count:
            raise KeyboardInterrupt

    def _end_wait(self) -> None:
        if not self._raised:
            self._raised = True
            raise _Interrupted

    def _handle(self, number: int, _: object) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
        self._number = signal.Signals(number)
        if self._defers:
            self._is_pending = True
        else:
            self._say_stopping()
        if self._waiting:
            self._end_wait()

    def _say_stopping(self) -> None:
        # Not print(): the signal may have interrupted one.
        _write_stderr(f"\n{_SAID}\n".encode())
        self.said = _SAID if os.isatty(_STDERR) else ""


def _write_stderr(message: bytes) -> None:
    """Write to standard error without blocking.

    Write nothing if it is closed or its reader is stuck.
    """
    ready = select.poll()
    ready.register(_STDERR, select.POLLOUT)
    with suppress(OSError):
        if any(event & select.POLLOUT for _, event in ready.poll(0)):
            os.write(_STDERR, message)


class _Watch:
    """Ends the process if the run does not end in time after a second signal.

    It gets the signals from a pipe. Python writes each signal's number there immediately, even while the main thread
    can't run the signal's handler.
    """

    def __init__(self, end_at_once: Callable[[], str]) -> None:
        self._end_at_once = end_at_once
        self._over = threading.Event()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        threading.Thread(target=self._run, name="mqtune-interrupts", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        signal.set_wakeup_fd(self._before)
        self._over.set()
        os.close(self._write)

    def _run(self) -> None:
        numbers: list[int] = []
        # Not select(), which rejects descriptors above 1,023.
        signals = select.poll()
        signals.register(self._read, select.POLLIN)
        while len(numbers) < 2:  # noqa: PLR2004 - the second signal
            if not signals.poll(ORDERLY_S * 1_000 if numbers else None):
                _write_stderr(_TOO_LONG)
                os.kill(os.getpid(), numbers[0])
                continue
            received = os.read(self._read, 64)
            if not received:
                os.close(self._read)
                return
            numbers += [number for number in received if number in _SIGNALS]
            if self._before != -1:
                # Notify the previous wakeup descriptor as well.
                with suppress(OSError):
                    os.write(self._before, received)
        if self._over.wait(AT_ONCE_S):
            os.close(self._read)
            return
        with suppress(Exception):
            message = self._end_at_once()
            show = _SHOW_CURSOR if sys.stderr.isatty() else b""
            os.write(_STDERR, show + f"\n{message}\n".encode(errors="backslashreplace"))
        os._exit(_EXIT_CODE_OF_SIGNAL + numbers[0])
