"""The importer of a trainable: a process of a worker that imports it once, and forks the zygote of each slot.

A worker starts it as a Python of its own (``arguments``) with one end of a channel. What it has imported its zygotes share, and so do
their trials. A zygote gets the variables of its slot's environment when it is forked, before any function of the user's runs. So an
import that has looked at one of these, or has opened a device, may hold what is so in one slot alone: ``ready`` says it, and the worker
starts an importer for each of the other environments.

User code has run in it, on import, and may have set any signal's handler. So it relies on no signal: all are blocked. It forks nothing
while a thread runs, whose locks would stay locked in a child, nor behind an import that has opened a device, which no
child can use: it then starts anew, imports nothing, and the zygotes' trials each start an interpreter.

Messages from the worker:

- ``preload``, the first message, and again at any time: import these modules too, which trials would import late.
- ``fork``, with one end of the new zygote's channel and the file for its output: fork a zygote for a slot with this environment.

Messages to the worker:

- ``imported``, with the files of the user's code and the versions of everything, after the first imports; or ``broken``, if the
  trainable can't be imported, and then it ends.
- ``ready``, after that and after each ``preload``; or ``unsafe``, with a preloaded module behind which no zygote can be
  forked, and then it ends.
- ``forked``, with the zygote's process id, and a pidfd where the system has these.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, cast

from mqtune.core.errors import TrainableNotFound
from mqtune.trainable.frozen_code import freeze, frozen, loaded_files, times_of, unfrozen
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.descendants import LIBC, become_subreaper, die_with_parent, own_children
from mqtune.trainable.process.environment import describe_environment
from mqtune.trainable.process.late_imports import Batch, Looks, device_files, end_openmp_threads, memory_map, preload
from mqtune.trainable.process.life import run_attempts
from mqtune.trainable.process.output import flush, shape_output
from mqtune.trainable.process.protocol import STOP_SIGNAL, BecomeScript, describe_error
from mqtune.trainable.process.zygote import Signals, Zygote
from mqtune.trainable.spec import Kind, Loaded, TrainableSpec, extras_of

#: What an importer and a spawned spare run: ``main``, without what lies where the worker was started, such as a folder named mqtune, in
#: the place of what is installed. Python's -P has the same effect, but a script that is run here would see it.
_COMMAND: Final = """\
import sys
sys.flags.safe_path or sys.path.pop(0)
from mqtune.trainable.process.importer import main
main(sys.argv[1:])
"""
#: The bytes of a large page, and the advice to put memory that is in use into such pages, which Linux 6.1 and later take.
_LARGE_PAGE: Final = 2**21
_MADV_COLLAPSE: Final = 25
#: How often zygotes that have ended are reaped, where the kernel has no pidfd (macOS).
_REAP_MS: Final = 1_000
#: Standard output and error.
_OUTPUTS: Final = (1, 2)
#: How many changed files an error names; nobody would read more.
_MAX_DIFFERING: Final = 5
#: How much is kept of why trials start interpreters: it is in the journal, for each attempt.
_MAX_WHY_CHARS: Final = 300


class Importer:
    """Imports a trainable, and forks zygotes from what it has imported.

    Args:
        channel: to the worker.
        spec: the trainable.
        code_root: the folder below which it is.
        manifest: the file that names the experiment's code; None if there is none.
        fork: whether trials are forked from what is imported here; else nothing is.
        fresh: why trials start interpreters although forks were wanted; empty if that is not so.
        varies: the variables of the environment that are not the same in all slots.
    """

    def __init__(
        self,
        channel: Channel,
        spec: TrainableSpec,
        code_root: Path,
        manifest: Path | None,
        *,
        fork: bool,
        fresh: str,
        varies: Collection[str],
    ) -> None:
        self._channel = channel
        self._spec = spec
        self._code_root = code_root
        self._manifest = manifest
        self._fork = fork
        self._fresh = fresh
        self._looks = Looks(varies)
        self._trainable: Loaded | None = None
        self._before = frozenset(sys.modules)
        self._environment = dict(os.environ)
        #: The modules that the last ``preload`` had to import; the others came with these, or were there.
        self._loaded: list[str] = []
        #: The zygotes that it has forked and not reaped, each with its pidfd.
        self._zygotes: dict[int, int | None] = {}
        self._poll = select.poll()

    def run(self) -> None:
        """Serve the worker until it closes the channel or dies. The zygotes live on: each ends when the worker closes its own channel.

        Raises:
            BecomeScript: in a fork that is to become a script.
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
                self._end_own_children()

    def _prepare(self) -> bool:
        """Import the trainable, and what trials import late; if that fails, say why and return False."""
        if self._fork and not self._import():
            return False
        if self._fork or not self._fresh:
            self._channel.send({"is": "imported", **self._describe()})
        if self._fork and (why := self._why_no_fork()):
            self._start_anew("spawn", why)
        received = self._channel.receive()
        if received is None:
            return False
        self._signals = Signals.block()
        # If it is stopped (SIGSTOP) it goes on when the worker dies, and sees that.
        die_with_parent(os.getppid(), signal.SIGCONT)
        if not self._preload(received[0]["batches"]):
            return False
        _use_large_pages()
        self._say_ready()
        return True

    def _import(self) -> bool:
        # What an import starts, and leaves to nobody, ends with this process.
        become_subreaper()
        try:
            with self._looks:
                self._trainable = self._spec.load(self._code_root)
                if self._spec.kind == "function":
                    # Cached here, and not looked up by each trial.
                    extras_of(self._trainable)
                elif isinstance(self._trainable, Path) and self._trainable.suffix == ".py" and not self._fresh:
                    self._warm_up(self._trainable.absolute())
        except BaseException as error:  # noqa: BLE001 - user code runs on import
            text = str(error) if isinstance(error, TrainableNotFound) else describe_error(error)
            if differs := self._differs():
                text = f"{text.rstrip()}\n{', '.join(differs)} there is not as it was when the experiment began"
            self._channel.send({"is": "broken", "error_type": type(error).__name__, "error": text})
            return False
        # What a dead zygote leaves is for the worker to end.
        become_subreaper(on=False)
        # For a trial that saves or loads a dict the import would take longer than all else until its first report.
        from mqtune.checkpoints import checkpoint, dicts  # noqa: F401, PLC0415

        return True

    def _warm_up(self, script: Path) -> None:
        """Do a script's first imports, or start this process anew without these."""
        from mqtune.trainable.process.warm_script import NotForkable, warm_up  # noqa: PLC0415

        try:
            warm_up(script)
        except NotForkable as refusal:
            self._start_anew("fork", str(refusal))

    def _why_no_fork(self) -> str:
        """Return why no trial can be forked behind the imports; empty if it can."""
        if threading.active_count() > 1:
            # A lock that it holds would stay locked for ever in a forked child.
            return f"its imports have started the thread {threading.enumerate()[-1].name}"
        devices = device_files()
        return f"its imports have opened {devices[0]}" if devices else ""

    def _start_anew(self, role: str, why: str) -> NoReturn:
        """Become another importer, which finds the environment as it was before the imports."""
        self._end_own_children()
        fd = self._channel.fileno()
        os.set_inheritable(fd, True)
        command = arguments(
            role,
            fd,
            self._spec,
            self._code_root,
            self._manifest,
            parent=os.getppid(),
            fresh=why.replace("\0", "")[:_MAX_WHY_CHARS],
            varies=self._looks.names,
        )
        os.execve(sys.executable, command, self._environment)  # noqa: S606 - by no shell

    def _describe(self) -> dict[str, object]:
        """Return the files of the user's code that were imported, and the versions of everything."""
        script = self._trainable if isinstance(self._trainable, Path) else None
        files = loaded_files(self._code_root, script)
        imported = [name for name in sys.modules if name not in self._before]
        environment = describe_environment(imported, [path for path, _ in files])
        if differs := self._differs():
            environment["differs"] = differs
        # Files that differ may be corrected, also when nothing has imported them yet.
        watched = {*unfrozen(files), *times_of(frozen().differing)}
        return {"files": list(watched), "environment": environment}

    def _differs(self) -> list[str]:
        """Return some files that differ from the experiment's, for an error."""
        return [os.path.relpath(path, self._code_root) for path in frozen().differing[:_MAX_DIFFERING]]

    def _preload(self, batches: Iterable[Batch]) -> bool:
        """Import modules that trials have imported late; return False, and say so, if no zygote can be forked behind one of them."""
        # A script that has an interpreter of its own finds nothing of what is imported here.
        if self._fork and not self._fresh:
            self._loaded, unsafe = preload(batches, self._looks)
            if unsafe is not None:
                self._channel.send({"is": "unsafe", "module": unsafe.module, "why": unsafe.why})
                return False
        end_openmp_threads()
        # Garbage collections in a child would otherwise touch, and so copy, everything that was imported.
        gc.collect()
        gc.freeze()
        return True

    def _say_ready(self) -> None:
        looked = self._fork and bool(self._looks.seen)
        self._channel.send({"is": "ready", "loaded": self._loaded, "looked": looked, "fresh": self._fresh})

    def _serve(self) -> bool:
        """Wait for one event and handle it; return False when the worker is gone, or nothing can be forked any more."""
        ready = {fd for fd, _ in self._poll.poll(_REAP_MS if None in self._zygotes.values() else None)}
        self._reap()
        if self._channel.fileno() not in ready:
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
        pidfd = None
        with suppress(ProcessLookupError, AttributeError):
            # Opened while the process can't have been reaped, it can never mean another one.
            pidfd = os.pidfd_open(pid)
            self._poll.register(pidfd, select.POLLIN)
        self._zygotes[pid] = pidfd
        self._channel.send({"is": "forked", "pid": pid}, [] if pidfd is None else [pidfd])
        os.close(channel)
        os.close(output)

    def _become_zygote(self, importer: int, environment: Mapping[str, str], channel: int, output: int) -> NoReturn:
        try:
            os.setsid()
            self._channel.close()
            for pidfd in self._zygotes.values():
                if pidfd is not None:
                    os.close(pidfd)
            for stream in _OUTPUTS:
                os.dup2(output, stream)
            os.close(output)
            # What an import has set stays.
            begun = self._environment
            os.environ.update({n: v for n, v in environment.items() if os.environ.get(n) == begun.get(n)})
            become_subreaper()
            die_with_parent(importer, signal.SIGCONT)
            spawn = None if self._fork else partial(_spare, self._spec, self._code_root, self._manifest)
            Zygote(Channel.of_fd(channel), self._trainable, self._code_root, self._signals, spawn).run()
        except BecomeScript:
            raise
        except BaseException:  # noqa: BLE001 - nothing of a zygote may go on as its importer
            sys.stderr.write(traceback.format_exc())
            flush()
            os._exit(1)
        os._exit(0)

    def _reap(self) -> None:
        """Reap the zygotes that have ended."""
        for pid, pidfd in list(self._zygotes.items()):
            # A thread of the user's module may have reaped it.
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    continue
            del self._zygotes[pid]
            if pidfd is not None:
                self._poll.unregister(pidfd)
                os.close(pidfd)

    def _end_own_children(self) -> None:
        """End the processes that imports have started."""
        for child in own_children():
            if child not in self._zygotes:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)


