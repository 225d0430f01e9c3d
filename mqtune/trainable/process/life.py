"""The life of a trial's process.

It executes the program, waits for a start message, runs that attempt, and exits.

So no slot waits for the program. But if the program uses a device or a port, which the slot's previous trial may still
have, it is executed after the start message.
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
    """A program that an importer has executed once for all trials, and the output of that."""

    trainable: Loaded
    printed: Sequence[bytes]


class ProcessPart(Protocol):
    """A service's part in a trial's process: the class ``Part`` in a module of ``Program.parts``.

    It is made with the program and the module's text. An error in ``enter`` or ``begin`` fails the attempt.
    """

    def enter(self) -> None:
        """Prepare the process, before the program is executed."""

    def begin(self, message: StartMessage) -> None:
        """Prepare for this attempt, before its trainable is called."""

    def drop(self) -> None:
        """Clean up, because this process ends without an attempt."""


class Life:
    """One process of a trial, from its start to its exit.

    A service that changes what a process does, such as reuse, subclasses it and names the class in ``Zygote.life``.

    Args:
        channel: to the zygote.
        executed: the program as the importer has executed it. None if this process executes it.
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

        The caller must have blocked the stop signal: an early one then waits for the attempt's handler. If the zygote
        closes the channel, the process exits without an attempt.

        Args:
            ahead: whether to execute the program before the start message comes.
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
        """Do the work before the start message. Its output and its error are kept for the attempt."""
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
        """Run the attempt. Return the code to exit with."""
        self.channel.close()
        # The stop signal is still blocked, so its handler is set in time.
        self.open(Session(message, pipes))
        return run_attempt(self.session, self.watch, self.begin)

    def open(self, current: Session) -> None:
        """Connect this process's output, reports and stop signal to a session."""
        take_over_output(current.message["stdout"], current.message["stderr"])
        self.session = reporting.current = current
        signal.signal(STOP_SIGNAL, current.on_stop_signal)

    def begin(self) -> TrainableEnd:
        """Call the attempt's trainable, and return how it ended."""
        current = self.session
        for part in self.parts:
            part.begin(current.message)
        current.enter()
        loaded = self._load()
        # Each trial imports only the module for its own kind of trainable.
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
        """Run a trainable class, and return how it ended."""
        from mqtune.trainable.class_ import run_class  # noqa: PLC0415

        return run_class(trainable, self.session)

    def _load(self) -> Loaded:
        """Return the trainable, loaded now if it was not before. Raise the program's error if any."""
        if self._printed:
            write_output(self._printed)
        if self._error is not None:
            raise self._error
        if self._trainable is None:
            self._trainable = self.program.load()
        # The program was executed with the experiment's seed, but each trial needs its own random numbers.
        seed_generators()
        return self._trainable
