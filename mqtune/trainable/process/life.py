"""The life of a trial's process: it waits for a start message, runs that attempt, perhaps further ones, and exits.

At the end of an attempt a process that may be reused asks the zygote whether it may stay (``done``): as a rule once the worker was told
of that end, so that the next attempt is prepared meanwhile; before that where a cleanup may still fail the attempt. When all of the
attempt is over it says so (``kept``). Next comes a start message, or the end of the channel. It answers a start message with ``taken``,
or leaves the trial to a fresh process by exiting without an answer.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol, cast

from mqtune.trainable import reporting
from mqtune.trainable.frozen_code import are_current, loaded_files, unfrozen
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.output import flush, flush_native, take_over_output
from mqtune.trainable.process.protocol import STOP_SIGNAL, BecomeScript, Ending, StartMessage
from mqtune.trainable.process.runner import Run, run_attempt, seed_generators
from mqtune.trainable.process.session import Session, StopTrial
from mqtune.trainable.spec import Loaded


class Body(Protocol):
    """The code that a process runs in each of its attempts: a function, an instance of a class, or scripts beside it.

    It enters each attempt's working directory.

    Attributes:
        asks_inside: whether the process asks within an attempt whether it may stay, and cleans up there only if it may not; else it
            cleans up in each attempt, and asks behind it.
        says_why: whether the trial's errors name the reason why the process does not stay.
    """

    asks_inside: bool
    says_why: bool

    def begin(self) -> None:
        """Prepare for the first attempt; the body was made for its session."""

    def reset(self, current: Session, /) -> str:
        """Prepare for another attempt, or return why that can't be; nothing can be reported yet."""

    def run(self) -> Ending:
        """Run an attempt to its end."""

    def left(self) -> str:
        """Put back what the attempt has changed, and return what it has left that keeps the process from another one; empty for nothing."""

    def clean_up(self, error: BaseException | None, /) -> None:
        """Clean up behind an attempt, which has raised *error*."""


def _body_of(loaded: Loaded, current: Session) -> Body:
    # Only the trials that need one import it.
    if isinstance(loaded, Path):
        from mqtune.trainable.script import Scripts  # noqa: PLC0415

        return Scripts(loaded, current)
    if isinstance(loaded, type):
        from mqtune.trainable.class_ import Instance  # noqa: PLC0415

        return Instance(loaded, current)
    from mqtune.trainable.function import Calls  # noqa: PLC0415

    return Calls(loaded, current)


