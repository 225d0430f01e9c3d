"""The importer of a program: it imports packages once, and forks the zygote of each slot.

Each trial is a fork that has these packages, and executes the program itself. So the program's files, threads, random
numbers and arguments belong to one trial, as if its author had started it. A *scout*, a fork that runs no trial,
executes the program first, and returns a verdict on how trials can execute it (``scout``). A program that takes long
and leaves no trace is executed only once: its scout becomes the importer, and trials are forked from that.

A zygote gets the environment variables of its slot when it is forked. An import may have read a variable that differs
between slots, and may have kept one slot's value. Then ``ready`` says so, and the worker starts a further importer for
each other environment.

User code may have set a handler of any signal. So this process blocks all signals, and relies on none.

Messages from the worker:

- ``begin``, the first message: the program, the late imports of its earlier trials, the names of the variables that
  differ between slots, and the packages that must not be imported here.
- ``preload``: import these packages too, since trials would import them late.
- ``fork``: fork a zygote with this environment. Its descriptors are an end of the zygote's channel, and the file for
  the zygote's output.

Messages to the worker:

- ``imported``: the files of the user's code, the packages that the scout has imported, and the versions of everything.
  Or ``broken``: the trainable can't be imported, and the importer exits.
- ``ready``, after ``imported`` and after each ``preload``. Or ``unsafe``: after the import of this package no zygote
  can be forked, and the importer exits.
- ``forked``: the zygote's process id, and its pidfd where the system has pidfds.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import signal
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn, cast

from mqtune.core.errors import TrainableNotFound
from mqtune.trainable.frozen_code import loaded_files, unfrozen
from mqtune.trainable.process import footprint
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.descendants import (
    LIBC,
    become_subreaper,
    die_with_parent,
    end_children,
    pidfd_of,
    reap,
)
from mqtune.trainable.process.environment import describe_environment
from mqtune.trainable.process.exits import exit_with_error
from mqtune.trainable.process.first_imports import first_imports
from mqtune.trainable.process.late_imports import EVERY_PACKAGE, Batch, EnvironmentReads, preload, without_packages
from mqtune.trainable.process.life import Executed
from mqtune.trainable.process.native_threads import limit_threads
from mqtune.trainable.process.output import flush, shape_output
from mqtune.trainable.process.program import Program, seed_generators
from mqtune.trainable.process.protocol import STOP_SIGNAL
from mqtune.trainable.process.scout import ScoutResult, scout
from mqtune.trainable.process.zygote import Child, Signals, become_interpreter, fork_child, zygote_class

#: Bytes of a large page, and the madvise number that moves memory in use into such pages (Linux 6.1 and later).
_LARGE_PAGE: Final = 2**21
_MADV_COLLAPSE: Final = 25
#: How often ended zygotes are reaped.
_REAP_MS: Final = 1_000
#: Standard output and error.
_OUTPUTS: Final = (1, 2)
#: How long a scout may take to end, with its exit handlers, before it is killed.
_SCOUT_END_S: Final = 5.0


class Importer:
    """Imports the packages of a program, and forks zygotes from itself.

    Args:
        channel: to the worker.
        batches: the late imports of its earlier trials.
        varies: the environment variables that differ between slots.
        refused: packages that must not be imported, since no zygote could be forked afterwards.
    """

    def __init__(
        self,
        channel: Channel,
        program: Program,
        batches: Iterable[Batch],
        varies: Collection[str],
        refused: Collection[str],
    ) -> None:
        self._channel = channel
        self._refused = refused
        self._program = program
        self._batches = batches
        self._reads = EnvironmentReads(varies)
        self._environment = dict(os.environ)
        #: The program that the scout has executed for all trials. None if each trial executes it.
        self._executed: Executed | None = None
        #: Whether trials execute the program before their start message.
        self._is_ahead = True
        #: Paths of the data files that the program reads. A process that has read an older version is replaced.
        self._data: list[str] = []
        #: The modules that the last ``preload`` imported itself, without those that were there or came with these.
        self._loaded: list[str] = []
        #: Process ids of the zygotes that are not reaped yet.
        self._zygotes: set[int] = set()
        self._poll = select.poll()

    def run(self) -> None:
        """Serve the worker until it closes the channel or dies.

        The zygotes continue, until the worker ends each of them.
        """
        me = os.getpid()
        try:
            if not self._prepare():
                return
            self._poll.register(self._channel.fileno(), select.POLLIN)
            while self._serve():
                pass
        finally:
            if os.getpid() == me:
                end_children(self._zygotes)

    def _prepare(self) -> bool:
        """Import the packages, and have a scout execute the program.

        On failure, send the reason to the worker and return False.
        """
        _import_for_trials(self._program)
        # Imports here should find modules as in a trial. If the program is missing, the scout reports that.
        with suppress(TrainableNotFound):
            self._program.spec.put_first(self._program.code_root)
        if not self._preload([*first_imports(self._program), *self._batches]) or not self._scout_program():
            return False
        self._signals = Signals.block()
        if self._executed is None or self._program.spec.is_carried:
            # A stopped process (SIGSTOP) would not see the worker's death, so that continues it. A scout that has
            # become the importer needs no such signal: it is killed with the process that it has replaced.
            die_with_parent(os.getppid(), signal.SIGCONT)
        _use_large_pages()
        self._send_ready()
        return True

    def _scout_program(self) -> bool:
        """Have a scout execute the program, and decide how trials execute it.

        Return False if the program can't be executed. If the scout becomes the importer, this call also returns True in
        it.
        """
        program = self._program
        if program.is_script or program.spec.is_carried:
            return self._describe_without_scout()
        batches: Sequence[Batch] = ()
        while True:
            scout = self._start_scout()
            if scout is None:
                return True
            verdict = _verdict_of(scout)
            if batches or program.spawns or verdict["error"] is not None:
                break
            batches = without_packages(verdict["batches"], self._refused)
            if not batches:
                break
            # This scout had to import packages. With these imported, the next one measures the program alone.
            scout.dismiss(_SCOUT_END_S)
            if not self._preload(batches):
                return False
        if verdict["error"] is not None:
            scout.dismiss(_SCOUT_END_S)
            return self._send_broken(*verdict["error"])
        becomes_importer = verdict["is_slow"] and verdict["is_clean"] and not program.spawns
        environment, files = verdict["environment"], unfrozen(verdict["files"])
        if becomes_importer:
            files += verdict["data"]
        else:
            program.compile(path for path, _ in verdict["files"])
            if verdict["is_slow"] and verdict["why"]:
                environment["start"] = f"each trial executes it, in {verdict['seconds']:.1f} s, as {verdict['why']}"
        self._is_ahead = not verdict["is_exclusive"]
        self._data = [path for path, _ in verdict["data"]]
        self._send_imported([*batches, *verdict["batches"]], files, environment)
        if becomes_importer:
            self._give_way(scout)
        scout.dismiss(_SCOUT_END_S)
        return True

    def _give_way(self, scout: Child) -> NoReturn:
        """Have a scout serve the worker from now on. This process ends with it, in the same way."""
        self._channel.close()
        scout.channel.send({"do": "stay"})
        scout.channel.close()
        # The worker's death kills this process, and that kills the scout.
        die_with_parent(os.getppid())
        _end_as(os.waitpid(scout.pid, 0)[1])

    def _describe_without_scout(self) -> bool:
        """Describe a script or a trainable in memory to the worker. Return False if it is missing."""
        program, path = self._program, None
        try:
            if program.is_script:
                path = program.spec.locate(program.code_root)
            else:
                self._executed = Executed(program.load(), ())
        except TrainableNotFound as error:
            return self._send_broken(type(error).__name__, str(error))
        files = loaded_files(program.code_root, path)
        environment = describe_environment([path for path, _ in files])
        # A later edit of a file does not change a trainable in memory, so no files are watched.
        self._send_imported([], unfrozen(files) if program.is_script else [], environment)
        return True

    def _start_scout(self) -> Child | None:
        """Start a scout and return it. Return None in the scout itself if it becomes the importer."""
        flush()
        child = fork_child(self._become_scout)
        if child is not None and self._program.spawns:
            child.channel.send({"do": "execute", "program": self._program.encode()})
        return child

    def _become_scout(self, importer: int, channel: Channel) -> None:
        try:
            die_with_parent(importer)
            if self._program.spawns:
                become_interpreter("scout", channel, importer)
            self._executed = scout(channel, self._program, self._reads)
            _freeze_memory()
        except BaseException:  # noqa: BLE001 - no error of a scout may make it an importer
            exit_with_error()

    def _preload(self, batches: Iterable[Batch]) -> bool:
        """Import packages that trials import.

        If no zygote can be forked after one of them, send that to the worker and return False.
        """
        if not self._program.spawns:
            self._loaded, unsafe = preload(without_packages(batches, self._refused), self._reads)
            if unsafe is not None:
                self._channel.send({"is": "unsafe", "module": unsafe.module, "why": unsafe.why})
                return False
        # Each trial seeds them again, and the second time is cheaper.
        seed_generators(self._program.seed)
        footprint.end_openmp_threads()
        _freeze_memory()
        return True

    def _send_broken(self, kind: str, text: str) -> bool:
        self._channel.send({"is": "broken", "error_type": kind, "error": text})
        return False

    def _send_imported(self, batches: object, files: object, environment: object) -> None:
        self._channel.send({"is": "imported", "batches": batches, "files": files, "environment": environment})

    def _send_ready(self) -> None:
        self._channel.send({"is": "ready", "loaded": self._loaded, "looked": bool(self._reads.seen)})

    def _serve(self) -> bool:
        """Wait for one event and handle it.

        Return False when the worker is gone, or no more zygotes can be forked.
        """
        is_asked = self._poll.poll(_REAP_MS if self._zygotes else None)
        self._zygotes = {pid for pid in self._zygotes if not reap(pid)}
        if not is_asked:
            return True
        received = self._channel.receive()
        if received is None:
            return False
        message, fds = received
        match message["do"]:
            case "preload":
                if not self._preload(message["batches"]):
                    return False
                self._send_ready()
            case "fork":
                self._fork_zygote(message["environment"], *fds)
        return True

    def _fork_zygote(self, environment: Mapping[str, str], channel: int, output: int) -> None:
        # Otherwise the child would write buffered output a second time.
        flush()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_zygote(me, environment, channel, output)
        self._zygotes.add(pid)
        pidfds = [] if (pidfd := pidfd_of(pid)) is None else [pidfd]
        self._channel.send({"is": "forked", "pid": pid}, pidfds)
        for fd in (channel, output, *pidfds):
            os.close(fd)

    def _become_zygote(self, importer: int, environment: Mapping[str, str], channel: int, output: int) -> NoReturn:
        try:
            os.setsid()
            self._channel.close()
            _redirect_output(output)
            # Variables that an import has changed keep their new values.
            begun = self._environment
            os.environ.update({n: v for n, v in environment.items() if os.environ.get(n) == begun.get(n)})
            become_subreaper()
            die_with_parent(importer, signal.SIGCONT)
            zygote_class(self._program)(
                Channel.of_fd(channel),
                self._program,
                self._executed,
                self._signals,
                is_ahead=self._is_ahead,
                data=self._data,
            ).run()
        except BaseException:  # noqa: BLE001 - no error of a zygote may make it an importer
            exit_with_error()
        os._exit(0)


def _verdict_of(scout: Child) -> ScoutResult:
    """Return a scout's verdict. If the program ended the scout, end this process likewise."""
    received = scout.channel.receive()
    if received is None:
        _end_as(os.waitpid(scout.pid, 0)[1])
    return cast("ScoutResult", received[0])


