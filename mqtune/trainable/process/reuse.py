"""A process that runs several attempts, with one instance of a class, which gets another config for each.

Before it tells the worker that an attempt has ended, it asks the zygote whether it may stay (``done``); afterwards it says
that it waits (``kept``). Next comes a start message, or the end of the channel. It answers a start message with ``taken``, or
leaves the trial to a fresh process by exiting without an answer.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, cast

from mqtune.core.trial import AttemptEnd, CheckpointId, Metrics
from mqtune.trainable import reporting
from mqtune.trainable.class_ import Steps, Trainable
from mqtune.trainable.frozen_code import are_current, loaded_files, unfrozen
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.output import flush, flush_native, take_over_output
from mqtune.trainable.process.protocol import STOP_SIGNAL, Ending, StartMessage
from mqtune.trainable.process.runner import run_attempt
from mqtune.trainable.process.session import Session, StopTrial, file_of
from mqtune.trainable.spec import Loaded

if TYPE_CHECKING:
    from mqtune.trainable.process.saver import Savable

_NO_PIPES: Final = (-1, -1)


class ReusableSession(Session):
    """The session of one of several attempts of a process; until ``connect`` nothing can be sent, and a stop signal waits."""

    def __init__(self, message: StartMessage) -> None:
        super().__init__(message, _NO_PIPES)
        #: Threads that earlier attempts have left.
        self._left_threads = frozenset(threading.enumerate()) - {threading.main_thread()}
        self._busy = True

    def connect(self, pipes: Sequence[int]) -> None:
        """Take the pipes; raise StopTrial if the trial was told meanwhile that it should end."""
        self._use(pipes)
        self._busy = False
        if self._signalled:
            self._handle_signal()

    def close(self) -> None:
        """Close the pipes; threads that still use this session are told to stop."""
        # Nothing may be written to, or read from, files that get the descriptors' numbers next.
        with self._lock, self._hearing:
            self._told = "stop"
            for fd, file in ((self._pipe, self._pipe_file), (self._control, self._control_file)):
                # User code may have closed it, and have another file of that number.
                if file_of(fd) == file:
                    os.close(fd)
            self._use(_NO_PIPES)

    def report(
        self,
        metrics: Metrics,
        checkpoint: Savable | None = None,
        counters: Mapping[str, object] | None = None,
        *,
        is_question: bool = False,
    ) -> None:
        """Send one report; see ``Session.report``."""
        self._check_caller("report")
        super().report(metrics, checkpoint, counters, is_question=is_question)

    def save(self, checkpoint: Savable, counters: Mapping[str, object] | None = None) -> CheckpointId:
        """Save a checkpoint without a report; see ``Session.save``."""
        self._check_caller("save")
        return super().save(checkpoint, counters)

    def _check_caller(self, what: str) -> None:
        if self._left_threads and threading.current_thread() in self._left_threads:
            raise RuntimeError(
                f"{what}: this thread was left by an earlier trial of its process; end it with its trial"
            )
        if self._pipe < 0 and not self._told:
            raise RuntimeError(f"{what}: nothing can be sent before reset_config has returned True")


class _Life:
    """One instance of a class, from its setup to its cleanup.

    Attributes:
        stays: whether the process may wait for another attempt.
    """

    _session: ReusableSession
    _instance: Trainable
    _steps: Steps

    def __init__(self, channel: Channel, load: Callable[[], Loaded], code_root: Path) -> None:
        self.stays = False
        self._channel = channel
        self._load = load
        self._code_root = code_root
        #: The user's code that was imported, with its times.
        self._files: dict[str, int] = {}

    def begin(self, message: StartMessage, pipes: Sequence[int]) -> int:
        """Run the first attempt, and return the code to exit with."""
        self._open_session(message)
        self._session.connect(pipes)
        return run_attempt(self._load, self._session, self._set_up_and_run)

    def go_on(self) -> int:
        """Wait for another attempt and run it, or leave it to a fresh process; return the code to exit with."""
        self._session.close()
        flush_native()
        self._channel.send({"is": "kept"})
        received = self._channel.receive()
        if received is not None:
            message, pipes = cast("StartMessage", received[0]), received[1]
            take_over_output(message["stdout"], message["stderr"])
            self._open_session(message)
            self._steps = Steps(self._instance, self._session)
            if self._is_reset():
                self._channel.send({"is": "taken"})
                connect = functools.partial(self._session.connect, pipes)
                return run_attempt(lambda: type(self._instance), self._session, lambda *_: self._run(connect))
        self._leave()
        return 0

    def _open_session(self, message: StartMessage) -> None:
        self._session = reporting.current = ReusableSession(message)
        signal.signal(STOP_SIGNAL, self._session.tell)

    def _leave(self) -> None:
        """Call cleanup; an error in it is only printed, since the last attempt has ended."""
        self.stays = False
        try:
            self._steps.clean_up(None)
        except BaseException:  # noqa: BLE001 - whatever user code raises
            sys.stderr.write(traceback.format_exc())
        flush()

    def _set_up_and_run(self, loaded: Loaded, current: Session) -> Ending:
        assert isinstance(loaded, type)  # noqa: S101 - nothing else is reused
        self._files = dict(unfrozen(loaded_files(self._code_root)))
        self._instance = loaded()
        self._steps = Steps(self._instance, current)
        return self._run(self._steps.set_up)

    def _is_reset(self) -> bool:
        """Whether the instance has taken another config; if not, the reason is printed to the new attempt's errors."""
        name = type(self._instance).__name__
        if not are_current(self._files.items()):
            why = "its code has changed"
        else:
            try:
                self._session.enter()
                answer = self._steps.reset()
            except BaseException:  # noqa: BLE001 - whatever user code raises, a fresh process can take the trial
                why = f"{name}.reset_config raised:\n{traceback.format_exc().rstrip()}"
            else:
                if answer is True:
                    return True
                why = f"{name}.reset_config returned {answer!r}"
        sys.stderr.write(f"a fresh process takes this trial, not that of the trial before: {why}\n")
        return False

    def _run(self, begin: Callable[[], None]) -> Ending:
        """Run an attempt to its end; call cleanup unless the process stays."""
        self.stays = False
        self._session.defer_pause = True
        try:
            begin()
            self._steps.run()
        except BaseException as error:
            self._finish(error)
            raise
        self._finish(None)
        return Ending(AttemptEnd.COMPLETED)

    def _finish(self, error: BaseException | None) -> None:
        # From here on a late stop changes nothing.
        signal.signal(STOP_SIGNAL, signal.SIG_IGN)
        is_well = self._steps.is_whole and (error is None or isinstance(error, StopTrial))
        self.stays = is_well and self._may_stay()
        if not self.stays:
            self._steps.clean_up(error)

    def _may_stay(self) -> bool:
        """Whether the attempt has left no threads and, as the zygote sees it, no processes."""
        mine = threading.main_thread()
        at_work = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not mine]
        if at_work:
            return _refused(f"threads that are no daemons: {', '.join(at_work)}")
        for path, mtime in unfrozen(loaded_files(self._code_root)):
            self._files.setdefault(path, mtime)
        self._channel.send({"is": "done"})
        received = self._channel.receive()
        if received is None:
            return False
        return bool(received[0]["keep"]) or _refused("processes")


def _refused(left: str) -> bool:
    sys.stderr.write(f"this process can't be used for another trial: it still has {left}\n")
    return False


def run_attempts(
    channel: Channel, load: Callable[[], Loaded], code_root: Path, message: StartMessage, pipes: Sequence[int]
) -> NoReturn:
    """Run an attempt, then each that the zygote gives to this process while it may stay, and exit."""
    code = 1
    try:
        take_over_output(message["stdout"], message["stderr"])
        life = _Life(channel, load, code_root)
        code = life.begin(message, pipes)
        while life.stays:
            code = life.go_on()
    finally:
        os._exit(code)
