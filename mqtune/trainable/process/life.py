"""The life of a trial's process.

It executes the program, waits for a start message, runs that attempt, and exits.

The program is executed before the start message comes, so no slot waits for it; or afterwards, where the program takes
a device or a port, which the trial before may still have.
"""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol, cast

from mqtune.core.trial import AttemptEnd
from mqtune.trainable import reporting
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.exits import forget_exit_handlers, leave
from mqtune.trainable.process.late_imports import ImportWatch
from mqtune.trainable.process.output import CapturedOutput, take_over_output, write_output
from mqtune.trainable.process.program import Program, seed_generators
from mqtune.trainable.process.protocol import STOP_SIGNAL, StartMessage, TrainableEnd
from mqtune.trainable.process.runner import run_attempt
from mqtune.trainable.process.session import Session
from mqtune.trainable.spec import Loaded


class Executed(NamedTuple):
    """A program that an importer has executed once for all trials, and its output meanwhile."""

    trainable: Loaded
    printed: Sequence[bytes]


class ProcessPart(Protocol):
    """A service's part in a trial's process: ``Part`` of a module in ``Program.parts``.

    It is made with the program and the text that comes with the module's name. An error in ``enter`` or ``begin`` is
    the attempt's.
    """

    def enter(self) -> None:
        """Prepare the process, before the program is executed."""

    def begin(self, message: StartMessage) -> None:
        """Prepare for this attempt, before its trainable is called."""

    def drop(self) -> None:
        """Clean up: no attempt has come."""


class Life:
    """One process, from its begin to its exit.

    A service may derive from it, for a zygote of its own.

    Args:
        channel: to the zygote.
        program: the program.
        executed: the program as the importer has executed it; None if this process executes it.
    """

    session: Session

    def __init__(self, channel: Channel, program: Program, executed: Executed | None = None) -> None:
        self.channel = channel
        self.program = program
        self._trainable = None if executed is None else executed.trainable
        self._printed: Sequence[bytes] = () if executed is None else executed.printed
        self._error: BaseException | None = None
        self.watch = ImportWatch()
        self.parts: list[ProcessPart] = [
            importlib.import_module(module).Part(program, text) for module, text in program.parts
        ]

    def run(self, *, ahead: bool) -> NoReturn:
        """Wait for a start message, run that attempt, and exit as a program does.

        The caller must have blocked the stop signal: an early one waits until the attempt listens. The process exits, too,
        when the zygote closes the channel.

        Args:
            ahead: whether the program is executed before the start message comes.
        """
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        forget_exit_handlers()
        self._prepare(ahead=ahead)
        received = self.channel.receive()
        if received is None:
            for part in self.parts:
                part.drop()
            leave(0)
        code = 1
        try:
            code = self.attempt(cast("StartMessage", received[0]), received[1])
        except BaseException:  # noqa: BLE001 - it has reported what it could
            code = 1
        leave(code)

    def _prepare(self, *, ahead: bool) -> None:
        """Do what comes before the start message; output and an error belong to the coming attempt."""
        captured = CapturedOutput() if ahead and self._trainable is None else None
        try:
            for part in self.parts:
                part.enter()
            self.watch.begin()
            if captured is not None:
                self._trainable = self.program.load()
        except BaseException as error:  # noqa: BLE001 - user code runs, and its error is the attempt's
            self._error = error
        if captured is not None:
            self._printed = captured.end()

    def attempt(self, message: StartMessage, pipes: Sequence[int]) -> int:
        """Run the attempt; return the code to exit with."""
        self.channel.close()
        # The signal is blocked until now.
        self.open(Session(message, pipes))
        return run_attempt(self.session, self.watch, self.begin)

    def open(self, current: Session) -> None:
        """Have output, reports and the stop signal be this session's."""
        take_over_output(current.message["stdout"], current.message["stderr"])
        self.session = reporting.current = current
        signal.signal(STOP_SIGNAL, current.on_stop_signal)

    def begin(self) -> TrainableEnd:
        """Call the trainable of the attempt, and return how that ended."""
        current = self.session
        for part in self.parts:
            part.begin(current.message)
        current.enter()
        loaded = self._load()
        # Only the trials that need one import it.
        if isinstance(loaded, Path):
            from mqtune.trainable.script import ScriptRun  # noqa: PLC0415

            return ScriptRun(loaded, current, self.program).run()
        if isinstance(loaded, type):
            return self.run_class(loaded)
        from mqtune.trainable.function import run_function  # noqa: PLC0415

        try:
            run_function(loaded, current)
        finally:
            # From here on a late stop changes nothing.
            signal.signal(STOP_SIGNAL, signal.SIG_IGN)
        return TrainableEnd(AttemptEnd.COMPLETED)

    def run_class(self, trainable: type) -> TrainableEnd:
        """Run a trainable that is a class."""
        from mqtune.trainable.class_ import run_class  # noqa: PLC0415

        return run_class(trainable, self.session)

    def _load(self) -> Loaded:
        """Return the trainable; raise the error of the program."""
        if self._printed:
            write_output(self._printed)
        if self._error is not None:
            raise self._error
        if self._trainable is None:
            self._trainable = self.program.load()
        # An import has used the seed of the experiment; each trial has numbers of its own.
        seed_generators()
        return self._trainable
