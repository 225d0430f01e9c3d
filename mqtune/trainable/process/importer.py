"""The importer of a program.

It imports installed packages once, and forks the zygote of each slot.

Each trial's process executes the program itself, in a fork that has these packages. So the program's files, threads,
random numbers and arguments are those of one trial, as if its author had started it. A *scout*, a fork that no trial
uses, executes the program first, and returns a verdict (``scout``). A program that takes long and leaves no trace is
executed once: its scout becomes the importer, and trials are forked behind it.

A zygote gets the variables of its slot's environment when it is forked. An import that has read one of these may hold a
value of one slot alone: ``ready`` says it, and the worker starts an importer for each of the other environments.

User code may have set any signal's handler. So this process relies on no signal: all are blocked.

Messages from the worker:

- ``begin``, the first message: the program, the late imports of its trials, the names of the variables that differ
  between slots, and the packages that must not be imported here.
- ``preload``: import these packages too, which trials would import late.
- ``fork``, with one end of the new zygote's channel and the file for its output: fork a zygote for a slot with this
  environment.

Messages to the worker:

- ``imported``, with the files of the user's code, the packages that its scout has imported, and the versions of
  everything; or ``broken``, if the trainable can't be imported, and then it ends.
- ``ready``, after that and after each ``preload``; or ``unsafe``, with a package behind which no zygote can be forked,
  and then it ends.
- ``forked``, with the zygote's process id, and a pidfd where the system has these.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
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
from mqtune.trainable.process.first_imports import first_imports
from mqtune.trainable.process.late_imports import EVERY_PACKAGE, Batch, Looks, preload, without_packages
from mqtune.trainable.process.life import Executed
from mqtune.trainable.process.native_threads import limit_threads
from mqtune.trainable.process.output import flush, shape_output
from mqtune.trainable.process.program import Program, seed_generators
from mqtune.trainable.process.protocol import STOP_SIGNAL
from mqtune.trainable.process.scout import ScoutResult, scout
from mqtune.trainable.process.zygote import Child, Signals, fork_child, spawn_child, zygote_class

#: The command of an importer, a scout and a spare that is spawned: ``main``. The worker's folder is taken out of the
#: path first: a folder named mqtune in it must not take the place of the installed package. Python's -P has the same
#: effect, but a script that is run here would see it.
_COMMAND: Final = """\
import sys
sys.flags.safe_path or sys.path.pop(0)
from mqtune.trainable.process.importer import main
main(sys.argv[1:])
"""
#: The bytes of a large page, and the advice to put memory that is in use into such pages (Linux 6.1 and later).
_LARGE_PAGE: Final = 2**21
_MADV_COLLAPSE: Final = 25
#: How often zygotes that have ended are reaped.
_REAP_MS: Final = 1_000
#: Standard output and error.
_OUTPUTS: Final = (1, 2)
#: How long a scout may take to end, with its exit handlers, before it is killed.
_SCOUT_END_S: Final = 5.0


class Importer:
    """Imports the packages of a program, and forks zygotes from itself.

    Args:
        channel: to the worker.
        program: the program.
        batches: the late imports of its earlier trials.
        varies: the variables of the environment that are not the same in all slots.
        refused: the packages behind which no zygote can be forked.
        begun: the modules that are no part of the program.
    """

    def __init__(
        self,
        channel: Channel,
        program: Program,
        batches: Iterable[Batch],
        varies: Collection[str],
        refused: Collection[str],
        begun: frozenset[str],
    ) -> None:
        self._channel = channel
        self._refused = refused
        self._program = program
        self._batches = batches
        self._looks = Looks(varies)
        self._before = begun
        self._environment = dict(os.environ)
        #: The program as the scout has executed it for all trials; None if each trial executes it.
        self._executed: Executed | None = None
        #: Whether trials execute it before their start message.
        self._is_ahead = True
        #: The files, beside its code, that the program reads: a process that has read an older one is replaced.
        self._data: list[str] = []
        #: The modules that the last ``preload`` had to import; the others came with these, or were there.
        self._loaded: list[str] = []
        #: The zygotes that it has forked and not reaped.
        self._zygotes: set[int] = set()
        self._poll = select.poll()

    def run(self) -> None:
        """Serve the worker until it closes the channel or dies.

        The zygotes live on, until the worker ends each.
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

        If that fails, say why and return False.
        """
        _import_for_trials(self._program)
        # An import finds the path of a trial. The scout says that the program is missing.
        with suppress(TrainableNotFound):
            self._program.spec.put_first(self._program.code_root)
        if not self._preload([*first_imports(self._program), *self._batches]) or not self._send_scout():
            return False
        self._signals = Signals.block()
        if self._executed is None or self._program.spec.is_carried:
            # If it is stopped (SIGSTOP) it continues when the worker dies, and sees that. A scout is killed with the
            # process that it has replaced, of whose end the worker knows.
            die_with_parent(os.getppid(), signal.SIGCONT)
        _use_large_pages()
        self._say_ready()
        return True

    def _send_scout(self) -> bool:
        """Have a scout execute the program, and decide how trials do.

        Return False if the program can't be executed.

        It returns in the scout, too, if that becomes the importer.
        """
        program = self._program
        if program.is_script or program.spec.is_carried:
            return self._describe_at_hand()
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
            # It has imported packages that the importer lacked. Behind these a second one shows the program's own part.
            _dismiss(scout)
            if not self._preload(batches):
                return False
        if verdict["error"] is not None:
            _dismiss(scout)
            return self._say_broken(*verdict["error"])
        is_behind = verdict["is_slow"] and verdict["is_clean"] and not program.spawns
        environment, files = verdict["environment"], unfrozen(verdict["files"])
        if is_behind:
            files += verdict["data"]
        else:
            program.compile(path for path, _ in verdict["files"])
            if verdict["is_slow"] and verdict["why"]:
                environment["start"] = f"each trial executes it, in {verdict['seconds']:.1f} s, as {verdict['why']}"
        self._is_ahead = not verdict["is_exclusive"]
        self._data = [path for path, _ in verdict["data"]]
        self._say_imported([*batches, *verdict["batches"]], files, environment)
        if is_behind:
            self._give_way(scout)
        _dismiss(scout)
        return True

    def _give_way(self, scout: Child) -> NoReturn:
        """Have a scout serve the worker from now on. This process ends with it, and in the same way."""
        self._channel.close()
        scout.channel.send({"do": "stay"})
        scout.channel.close()
        # It is killed with the worker, and the scout with it.
        die_with_parent(os.getppid())
        _end_as(os.waitpid(scout.pid, 0)[1])

    def _describe_at_hand(self) -> bool:
        """Describe a program without a scout: a script, or a trainable in this process's memory."""
        program, path = self._program, None
        try:
            if program.is_script:
                path = program.spec.locate(program.code_root)
            else:
                self._executed = Executed(program.load(), ())
        except TrainableNotFound as error:
            return self._say_broken(type(error).__name__, str(error))
        files = loaded_files(program.code_root, path)
        imported = [name for name in sys.modules if name not in self._before]
        environment = describe_environment(imported, [path for path, _ in files])
        # A later edit has no effect on the program in memory.
        self._say_imported([], unfrozen(files) if program.is_script else [], environment)
        return True

    def _start_scout(self) -> Child | None:
        """Start a scout and return it. Return None in the scout itself, once it is the importer."""
        flush()
        if self._program.spawns:
            return spawn_child(partial(command, "scout"), {"do": "execute", "program": self._program.encode()})
        return fork_child(self._become_scout)

    def _become_scout(self, importer: int, channel: Channel) -> None:
        try:
            die_with_parent(importer)
            self._executed = scout(channel, self._program, self._looks, self._before)
            _freeze_memory()
        except BaseException:  # noqa: BLE001 - no error of a scout may make it an importer
            _exit_with_error()

    def _preload(self, batches: Iterable[Batch]) -> bool:
        """Import packages that trials import.

        Return False, and say so, if no zygote can be forked behind one of them.
        """
        if not self._program.spawns:
            self._loaded, unsafe = preload(without_packages(batches, self._refused), self._looks)
            if unsafe is not None:
                self._channel.send({"is": "unsafe", "module": unsafe.module, "why": unsafe.why})
                return False
        # Each trial seeds them again, which is cheaper then.
        seed_generators(self._program.seed)
        footprint.end_openmp_threads()
        _freeze_memory()
        return True

    def _say_broken(self, kind: str, text: str) -> bool:
        self._channel.send({"is": "broken", "error_type": kind, "error": text})
        return False

    def _say_imported(self, batches: object, files: object, environment: object) -> None:
        self._channel.send({"is": "imported", "batches": batches, "files": files, "environment": environment})

    def _say_ready(self) -> None:
        self._channel.send({"is": "ready", "loaded": self._loaded, "looked": bool(self._looks.seen)})

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
                self._say_ready()
            case "fork":
                self._fork_zygote(message["environment"], *fds)
        return True

    def _fork_zygote(self, environment: Mapping[str, str], channel: int, output: int) -> None:
        # A child would write it again.
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
            _write_to(output)
            # Variables that an import has set stay.
            begun = self._environment
            os.environ.update({n: v for n, v in environment.items() if os.environ.get(n) == begun.get(n)})
            become_subreaper()
            die_with_parent(importer, signal.SIGCONT)
            zygote_class(self._program)(
                Channel.of_fd(channel),
                self._program,
                self._executed,
                self._signals,
                spawn=partial(command, "spare") if self._program.spawns else None,
                is_ahead=self._is_ahead,
                data=self._data,
            ).run()
        except BaseException:  # noqa: BLE001 - no error of a zygote may make it an importer
            _exit_with_error()
        os._exit(0)


