"""The life of a trial's process: it executes the program, waits for a start message, runs that attempt, and exits.

The program is executed before the start message comes, so that no slot waits for it; or afterwards, where the program takes a device
or a port, which the trial before may still have.

With ``Process(reuse=True)`` the process of a class may run further attempts. Within each attempt it asks the zygote whether it may
stay (``done``). When all of the attempt is over it says so (``kept``). Next comes a start message, or the end of the channel. It
answers a start message with ``taken``, or leaves the trial to a fresh process by exiting without an answer.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, cast

from mqtune.core.trial import AttemptEnd
from mqtune.trainable import reporting
from mqtune.trainable.frozen_code import are_current, loaded_files, unfrozen
from mqtune.trainable.process import working_folder
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.exits import forget_exit_handlers, leave, release_frames
from mqtune.trainable.process.late_imports import ImportWatch
from mqtune.trainable.process.output import CapturedOutput, flush, flush_native, take_over_output, write_output
from mqtune.trainable.process.own_copies import protect_originals
from mqtune.trainable.process.program import Program, seed_generators
from mqtune.trainable.process.protocol import STOP_SIGNAL, Ending, StartMessage
from mqtune.trainable.process.runner import run_attempt
from mqtune.trainable.process.session import Session, StopTrial
from mqtune.trainable.spec import Loaded

if TYPE_CHECKING:
    from mqtune.trainable.class_ import Instance


class Executed(NamedTuple):
    """A program that an importer has executed once for all trials, and its output meanwhile."""

    trainable: Loaded
    printed: Sequence[bytes]


class Preparation:
    """The part of a process's life before its start message: the working folder, and the program's execution.

    Args:
        program: the program.
        place: the folder of the attempt, which is made here; None if trials share a folder.
        executed: what the importer has executed; None if this process executes the program.
    """

    def __init__(self, program: Program, place: Path | None, executed: Executed | None) -> None:
        self._program = program
        self._trainable = None if executed is None else executed.trainable
        self._printed: Sequence[bytes] = () if executed is None else executed.printed
        self._error: BaseException | None = None
        self._place = place
        self.watch = ImportWatch()
        if place is not None:
            try:
                enter_place(place, program)
            except OSError as error:
                self._error = error
        if executed is not None:
            self.watch.begin()

    def load_ahead(self) -> None:
        """Execute the program now; its output and its error belong to the coming attempt."""
        if self._trainable is not None or self._error is not None:
            return
        captured = CapturedOutput()
        try:
            self._trainable = self._load()
        except BaseException as error:  # noqa: BLE001 - user code runs, and its error is the attempt's
            self._error = error
        self._printed = captured.end()

    def finish(self) -> Loaded:
        """Return the trainable, for an attempt that has its output files; raise the error of the program."""
        if self._printed:
            write_output(self._printed)
        if self._error is not None:
            raise self._error
        if self._trainable is None:
            self._trainable = self._load()
        # An import has used the seed of the experiment; each trial has numbers of its own.
        seed_generators()
        return self._trainable

    def _load(self) -> Loaded:
        self.watch.begin()
        return self._program.load()


def enter_place(place: Path, program: Program) -> None:
    """Make an attempt's working folder, and change to it."""
    root = program.work_root
    place.parent.mkdir(parents=True, exist_ok=True)
    # Below the worker's log folder are the places themselves.
    os.chdir(working_folder.make(program.home, place, skip=[] if root is None else [root.parents[2]]))
    os.environ["PWD"] = os.getcwd()
    protect_originals(place, program.home)