class _Life:
    """One process, from its first attempt to its last."""

    _session: Session
    _body: Body

    def __init__(self, channel: Channel, load: Callable[[], Loaded], code_root: Path, *, reuse: bool) -> None:
        self._channel = channel
        self._load = load
        self._code_root = code_root
        self._reuse = reuse
        #: Whether it waits for another attempt, and whether it may ask for one as its last has ended well.
        self._stays = self._is_well = False
        #: The user's code that was imported, with its times, and how many modules there were then.
        self._files: dict[str, int] = {}
        self._modules = 0

    def run(self, message: StartMessage, pipes: Sequence[int]) -> int:
        """Run the first attempt and those that follow; return the code to exit with."""
        # The signal is blocked until now.
        self._open(Session(message, pipes))
        code = self._attempt(self._begin)
        while self._stays:
            if not self._take_next():
                self._leave()
                return 0
            code = self._attempt(lambda *_: self._see_through(self._session.listen))
        return code

    def _open(self, current: Session) -> None:
        take_over_output(current.message["stdout"], current.message["stderr"])
        self._session = reporting.current = current
        signal.signal(STOP_SIGNAL, current.tell)

    def _attempt(self, run: Run) -> int:
        """Run an attempt, and find out whether the process may stay; return the code to exit with."""
        self._stays = self._is_well = False
        code = run_attempt(self._load, self._session, run)
        if code and self._stays:
            self._leave()
        elif self._is_well and not code and not self._body.asks_inside:
            self._ask()
        return code

    def _begin(self, loaded: Loaded, current: Session) -> Ending:
        if self._reuse:
            self._note_files()
        self._load = lambda: loaded
        self._body = _body_of(loaded, current)
        return self._see_through(self._body.begin)

    def _see_through(self, begin: Callable[[], None]) -> Ending:
        """Run an attempt to its end; clean up, unless the process stays."""
        try:
            begin()
            ending = self._body.run()
        except BecomeScript:
            raise
        except BaseException as error:
            self._finish(error)
            raise
        self._finish(None)
        return ending

    def _finish(self, error: BaseException | None) -> None:
        # From here on a late stop changes nothing.
        signal.signal(STOP_SIGNAL, signal.SIG_IGN)
        self._is_well = self._reuse and _is_well(error)
        if self._is_well:
            _release(error)
            if self._body.asks_inside:
                self._ask()
        if not self._stays:
            self._body.clean_up(error)

    def _ask(self) -> None:
        """Find out whether the process may stay: what the attempt has left, and, as the zygote sees it, which processes."""
        left = self._body.left()
        self._note_files()
        if not self._body.asks_inside:
            # The worker sees that nothing more comes while the zygote looks.
            self._session.close()
        self._channel.send({"is": "done", "left": left})
        received = self._channel.receive()
        if received is not None and received[0]["left"] and self._body.says_why:
            sys.stderr.write(f"this process can't be used for another trial: {received[0]['left']}\n")
        self._stays = received is not None and not received[0]["left"]

    def _take_next(self) -> bool:
        """Wait for another attempt and prepare for it; return False to leave it to a fresh process, or when none comes."""
        self._session.close()
        flush_native()
        self._channel.send({"is": "kept"})
        received = self._channel.receive()
        if received is None:
            return False
        message, pipes = cast("StartMessage", received[0]), received[1]
        self._open(Session(message))
        if not self._is_reset():
            return False
        self._channel.send({"is": "taken"})
        self._session.connect(pipes)
        return True

    def _is_reset(self) -> bool:
        """Whether this process can run another attempt; if not, the reason is printed to that one's errors."""
        is_current = are_current(self._files.items())
        why = self._body.reset(self._session) if is_current else "its code has changed"
        if why:
            sys.stderr.write(f"a fresh process takes this trial, not that of the trial before: {why}\n")
        return not why

    def _leave(self) -> None:
        """Clean up behind the last attempt; an error in that is only printed, since the attempt has ended."""
        self._stays = False
        try:
            self._body.clean_up(None)
        except BaseException:  # noqa: BLE001 - whatever user code raises
            sys.stderr.write(traceback.format_exc())
        flush()

    def _note_files(self) -> None:
        """Take in the user's code that was imported since the last time."""
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            for path, mtime in unfrozen(loaded_files(self._code_root)):
                self._files.setdefault(path, mtime)


def _release(error: BaseException | None) -> None:
    """Release what the frames that an error has come through hold: files, and tensors on a device."""
    while error is not None:
        error.__traceback__ = None
        error.__cause__, error.__context__, error = None, None, error.__context__


def _is_well(error: BaseException | None) -> bool:
    return error is None or isinstance(error, StopTrial) or (isinstance(error, SystemExit) and not error.code)


def run_attempts(channel: Channel, load: Callable[[], Loaded], code_root: Path) -> NoReturn:
    """Wait for a start message, run that attempt and each that follows, and exit; exit at once when the zygote closes the channel.

    The stop signal must be blocked by the caller: one that comes early waits until the trainable is loaded.

    Raises:
        BecomeScript: in a fork of this process that is to become a script.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seed_generators()
    received = channel.receive()
    if received is None:
        os._exit(0)
    message, pipes = cast("StartMessage", received[0]), received[1]
    if not message["reuse"]:
        channel.close()
    code = 1
    try:
        code = _Life(channel, load, code_root, reuse=message["reuse"]).run(message, pipes)
    except BecomeScript:
        raise
    except BaseException:  # noqa: BLE001 - it has reported what it could
        code = 1
    os._exit(code)