def _redirect_output(output: int) -> None:
    """Redirect standard output and error to a file, given by its descriptor."""
    for stream in _OUTPUTS:
        os.dup2(output, stream)
    os.close(output)


def _freeze_memory() -> None:
    """Exclude all current objects from garbage collection.

    A collection in a fork would touch, and so copy, the memory of all imported modules.
    """
    gc.collect()
    gc.freeze()


def _end_as(status: int) -> NoReturn:
    """End this process with the exit code or the signal of a child, given by its wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _use_large_pages() -> None:
    """Move the memory of this process into large pages, where the system supports that.

    A fork copies a page table entry for each page, and its end frees each. With PyTorch that takes 20 ms for each trial
    with pages of 4 KiB, and a third of that with large ones.
    """
    if LIBC is None:
        return
    for line in footprint.memory_map().split("\n"):
        place, rights, *_, name = [*line.split(maxsplit=5), *[""] * 6][:6]
        if "w" in rights and name in ("", "[heap]"):
            first, last = (int(address, 16) for address in place.split("-"))
            begin, end = -(-first // _LARGE_PAGE) * _LARGE_PAGE, last // _LARGE_PAGE * _LARGE_PAGE
            if end > begin:
                # An older system refuses it.
                LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_COLLAPSE)


def _import_for_trials(program: Program) -> None:
    """Import the modules of mqtune that each trial needs, so that no trial waits for them."""
    kind = "class_" if program.spec.kind == "class" else program.spec.kind
    services = [program.zygote.partition(":")[0] or __name__, *(module for module, _ in program.parts)]
    for name in ("mqtune.checkpoints.checkpoint", "mqtune.checkpoints.dicts", f"mqtune.trainable.{kind}", *services):
        importlib.import_module(name)


def main(argv: list[str]) -> None:
    """Run as an importer, a scout or a spare on an inherited channel."""
    role, parent, fd = argv
    # This process has inherited the descriptor. A child that did so, too, would keep the channel open.
    os.set_inheritable(int(fd), False)
    serve(Channel.of_fd(int(fd)), int(parent), role)


def serve(channel: Channel, parent: int, role: str) -> None:
    """Run as an importer, a scout or a spare, by the first message on the channel.

    Args:
        channel: to the worker, the importer or the zygote.
        parent: process id of the process with which this one ends.
        role: "importer", "scout" or "spare".
    """
    received = channel.receive()
    if received is None:
        return
    message, files = received
    for file in files:
        # Only a fork of the driver gets an output file. It has the driver's output and environment until now.
        _redirect_output(file)
        os.environ.clear()
        os.environ.update(message["environment"])
        os.chdir(message["program"]["home"])
        limit_threads()
    program = Program.decode(message["program"])
    program.freeze()
    program.set_arguments()
    shape_output()
    # Nothing reads the channel while user code is imported, so a dead worker would not be noticed.
    die_with_parent(parent)
    if role == "spare":
        signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL})
        zygote_class(program).life(channel, program).run(ahead=message["ahead"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if role == "scout":
        scout(channel, program, EnvironmentReads(()))
        return
    # Native threads of libraries that handle forks (BLAS) are no reason to warn at each trial.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
    varies, refused = message["varies"], message["refused"]
    if program.spec.is_carried:
        # No other process has the trainable. So this one must not exit after an unsafe import, and serves all slots.
        varies, refused = [], [EVERY_PACKAGE]
    Importer(channel, program, message["batches"], frozenset(varies), frozenset(refused)).run()
