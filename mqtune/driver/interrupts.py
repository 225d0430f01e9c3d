"""Ctrl-C: the first shuts a run down, the second ends it at once."""

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

_SAID: Final = "Stopping: running trials are requeued. Ctrl-C again ends at once."
_STDERR: Final = 2
#: How long closing everything may take after the second Ctrl-C: what a living Redis and a worker need, and well below
#: the second within which a run has ended then.
AT_ONCE_S: Final = 0.5
#: How long a shutdown may take: trials have 20 s, a worker and a server as long again, and results are written.
#: A Redis that is away is waited for much longer otherwise.
ORDERLY_S: Final = 90.0
_TOO_LONG: Final = b"\nThe shutdown takes too long; ending at once.\n"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: What a shell adds to a signal's number for the exit code of a process that ended by it.
_EXIT_CODE_OF_SIGNAL: Final = 128
_SHOW_CURSOR: Final = b"\x1b[?25h"


class _Interrupted(BaseException):
    """Ends a wait, and only a wait; nothing was read."""


class Interrupts:
    """Counts SIGINT and SIGTERM; the first only ends a wait, a later one raises KeyboardInterrupt wherever it comes.

    A shutdown that takes longer than ``ORDERLY_S`` is cut short as by a second signal. A main thread that is in
    the middle of a long call of C code takes no signal. A thread therefore watches too, and ends the process when a
    second signal has not ended the run within ``AT_ONCE_S``; only C code that lets no other thread run can hold that
    up.
    """

    def __init__(self) -> None:
        self.count = 0
        #: The line that was written to the terminal, past whatever draws there.
        self.said = ""
        self._waiting = False
        self._raised = False
        self._number = signal.SIGINT

    @property
    def is_urgent(self) -> bool:
        """Whether the end must come at once: nothing may wait for anybody any more."""
        return self.count > 1

    @property
    def exit_code(self) -> int:
        """The exit code of a process that ends by the first signal that came: 130 for SIGINT, 143 for SIGTERM."""
        return _EXIT_CODE_OF_SIGNAL + self._number

    @contextmanager
    def handled(self, end_at_once: Callable[[], str] = str) -> Iterator[None]:
        """Handle the signals; only the main thread can, elsewhere nothing changes.

        Args:
            end_at_once: called by the thread that watches, just before it ends the process; returns what to say.
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
        """Return what *call* returns, which does nothing but wait.

        The first signal, also one that has just come, ends it, once. Returns *interrupted* then.
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

    def sleep(self, seconds: float) -> None:
        """Wait so long; a signal, also one that has come before, ends the wait as KeyboardInterrupt."""
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
        # Not print: the signal may have come in the middle of one.
        _say(f"\n{_SAID}\n".encode())
        self.said = _SAID if os.isatty(_STDERR) else ""
        if self._waiting:
            self._end_wait()


def _say(message: bytes) -> None:
    """Write to standard error, unless it is closed or its reader is stuck: a signal must not wait for it."""
    ready = select.poll()
    ready.register(_STDERR, select.POLLOUT)
    with suppress(OSError):
        if any(event & select.POLLOUT for _, event in ready.poll(0)):
            os.write(_STDERR, message)


class _Watch:
    """Ends the process when a second signal has not ended the run in time, whatever the main thread does.

    Python writes the number of each signal to a pipe at once, also while the main thread can't run its handler.
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
        # Not select(), which takes no descriptor above 1,023.
        signals = select.poll()
        signals.register(self._read, select.POLLIN)
        while len(numbers) < 2:  # noqa: PLR2004 - the second signal
            if not signals.poll(ORDERLY_S * 1_000 if numbers else None):
                _say(_TOO_LONG)
                os.kill(os.getpid(), numbers[0])
                continue
            found = os.read(self._read, 64)
            if not found:
                os.close(self._read)
                return
            numbers += [number for number in found if number in _SIGNALS]
            if self._before != -1:
                # Whoever listened before is told too.
                with suppress(OSError):
                    os.write(self._before, found)
        if self._over.wait(AT_ONCE_S):
            os.close(self._read)
            return
        with suppress(Exception):
            said = self._end_at_once()
            show = _SHOW_CURSOR if sys.stderr.isatty() else b""
            os.write(_STDERR, show + f"\n{said}\n".encode(errors="backslashreplace"))
        os._exit(_EXIT_CODE_OF_SIGNAL + numbers[0])
