"""Reuse in a trial's process: one instance of the class runs one attempt after another.

At the end of each attempt the process asks the zygote whether it may stay (message ``done``). When everything of the
attempt is over, it sends ``kept``. Then it receives a start message, or the channel is closed. It answers a start
message with ``taken``, or exits without an answer, and a fresh process runs the trial.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from mqtune.core.trial import AttemptEnd, CheckpointId, Metrics
from mqtune.trainable import (
    STOP_SIGNAL,
    ImportWatch,
    Life,
    Session,
    StartMessage,
    Steps,
    StopTrial,
    Trainable,
    TrainableEnd,
    are_current,
    file_of,
    flush,
    flush_native,
    loaded_files,
    release_frames,
    run_attempt,
    unfrozen,
)

if TYPE_CHECKING:
    from mqtune.trainable import Savable

_NO_PIPES: Final = (-1, -1)


class KeptSession(Session):
    """A session of a process that may run several attempts.

    Args:
        message: the start message.
        fds: the pipes. Without them nothing can be sent until ``connect``, and a stop signal waits until ``listen``.
    """

    def __init__(self, message: StartMessage, fds: Sequence[int] | None = None) -> None:
        #: Threads that earlier attempts of the process have left.
        self._left_threads = frozenset(threading.enumerate()) - {threading.main_thread()}
        super().__init__(message, _NO_PIPES if fds is None else fds)
        self._busy = fds is None

    def listen(self) -> None:
        """Have a stop signal raise StopTrial from now on, and raise it for an earlier signal."""
        # It may have come before this session had a handler: the order is in the pipe.
        self._read_control()
        self._busy = False
        if self._signalled:
            self._handle_signal()
        self._raise_if_ordered()

    def close(self) -> None:
        """Close the pipes, unless they are closed.

        Threads that still use this session get StopTrial.
        """
        # Nothing may be written to, or read from, files that get the descriptors' numbers next.
        with self._lock, self._hearing:
            self._order = "stop"
            for fd, file in ((self._pipe, self._pipe_file), (self._control, self._control_file)):
                # User code may have closed it, and have another file of that number.
                if fd >= 0 and file_of(fd) == file:
                    os.close(fd)
            self.connect(_NO_PIPES)

    def report(
        self,
        metrics: Metrics,
        checkpoint: Savable | None = None,
        counters: Mapping[str, object] | None = None,
        *,
        is_question: bool = False,
    ) -> None:
        """Send one report."""
        self._check_caller("report")
        super().report(metrics, checkpoint, counters, is_question=is_question)

    def save(self, checkpoint: Savable, counters: Mapping[str, object] | None = None) -> CheckpointId:
        """Save a checkpoint without a report."""
        self._check_caller("save")
        return super().save(checkpoint, counters)

    def _check_caller(self, call: str) -> None:
        if threading.current_thread() in self._left_threads:
            raise RuntimeError(
                f"{call}: this thread was left by an earlier trial of its process; end it with its trial"
            )
        if self._pipe < 0 and not self._order:
            raise RuntimeError(f"{call}: nothing can be sent before reset_config has returned True")

    def _read_control(self) -> None:
        if self._control >= 0:
            super()._read_control()


class KeptLife(Life):
    """One process, from its first attempt to its last."""

    session: KeptSession
    _instance: Trainable
    _steps: Steps
    #: Whether it waits for another attempt.
    _stays = False

    def attempt(self, message: StartMessage, pipes: Sequence[int]) -> int:
        """Run one attempt after the other; return the code to exit with."""
        #: The user's code that was imported, with its times, and how many modules there were then.
        self._files: dict[str, int] = {}
        self._modules = 0
        self.open(KeptSession(message, pipes))
        code = self._run_and_check(self.watch, self.begin)
        while self._stays:
            if not self._take_next():
                self._clean_up()
                return 0
            watch = ImportWatch()
            watch.begin()
            code = self._run_and_check(watch, lambda: self._run_to_end(self.session.listen))
        return code

    def _run_and_check(self, watch: ImportWatch, run: Callable[[], TrainableEnd]) -> int:
        """Run an attempt, and find out whether the process may stay; return the code to exit with."""
        self._stays = False
        code = run_attempt(self.session, watch, run)
        if code and self._stays:
            self._clean_up()
        return code

    def run_class(self, trainable: type[Trainable]) -> TrainableEnd:
        """Make the instance, and run the first attempt of it."""
        self._note_files()
        self._instance = trainable()
        self._steps = Steps(self._instance, self.session)
        return self._run_to_end(self._steps.set_up)

    def _run_to_end(self, begin: Callable[[], None]) -> TrainableEnd:
        """Run an attempt of the instance to its end; clean up, unless the process stays."""
        try:
            begin()
            self._steps.run()
        except BaseException as error:
            self._finish(error)
            raise
        self._finish(None)
        return TrainableEnd(AttemptEnd.COMPLETED)

    def _finish(self, error: BaseException | None) -> None:
        # From here on a late stop changes nothing.
        signal.signal(STOP_SIGNAL, signal.SIG_IGN)
        if error is None or isinstance(error, StopTrial) or (isinstance(error, SystemExit) and not error.code):
            release_frames(error)
            self._ask_to_stay()
        if not self._stays:
            self._steps.clean_up(error)

    def _ask_to_stay(self) -> None:
        """Tell the zygote the attempt's remains, and ask whether the process may stay."""
        self._note_files()
        self.channel.send({"is": "done", "left": self._remains()})
        received = self.channel.receive()
        if received is not None and received[0]["left"]:
            sys.stderr.write(f"this process can't be used for another trial: {received[0]['left']}\n")
        self._stays = received is not None and not received[0]["left"]

    def _remains(self) -> str:
        """Return what keeps the process from another attempt (a step was cut off, threads), or ""."""
        if not self._steps.is_whole:
            return "it was told to end in the middle of a step"
        mine = threading.main_thread()
        at_work = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not mine]
        return f"it has left the threads {', '.join(at_work)}" if at_work else ""

    def _take_next(self) -> bool:
        """Wait for another attempt and prepare for it.

        Return False if none comes, or if a fresh process must run it.
        """
        self.session.close()
        flush_native()
        self.channel.send({"is": "kept"})
        received = self.channel.receive()
        if received is None:
            return False
        self.open(KeptSession(cast("StartMessage", received[0])))
        why = self._reset() if are_current(self._files.items()) else "its code has changed"
        if why:
            sys.stderr.write(f"a fresh process runs this trial, not the process of the previous trial: {why}\n")
            return False
        self.channel.send({"is": "taken"})
        self.session.connect(received[1])
        return True

    def _reset(self) -> str:
        """Call ``reset_config`` for the new attempt. Return why the process can't run it, or ""."""
        for part in self.parts:
            part.enter()
            part.begin(self.session.message)
        instance, config = self._instance, self.session.message["config"]
        self._steps = Steps(instance, self.session)
        name = type(instance).__name__
        try:
            self.session.enter()
            instance.trial_id, instance.folder = self.session.message["trial"], self.session.ensure_folder()
            instance.training_iteration, instance.time_total_s = 0, 0.0
            answer = instance.reset_config(config)
            instance.config = config
        except BaseException:  # noqa: BLE001 - whatever user code raises, a fresh process can take the trial
            return f"{name}.reset_config raised:\n{traceback.format_exc().rstrip()}"
        return "" if answer is True else f"{name}.reset_config returned {answer!r}"

    def _clean_up(self) -> None:
        """Clean up after the last attempt.

        An error in that is only printed, since the attempt has ended.
        """
        self._stays = False
        try:
            self._steps.clean_up(None)
        except BaseException:  # noqa: BLE001 - whatever user code raises
            sys.stderr.write(traceback.format_exc())
        flush()

    def _note_files(self) -> None:
        """Record the files of user code that was imported since the last call."""
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            for path, mtime in unfrozen(loaded_files(self.program.code_root)):
                self._files.setdefault(path, mtime)