def _use_large_pages() -> None:
    """Have the memory of this process lie in large pages, where the system can.

    A fork copies an entry of the page table for each page, and its end takes each back: with PyTorch that is 20 ms a trial in pages of
    4 KiB, a third of that in large ones.
    """
    if LIBC is None:
        return
    for line in memory_map().splitlines():
        place, rights, _, _, _, *name = line.split(maxsplit=5)
        if "w" in rights and name in ([], ["[heap]"]):
            first, last = (int(address, 16) for address in place.split("-"))
            begin, end = -(-first // _LARGE_PAGE) * _LARGE_PAGE, last // _LARGE_PAGE * _LARGE_PAGE
            if end > begin:
                # An older system refuses it.
                LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_COLLAPSE)


def _spare(spec: TrainableSpec, code_root: Path, manifest: Path | None, fd: int) -> list[str]:
    return arguments("spare", fd, spec, code_root, manifest)


def arguments(
    role: str,
    fd: int,
    spec: TrainableSpec,
    code_root: Path,
    manifest: Path | None = None,
    *,
    parent: int | None = None,
    fresh: str = "",
    varies: Iterable[str] = (),
) -> list[str]:
    """Return the command line that starts an importer (role ``fork`` or ``spawn``) or a ``spare`` as a child of *parent*, or this process."""
    return [
        sys.executable,
        "-c",
        _COMMAND,
        role,
        str(parent or os.getpid()),
        str(fd),
        spec.name,
        spec.module,
        spec.script,
        spec.kind,
        spec.adapter,
        str(code_root),
        str(manifest or ""),
        fresh,
        ",".join(sorted(varies)),
    ]