def _verdict_of(scout: Child) -> ScoutResult:
    """Return a scout's verdict. If its program ended that process, end this one in the same way."""
    received = scout.channel.receive()
    if received is None:
        _end_as(os.waitpid(scout.pid, 0)[1])
    return cast("ScoutResult", received[0])


def _dismiss(scout: Child) -> None:
    """Have a scout end, with its exit handlers."""
    scout.let_end(_SCOUT_END_S)
    scout.end()
    scout.close()


def _write_to(output: int) -> None:
    """Have a file be standard output and error."""
    for stream in _OUTPUTS:
        os.dup2(output, stream)
    os.close(output)


def _freeze_memory() -> None:
    """Keep garbage collections in a child from touching, and so copying, the imported modules."""
    gc.collect()
    gc.freeze()


def _exit_with_error() -> NoReturn:
    sys.stderr.write(traceback.format_exc())
    flush()
    os._exit(1)


def _end_as(status: int) -> NoReturn:
    """End this process as a child of it has ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _use_large_pages() -> None:
    """Have the memory of this process lie in large pages, where the system can.

    A fork copies an entry of the page table for each page, and its end takes each back: with PyTorch that is 20 ms a
    trial in pages of 4 KiB, a third of that in large ones.
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
    """Import mqtune's modules that each trial needs, so that no trial waits for them."""
    kind = "class_" if program.spec.kind == "class" else program.spec.kind
    services = [program.zygote.partition(":")[0] or __name__, *(module for module, _ in program.parts)]
    for name in ("mqtune.checkpoints.checkpoint", "mqtune.checkpoints.dicts", f"mqtune.trainable.{kind}", *services):
        importlib.import_module(name)


