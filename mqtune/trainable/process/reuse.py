"""A process that runs several attempts, with one instance of a class, which gets another config for each.

Before it tells the worker that an attempt has ended, it asks the zygote whether it may stay (``done``); afterwards it says
that it waits (``kept``). Next comes a start message, or the end of the channel. It answers a start message with ``taken``, or
leaves the trial to a fresh process by exiting without an answer.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, cast

from mqtune.core.trial import AttemptEnd, CheckpointId, Config, Metrics
from mqtune.trainable import reporting
from mqtune.trainable.class_ import Steps, Trainable
from mqtune.trainable.frozen_code import are_current, loaded_files, unfrozen
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.protocol import STOP_SIGNAL, Ending, Message, StartMessage
from mqtune.trainable.process.runner import flush, flush_native, run_attempt, take_over_output
from mqtune.trainable.process.session import Session, StopTrial, file_of
from mqtune.trainable.spec import Loaded

if TYPE_CHECKING:
    from mqtune.trainable.process.saver import Savable

__all__ = ["ReusableSession", "run_attempts"]

_NO_PIPES: Final = (-1, -1)


class ReusableSession(Session):
    """The session of one of several attempts of a process."""

    def __init__(self) -> None:
        super().__init__()
        #: Threads that earlier attempts have left.
        self._strangers = frozenset(threading.enumerate()) - {threading.main_thread()}

    def announce(self, message: StartMessage) -> None:
        """Begin an attempt without its pipes; until ``connect`` nothing can be sent, and a stop signal waits."""
        self.open(message, _NO_PIPES)
        self._busy = True

    def connect(self, pipes: Sequence[int]) -> None:
        """Take the pipes after ``announce``.

        Raises:
            StopTrial: the trial was told meanwhile that it should end.
        """
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
    ) -> None:
        """Send one report; see ``Session.report``."""
        self._check_caller("report")
        super().report(metrics, checkpoint, counters)

    def save(self, checkpoint: Savable, counters: Mapping[str, object] | None = None) -> CheckpointId:
        """Save a checkpoint without a report; see ``Session.save``."""
        self._check_caller("save")
        return super().save(checkpoint, counters)

    def _check_caller(self, what: str) -> None:
        if self._strangers and threading.current_thread() in self._strangers:
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

    def __init__(self, channel: Channel, load: Callable[[], Loaded], code_root: Path) -> None:
        self.stays = False
        self._channel = channel
        self._load = load
        self._code_root = code_root
        #: The user's code that was imported, with its times.
        self._files: dict[str, int] = {}
        self._instance: Trainable | None = None
        self._steps: Steps | None = None
        self._session = ReusableSession()

    def begin(self, message: StartMessage, pipes: Sequence[int]) -> int:
        """Run the first attempt, and return the code to exit with."""
        reporting.current = self._session
        # The signal is still blocked, until the trainable is called.
        signal.signal(STOP_SIGNAL, self._session.tell)
        self._session.open(message, pipes)
        return run_attempt(self._load, message, self._session, self._set_up_and_run)

    def go_on(self, message: StartMessage, pipes: Sequence[int]) -> int | None:
        """Run another attempt, and return the code to exit with; None if it is left to a fresh process."""
        instance = self._instance
        assert instance is not None  # noqa: S101 - it was set up in the first attempt
        self._session = current = reporting.current = ReusableSession()
        current.announce(message)
        signal.signal(STOP_SIGNAL, current.tell)
        self._steps = Steps(instance, current)
        if not self._is_reset(self._steps, message["config"]):
            return None
        self._channel.send({"is": "taken"})
        return run_attempt(lambda: type(instance), message, current, lambda *_: self._connect_and_run(pipes))

    def wait(self) -> tuple[Message, list[int]] | None:
        """Release the attempt that has ended, and wait for the next start message; None when the process should exit."""
        self._session.close()
        flush_native()
        self._channel.send({"is": "kept"})
        return self._channel.receive()

    def leave(self) -> None:
        """Call cleanup; an error in it is only printed, since the last attempt has ended."""
        assert self._steps is not None  # noqa: S101 - as above
        try:
            self._steps.clean_up(None)
        except BaseException:  # noqa: BLE001 - whatever user code raises
            sys.stderr.write(traceback.format_exc())
        flush()

    def _set_up_and_run(self, loaded: Loaded, message: StartMessage, current: Session) -> Ending:
        assert isinstance(loaded, type)  # noqa: S101 - nothing else is reused
        self._files = dict(unfrozen(loaded_files(self._code_root)))
        self._instance = loaded()
        self._steps = steps = Steps(self._instance, current)
        return self._run(steps, lambda: steps.set_up(message["config"]))

    def _connect_and_run(self, pipes: Sequence[int]) -> Ending:
        assert self._steps is not None  # noqa: S101 - just made
        return self._run(self._steps, lambda: self._session.connect(pipes))

    def _is_reset(self, steps: Steps, config: Config) -> bool:
        """Whether the instance has taken another config; if not, the reason is printed to the new attempt's errors."""
        name = type(self._instance).__name__
        if not are_current(self._files.items()):
            why = "its code has changed"
        else:
            try:
                self._session.enter()
                answer = steps.reset(config)
            except BaseException:  # noqa: BLE001 - whatever user code raises, a fresh process can take the trial
                why = f"{name}.reset_config raised:\n{traceback.format_exc().rstrip()}"
            else:
                if answer is True:
                    return True
                why = f"{name}.reset_config returned {answer!r}"
        sys.stderr.write(f"a fresh process takes this trial, not that of the trial before: {why}\n")
        return False

    def _run(self, steps: Steps, begin: Callable[[], None]) -> Ending:
        """Run an attempt to its end; call cleanup unless the process stays."""
        self.stays = False
        self._session.defer_pause = True
        try:
            begin()
            steps.run()
        except BaseException as error:
            self._finish(steps, error)
            raise
        self._finish(steps, None)
        return Ending(AttemptEnd.COMPLETED)

    def _finish(self, steps: Steps, error: BaseException | None) -> None:
        # From here on a late stop changes nothing.
        signal.signal(STOP_SIGNAL, signal.SIG_IGN)
        is_well = steps.is_whole and (error is None or isinstance(error, StopTrial))
        self.stays = is_well and self._may_stay()
        if not self.stays:
            steps.clean_up(error)

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
        code = _run_all(_Life(channel, load, code_root), message, pipes)
    finally:
        os._exit(code)


def _run_all(life: _Life, message: StartMessage, pipes: Sequence[int]) -> int:
    """Return the code to exit with."""
    code = life.begin(message, pipes)
    while life.stays:
        received = life.wait()
        went_on = None
        if received is not None:
            take_over_output(received[0]["stdout"], received[0]["stderr"])
            went_on = life.go_on(cast("StartMessage", received[0]), received[1])
        if went_on is None:
            life.leave()
            return 0
        code = went_on
    return code
