"""A process that runs several attempts: of a function, or with one instance of a class, which gets another config for each.

At the end of an attempt it asks the zygote whether it may stay (``done``): with a function at once after the worker was told of that
end, so that the next attempt is prepared meanwhile; with a class before that, as a cleanup may fail, and then it says that the attempt
is over (``kept``). Next comes a start message, or the end of the channel. It answers a start message with ``taken``, or
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

from mqtune.core.trial import AttemptEnd, CheckpointId, Metrics
from mqtune.trainable import reporting
from mqtune.trainable.class_ import Steps, Trainable
from mqtune.trainable.frozen_code import are_current, loaded_files, unfrozen
from mqtune.trainable.function import run_function
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.output import flush, flush_native, take_over_output
from mqtune.trainable.process.protocol import STOP_SIGNAL, Ending, StartMessage
from mqtune.trainable.process.runner import Run, run_attempt, seed_generators
from mqtune.trainable.process.session import Session, StopTrial, file_of
from mqtune.trainable.process.surroundings import Surroundings
from mqtune.trainable.spec import Function, Loaded

if TYPE_CHECKING:
    from mqtune.trainable.process.saver import Savable

_NO_PIPES: Final = (-1, -1)
#: The file of the code that imports modules, in a traceback.
_IMPORTS: Final = "<frozen importlib._bootstrap>"


class ReusableSession(Session):
    """The session of one of several attempts of a process; until ``connect`` nothing can be sent, and until ``listen`` a stop signal waits."""

    def __init__(self, message: StartMessage) -> None:
        super().__init__(message, _NO_PIPES)
        #: Threads that earlier attempts have left.
        self._left_threads = frozenset(threading.enumerate()) - {threading.main_thread()}
        #: Whether a StopTrial has left a module half imported.
        self.broke_import = False
        self._busy = True

    def connect(self, pipes: Sequence[int], *, listens: bool = False) -> None:
        """Take the pipes; a stop signal waits until ``listen``, unless the session *listens* from now on."""
        self._use(pipes)
        self._busy = not listens

    def listen(self) -> None:
        """Have a stop signal raise StopTrial from now on; raise it for one that came before."""
        # It may have come before this session had a handler: what it was sent for is in the pipe.
        self._read_control()
        self._busy = False
        if self._signalled:
            self._handle_signal()
        self._raise_if_told()

    def close(self) -> None:
        """Close the pipes, unless they are closed; threads that still use this session are told to stop."""
        # Nothing may be written to, or read from, files that get the descriptors' numbers next.
        with self._lock, self._hearing:
            self._told = "stop"
            for fd, file in ((self._pipe, self._pipe_file), (self._control, self._control_file)):
                # User code may have closed it, and have another file of that number.
                if fd >= 0 and file_of(fd) == file:
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

    def _raise_if_told(self) -> None:
        try:
            super()._raise_if_told()
        except StopTrial:
            self.broke_import = self.broke_import or _is_importing()
            raise

    def _check_caller(self, what: str) -> None:
        if self._left_threads and threading.current_thread() in self._left_threads:
            raise RuntimeError(
                f"{what}: this thread was left by an earlier trial of its process; end it with its trial"
            )
        if self._pipe < 0 and not self._told:
            raise RuntimeError(f"{what}: nothing can be sent before reset_config has returned True")


def _is_importing() -> bool:
    """Whether an import is under way below the caller."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename == _IMPORTS:
            return True
    return False


class _Instance:
    """An instance of a class, which gets another config for each attempt."""

    _steps: Steps
    _session: ReusableSession

    def __init__(self, trainable: type[Trainable], session: ReusableSession) -> None:
        self._name = trainable.__name__
        self._instance = trainable()
        self._use(session)

    def begin(self) -> None:
        """Prepare for the first attempt."""
        self._steps.set_up()

    def reset(self, session: ReusableSession) -> str:
        """Prepare for another attempt, or return why that can't be; nothing can be reported yet."""
        self._use(session)
        try:
            session.enter()
            answer = self._steps.reset()
        except BaseException:  # noqa: BLE001 - whatever user code raises, a fresh process can take the trial
            return f"{self._name}.reset_config raised:\n{traceback.format_exc().rstrip()}"
        return "" if answer is True else f"{self._name}.reset_config returned {answer!r}"

    def run(self) -> None:
        """Run an attempt to its end."""
        self._steps.run()

    def left(self) -> str:
        """Return what the attempt has left that keeps the process from another one; empty for nothing."""
        if not self._steps.is_whole:
            return "it was told to end in the middle of a step"
        mine = threading.main_thread()
        at_work = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not mine]
        return f"it has left the threads {', '.join(at_work)}" if at_work else ""

    def clean_up(self, error: BaseException | None) -> None:
        """Clean up behind the last attempt, which has raised *error*; see ``Steps.clean_up``."""
        self._steps.clean_up(error)

    def _use(self, session: ReusableSession) -> None:
        session.defer_pause = True
        self._session, self._steps = session, Steps(self._instance, session)