class Life:
    """One process, from its first attempt to its last."""

    session: Session
    _instance: Instance

    def __init__(self, channel: Channel, program: Program, preparation: Preparation, *, reuse: bool) -> None:
        self._channel = channel
        self._program = program
        self._preparation = preparation
        self._reuse = reuse
        #: Whether it waits for another attempt.
        self._stays = False
        #: The user's code that was imported, with its times, and how many modules there were then.
        self._files: dict[str, int] = {}
        self._modules = 0

    def run(self, message: StartMessage, pipes: Sequence[int]) -> int:
        """Run the first attempt and those that follow; return the code to exit with."""
        # The signal is blocked until now.
        self._open(Session(message, pipes))
        code = self._attempt(self._preparation.watch, self.begin)
        while self._stays:
            if not self._take_next():
                self._clean_up()
                return 0
            watch = ImportWatch()
            watch.begin()
            code = self._attempt(watch, lambda: self._see_through(self.session.listen))
        return code

    def _open(self, current: Session) -> None:
        take_over_output(current.message["stdout"], current.message["stderr"])
        self.session = reporting.current = current
        signal.signal(STOP_SIGNAL, current.tell)

    def _attempt(self, watch: ImportWatch, run: Callable[[], Ending]) -> int:
        """Run an attempt, and find out whether the process may stay; return the code to exit with."""
        self._stays = False
        code = run_attempt(self.session, watch, run)
        if code and self._stays:
            self._clean_up()
        return code

    def begin(self) -> Ending:
        current = self.session
        current.enter()
        loaded = self._preparation.finish()
        # Only the trials that need one import it.
        if isinstance(loaded, Path):
            from mqtune.trainable.script import ScriptRun  # noqa: PLC0415

            return ScriptRun(loaded, current, self._program).run()
        if isinstance(loaded, type):
            from mqtune.trainable.class_ import Instance  # noqa: PLC0415

            if self._reuse:
                self._note_files()
            self._instance = Instance(loaded, current)
            return self._see_through(self._instance.begin)
        from mqtune.trainable.function import run_function  # noqa: PLC0415

        try:
            run_function(loaded, current)
        finally:
            # From here on a late stop changes nothing.
            signal.signal(STOP_SIGNAL, signal.SIG_IGN)
        return Ending(AttemptEnd.COMPLETED)

    def _see_through(self, begin: Callable[[], None]) -> Ending:
        """Run an attempt of an instance to its end; clean up, unless the process stays."""
        try:
            begin()
            ending = self._instance.run()
        except BaseException as error:
            self._finish(error)
            raise
        self._finish(None)
        return ending

    def _finish(self, error: BaseException | None) -> None:
        # From here on a late stop changes nothing.
        signal.signal(STOP_SIGNAL, signal.SIG_IGN)
        if self._reuse and _is_well(error):
            release_frames(error)
            self._ask()
        if not self._stays:
            self._instance.clean_up(error)

    def _ask(self) -> None:
        """Find out whether the process may stay: what the attempt has left, and, as the zygote sees it, which processes."""
        self._note_files()
        self._channel.send({"is": "done", "left": self._instance.left()})
        received = self._channel.receive()
        if received is not None and received[0]["left"]:
            sys.stderr.write(f"this process can't be used for another trial: {received[0]['left']}\n")
        self._stays = received is not None and not received[0]["left"]

    def _take_next(self) -> bool:
        """Wait for another attempt and prepare for it; return False to leave it to a fresh process, or when none comes."""
        self.session.close()
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
        self.session.connect(pipes)
        return True

    def _is_reset(self) -> bool:
        """Whether this process can run another attempt; if not, the reason is printed to that one's errors."""
        if not are_current(self._files.items()):
            why = "its code has changed"
        else:
            place = self.session.message["place"]
            if place:
                enter_place(Path(place), self._program)
            why = self._instance.reset(self.session)
        if why:
            sys.stderr.write(f"a fresh process takes this trial, not that of the trial before: {why}\n")
        return not why

    def _clean_up(self) -> None:
        """Clean up behind the last attempt; an error in that is only printed, since the attempt has ended."""
        self._stays = False
        try:
            self._instance.clean_up(None)
        except BaseException:  # noqa: BLE001 - whatever user code raises
            sys.stderr.write(traceback.format_exc())
        flush()

    def _note_files(self) -> None:
        """Note the user's code that was imported since the last time."""
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            for path, mtime in unfrozen(loaded_files(self._program.code_root)):
                self._files.setdefault(path, mtime)


def _is_well(error: BaseException | None) -> bool:
    return error is None or isinstance(error, StopTrial) or (isinstance(error, SystemExit) and not error.code)


def run_attempts(
    channel: Channel, program: Program, place: Path | None, executed: Executed | None = None, *, ahead: bool
) -> NoReturn:
    """Wait for a start message, run that attempt and each that follows, and exit as a program does.

    The stop signal must be blocked by the caller: one that comes early waits until the attempt listens. The process exits, too, when
    the zygote closes the channel.

    Args:
        channel: to the zygote.
        program: the program.
        place: the folder of the attempt; None if trials share a folder.
        executed: what the importer has executed; None if this process executes the program.
        ahead: whether it does so before the start message comes.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    forget_exit_handlers()
    preparation = Preparation(program, place, executed)
    if ahead:
        preparation.load_ahead()
    received = channel.receive()
    if received is None:
        leave(0)
    message, pipes = cast("StartMessage", received[0]), received[1]
    if not message["reuse"]:
        channel.close()
    code = 1
    try:
        code = Life(channel, program, preparation, reuse=message["reuse"]).run(message, pipes)
    except BaseException:  # noqa: BLE001 - it has reported what it could
        code = 1
    leave(code)