def command(role: str, fd: int, parent: int | None = None) -> list[str]:
    """Return the command of an importer, a scout or a spare, a child of *parent* or this process.

    Its first message comes on the channel with the descriptor *fd*.
    """
    return [sys.executable, "-c", _COMMAND, role, str(parent or os.getpid()), str(fd)]


def main(argv: list[str]) -> None:
    """Run as an importer, a scout or a spare on an inherited channel."""
    role, parent, fd = argv
    # It was inherited, and children must not inherit it in turn: they would keep it open.
    os.set_inheritable(int(fd), False)
    serve(Channel.of_fd(int(fd)), int(parent), role)


def serve(channel: Channel, parent: int, role: str, begun: frozenset[str] = frozenset()) -> None:
    """Run as an importer, a scout or a spare, by the first message on the channel.

    Args:
        channel: to the worker, the importer or the zygote.
        parent: the process with which this one ends.
        role: "importer", "scout" or "spare".
        begun: the modules that are no part of the program, for a fork of the driver; by default those imported now.
    """
    received = channel.receive()
    if received is None:
        return
    message, files = received
    for file in files:
        # A fork of the driver has its output and its environment from the worker now.
        _write_to(file)
        os.environ.clear()
        os.environ.update(message["environment"])
        os.chdir(message["program"]["home"])
        limit_threads()
    program = Program.decode(message["program"])
    program.freeze()
    program.set_arguments()
    shape_output()
    # While user code is imported nothing watches the channel. Afterwards a dead worker is seen there.
    die_with_parent(parent)
    if role == "spare":
        signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL})
        zygote_class(program).life(channel, program).run(ahead=message["ahead"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = begun or frozenset(sys.modules)
    if role == "scout":
        scout(channel, program, Looks(()), before)
        return
    # Native threads of libraries that handle forks (BLAS) are no reason to warn at each trial.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
    varies, refused = message["varies"], message["refused"]
    if program.spec.is_carried:
        # This process can't be replaced: neither an unsafe import nor another slot's variables may cost it.
        varies, refused = [], [EVERY_PACKAGE]
    Importer(channel, program, message["batches"], frozenset(varies), frozenset(refused), before).run()