class _Calls:
    """A function, which is called for each attempt."""

    def __init__(self, function: Function, session: ReusableSession) -> None:
        self._function = function
        self._session = session
        self._surroundings = Surroundings()

    def begin(self) -> None:
        """Prepare for the first attempt: nothing is left to do."""

    def reset(self, session: ReusableSession) -> str:
        """Prepare for another attempt; nothing keeps a function from it."""
        self._session = session
        session.enter()
        self._surroundings.begin()
        # An earlier trial may have seeded them.
        seed_generators()
        return ""

    def run(self) -> None:
        """Run an attempt to its end."""
        run_function(self._function, self._session)

    def left(self) -> str:
        """Put back what the attempt has changed, and return what it has left that keeps the process from another one; empty for nothing."""
        try:
            found = self._surroundings.put_back()
        except Exception as error:  # noqa: BLE001 - a trial may have replaced what this calls
            found = f"what it has left can't be seen: {type(error).__name__}: {error}"
        broken = "it was stopped in the middle of an import" if self._session.broke_import else ""
        return "; ".join(filter(None, (broken, found)))

    def clean_up(self, _error: BaseException | None) -> None:
        """Have whatever finalizers do done in the attempt that it belongs to."""
        self._surroundings.collect()


class _Life:
    """One process, from its first attempt to its last.

    Attributes:
        stays: whether the process may wait for another attempt.
    """

    _session: ReusableSession
    _runs: _Instance | _Calls

    def __init__(self, channel: Channel, load: Callable[[], Loaded], code_root: Path) -> None:
        self.stays = self._is_well = False
        self._channel = channel
        self._load = load
        self._code_root = code_root
        #: The user's code that was imported, with its times, and how many modules there were then.
        self._files: dict[str, int] = {}
        self._modules = 0

    def begin(self, message: StartMessage, pipes: Sequence[int]) -> int:
        """Run the first attempt, and return the code to exit with."""
        self._open_session(message)
        # The signal is blocked until now.
        self._session.connect(pipes, listens=True)
        return self._attempt(self._set_up_and_run)

    def _attempt(self, run: Run) -> int:
        """Run an attempt, and find out whether the process may stay; return the code to exit with."""
        self.stays = self._is_well = False
        code = run_attempt(self._load, self._session, run)
        if self._is_well and not code and isinstance(self._runs, _Calls):
            self._decide()
        return code

    def go_on(self) -> int:
        """Wait for another attempt and run it, or leave it to a fresh process; return the code to exit with."""
        self._session.close()
        flush_native()
        if isinstance(self._runs, _Instance):
            self._channel.send({"is": "kept"})
        received = self._channel.receive()
        if received is not None:
            message, pipes = cast("StartMessage", received[0]), received[1]
            take_over_output(message["stdout"], message["stderr"])
            self._open_session(message)
            if self._is_reset():
                self._channel.send({"is": "taken"})
                self._session.connect(pipes)
                return self._attempt(lambda *_: self._run(self._session.listen))
        self._leave()
        return 0

    def _open_session(self, message: StartMessage) -> None:
        self._session = reporting.current = ReusableSession(message)
        signal.signal(STOP_SIGNAL, self._session.tell)

    def _leave(self) -> None:
        """Call cleanup; an error in it is only printed, since the last attempt has ended."""
        self.stays = False
        try:
            self._runs.clean_up(None)
        except BaseException:  # noqa: BLE001 - whatever user code raises
            sys.stderr.write(traceback.format_exc())
        flush()

    def _set_up_and_run(self, loaded: Loaded, current: Session) -> Ending:
        assert not isinstance(loaded, Path)  # noqa: S101 - scripts are not reused
        self._note_files()
        self._load = lambda: loaded
        session = self._session
        self._runs = _Instance(loaded, session) if isinstance(loaded, type) else _Calls(loaded, session)
        return self._run(self._runs.begin)

    def _note_files(self) -> None:
        """Take in the user's code that was imported since the last time."""
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            for path, mtime in unfrozen(loaded_files(self._code_root)):
                self._files.setdefault(path, mtime)

    def _is_reset(self) -> bool:
        """Whether this process can run another attempt; if not, the reason is printed to that one's errors."""
        is_current = are_current(self._files.items())
        why = self._runs.reset(self._session) if is_current else "its code has changed"
        if why:
            sys.stderr.write(f"a fresh process takes this trial, not that of the trial before: {why}\n")
        return not why

    def _run(self, begin: Callable[[], None]) -> Ending:
        """Run an attempt to its end; call cleanup unless the process stays."""
        try:
            begin()
            self._runs.run()
        except BaseException as error:
            self._finish(error)
            raise
        self._finish(None)
        return Ending(AttemptEnd.COMPLETED)

    def _finish(self, error: BaseException | None) -> None:
        # From here on a late stop changes nothing.
        signal.signal(STOP_SIGNAL, signal.SIG_IGN)
        self._is_well = _is_well(error)
        if self._is_well:
            _release(error)
            if isinstance(self._runs, _Instance):
                self._decide()
        if not self.stays:
            self._runs.clean_up(error)

    def _decide(self) -> None:
        """Find out whether the process may stay: what the attempt has left, and, as the zygote sees it, which processes."""
        left = self._runs.left()
        self._note_files()
        is_over = isinstance(self._runs, _Calls)
        if is_over:
            # The worker sees that nothing more comes while the zygote looks.
            self._session.close()
        self._channel.send({"is": "done", "left": left, "is_over": is_over})
        received = self._channel.receive()
        if received is not None and received[0]["left"]:
            sys.stderr.write(f"this process can't be used for another trial: {received[0]['left']}\n")
        self.stays = received is not None and not received[0]["left"]


def _release(error: BaseException | None) -> None:
    """Release what the frames that an error has come through hold: files, and tensors on a device."""
    while error is not None:
        error.__traceback__ = None
        error.__cause__, error.__context__, error = None, None, error.__context__


def _is_well(error: BaseException | None) -> bool:
    return error is None or isinstance(error, StopTrial) or (isinstance(error, SystemExit) and not error.code)


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