def main(argv: list[str]) -> None:
    """Run as an importer or a spare on an inherited channel."""
    role, parent, fd, name, module, script, kind, adapter, root, manifest, fresh, varies = argv
    # It was inherited, and children must not inherit it in turn: they would keep it open.
    os.set_inheritable(int(fd), False)
    channel = Channel.of_fd(int(fd))
    spec, code_root = TrainableSpec(name, module, script, cast(Kind, kind), adapter), Path(root)
    code = Path(manifest) if manifest else None
    if code is not None:
        freeze(code, is_run=spec.kind == "script")
    shape_output()
    # While user code is imported nothing watches the channel. Afterwards a dead worker is seen there.
    die_with_parent(int(parent))
    become: Callable[[], None] | None = None
    try:
        if role == "spare":
            signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL})
            run_attempts(channel, lambda: spec.load(code_root), code_root)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Native threads of libraries that handle forks (BLAS) are no reason to warn at each trial.
        warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
        Importer(
            channel,
            spec,
            code_root,
            code,
            fork=role == "fork",
            fresh=fresh,
            varies=frozenset(filter(None, varies.split(","))),
        ).run()
    except BecomeScript as fork:
        become = fork.args[0]
    # Outside the block, where no error of the script has one of this process as its context.
    if become is not None:
        become()
