"""The zygote of one slot: has imported the trainable's module, never touched a device, and makes a trial in a millisecond.

A worker starts it as ``python -m mqtune.trainable.process.zygote`` with one end of a channel. It keeps one *spare*: a process
that waits for its start message, forked while the trial before it runs, so that no slot waits for a fork. It is
the parent and the subreaper of the trial, so that whatever the trial leaves behind comes to it and is killed. It runs
one trial at a time. A process that may be reused stays behind its trial, if nothing else of that is left, and is given the
next one (see ``mqtune.trainable.process.reuse``).

User code has run in here, on import, and may have set any signal's handler, so nothing in here goes by signals: all of them
are blocked, and a trial's end is seen by its pidfd.

From the worker: ``start`` (with the ends of the pipes; it may come while the trial before is on its way out, and then waits
until that is gone), with the trial's process id ``tell`` and ``end``, and ``drop``, for a process that waits for reuse.
To the worker: ``ready`` (with the files of the user's code, and the versions of everything) or ``broken``, then for each
trial ``started`` (with a pidfd, where there are any) and ``ended`` (sent when its process group, and every descendant that
left it, is gone, but for a process that stays). While that takes long it says ``sweeping``. ``again`` means that a process
would not be reused: the trial's next ``started`` follows.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, cast

from mqtune.core.errors import TrainableNotFound
from mqtune.trainable import reporting
from mqtune.trainable.frozen_code import freeze, frozen, loaded_files, unfrozen
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.descendants import (
    become_subreaper,
    die_with_parent,
    group_exists,
    has_descendants,
    own_children,
)
from mqtune.trainable.process.environment import describe_environment
from mqtune.trainable.process.protocol import STOP_SIGNAL, describe_error
from mqtune.trainable.process.runner import run_attempt, shape_output, take_over_output
from mqtune.trainable.process.session import Session
from mqtune.trainable.spec import Kind, Loaded, TrainableSpec, extras_of

__all__ = ["Zygote", "arguments", "main"]

#: How often a killed process group that is not gone yet is looked at: most are gone at the first look, and one that a driver
#: or a disk holds may take minutes.
_SWEEP_POLL_S: Final = 0.001
_LONGEST_SWEEP_POLL_S: Final = 0.1
#: How often the worker is told that a trial's processes are not gone yet.
_SWEEPING_S: Final = 1.0
#: How often what a running trial has left to this process is looked at; what of that has ended is reaped.
_REAP_MS: Final = 1_000
#: How often a trial's process is looked at where the kernel has no descriptor that tells of its end (macOS).
_LOOK_MS: Final = 20
#: How long after a trial's start the next spare is forked: the start itself should have the cores for itself.
_SPARE_DELAY_MS: Final = 2
#: How long a process that waits for reuse may take to clean up once it has to go: the worker waits for it.
_LEAVE_S: Final = 1.0


#: How many files an attempt names that are not as the experiment's; more would not be read.
_MAX_DIFFERING: Final = 5


class _Process(NamedTuple):
    """A process that waits for its start message, or has had it."""

    pid: int
    channel: Channel
    pidfd: int | None

    @property
    def has_ended(self) -> bool:
        """Whether it is dead; it keeps its number until it is reaped."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            # A thread that the user's code has started waits for whatever ends.
            return True

    def reap(self) -> int | None:
        """Wait for its end and return its wait status; None when another thread has taken that."""
        try:
            return os.waitpid(self.pid, 0)[1]
        except ChildProcessError:
            return None

    def let_go(self) -> None:
        """Close what there is to reach it by; if it waits, it ends."""
        self.channel.close()
        if self.pidfd is not None:
            os.close(self.pidfd)


class Zygote:
    """Makes trial processes for one slot and buries them.

    Args:
        channel: to the worker.
        spec: the trainable.
        code_root: the folder below which it is.
        manifest: says what its code is; None when nothing does.
        fork: whether spares are forked from here, else they start as processes of their own.
    """

    def __init__(
        self, channel: Channel, spec: TrainableSpec, code_root: Path, manifest: Path | None, *, fork: bool
    ) -> None:
        self._channel = channel
        self._manifest = manifest
        self._spec = spec
        self._code_root = code_root
        self._fork = fork
        self._trainable: Loaded | None = None
        self._before = frozenset(sys.modules)
        self._spare: _Process | None = None
        #: The trial's process; or, once its trial has ended, the same process, which waits to be reused.
        self._process: _Process | None = None
        self._reusable = self._waits = False
        #: What a process that waited was given, and has not taken yet.
        self._given: tuple[dict[str, Any], list[int]] | None = None
        #: A start that came while the trial before it was on its way out.
        self._next: tuple[dict[str, Any], list[int]] | None = None
        #: What the module started when it was imported; it lives as long as this process.
        self._own: frozenset[int] = frozenset()
        self._poll = select.poll()
        #: What trials find blocked, and do when a child ends, as the module has left it.
        self._mask: set[int] = set()
        self._on_child: Any = signal.SIG_DFL

    def run(self) -> None:
        """Serve the worker until it closes the channel or dies; leaves no process behind."""
        if not self._prepare():
            return
        self._poll.register(self._channel.fileno(), select.POLLIN)
        self._make_spare()
        script = self._trainable if isinstance(self._trainable, Path) else None
        files = loaded_files(self._code_root, script)
        imported = [name for name in sys.modules if name not in self._before]
        environment = describe_environment(imported, [path for path, _ in files])
        if differs := self._differs():
            environment["differs"] = differs
        # Those that differ may be put right, also when nothing has imported them yet.
        watched = {**{str(path): _time_of(path) for path in frozen().differing}, **dict(unfrozen(files))}
        self._channel.send({"is": "ready", "files": list(watched.items()), "environment": environment})
        while self._serve():
            pass

    def _differs(self) -> list[str]:
        """Return files that are not as the experiment's, for people."""
        return [os.path.relpath(path, self._code_root) for path in frozen().differing[:_MAX_DIFFERING]]

    def _serve(self) -> bool:
        """Wait for one thing to happen, and see to it; False when the worker is gone."""
        ready = {fd for fd, _ in self._poll.poll(self._patience_ms)}
        process = self._process
        # One at a time, as each may close what comes next; and first what was sent first: what is to be done with a
        # process, what that says, and that it has ended.
        if self._channel.fileno() in ready:
            if not self._obey():
                self._kill_all()
                return False
        elif process is not None and self._reusable and process.channel.fileno() in ready:
            self._attend()
        elif process is not None and (ready or process.pidfd is None) and process.has_ended:
            self._bury(process)
        elif self._spare is None:
            self._make_spare()
        elif not ready:
            self._reap_orphans()
        return True

    @property
    def _patience_ms(self) -> int | None:
        if self._spare is None:
            return _SPARE_DELAY_MS
        if self._process is None:
            return None
        return _LOOK_MS if self._process.pidfd is None else _REAP_MS

    def _prepare(self) -> bool:
        """Import the trainable and say so if that fails."""
        if not self._fork:
            self._set_signals()
            return True
        try:
            self._trainable = self._spec.load(self._code_root)
            if self._spec.kind == "function":
                # Looked up here once, and not by each trial.
                extras_of(self._trainable)
        except BaseException as error:  # noqa: BLE001 - user code runs on import
            text = str(error) if isinstance(error, TrainableNotFound) else describe_error(error)
            if differs := self._differs():
                text = f"{text.rstrip()}\n{', '.join(differs)} there is not as it was when the experiment began"
            self._channel.send({"is": "broken", "error_type": type(error).__name__, "error": text})
            return False
        # A trial that saves or loads a dict would take longer to import this than for all else until its first report.
        from mqtune.checkpoints import checkpoint, dicts  # noqa: F401, PLC0415

        self._set_signals()
        if threading.active_count() > 1:
            # A lock that one of these threads holds would stay held for ever in a forked child.
            self._fork = False
        # Collections in a child would otherwise touch, and so copy, everything that was imported.
        gc.collect()
        gc.freeze()
        return True

    def _set_signals(self) -> None:
        """Have no signal do anything in here, whatever the module has made of them; trials get back what that was."""
        self._on_child = signal.getsignal(signal.SIGCHLD)
        # Were it ignored, the kernel would reap the trials.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        every = signal.valid_signals()
        # The stop signal is blocked in each spare until the trial has its handler.
        self._mask = {*signal.pthread_sigmask(signal.SIG_BLOCK, every), STOP_SIGNAL}
        self._own = frozenset(own_children())
        # One that is stopped goes on, and sees that its worker is gone.
        die_with_parent(os.getppid(), signal.SIGCONT)

    def _make_spare(self) -> None:
        ours, theirs = Channel.pair()
        if self._fork:
            me = os.getpid()
            pid = os.fork()
            if pid == 0:
                # Held here too, its end would never be seen.
                ours.close()
                self._become_spare(me, theirs)
        else:
            os.set_inheritable(theirs.fileno(), True)
            command = arguments("spare", theirs.fileno(), self._spec, self._code_root, self._manifest)
            pid = os.posix_spawn(sys.executable, command, os.environ, setsigmask=self._mask)
        theirs.close()
        pidfd = None
        with contextlib.suppress(ProcessLookupError, AttributeError):
            # Opened while the process can't have been reaped, it can never mean another one.
            pidfd = os.pidfd_open(pid)
        self._spare = _Process(pid, ours, pidfd)

    def _become_spare(self, zygote: int, channel: Channel) -> None:
        try:
            if self._on_child is not None:
                signal.signal(signal.SIGCHLD, self._on_child)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            self._channel.close()
            if self._process is not None:
                self._process.let_go()
            self._forget_given()
            for fd in self._next[1] if self._next is not None else ():
                # The pipes of the trial that comes next: held here too, their end would never be seen.
                os.close(fd)
            die_with_parent(zygote)
            trainable = self._trainable
            assert trainable is not None  # noqa: S101 - it was loaded before the fork
            run_spare(channel, lambda: trainable, self._code_root)
        finally:
            os._exit(1)

    def _obey(self) -> bool:
        """Carry out one message of the worker; False when there is none any more."""
        received = self._channel.receive()
        if received is None:
            return False
        message, fds = received
        match message["do"]:
            case "start" if self._process is None or self._waits:
                self._start(message, fds)
            case "start":
                self._next = message, fds
            case "tell":
                self._signal(message["pid"], STOP_SIGNAL, group=False)
            case "end":
                self._end(message["pid"], message["signal"])
            case "drop":
                self._drop_waiting()
        return True

    def _start(self, message: dict[str, Any], fds: list[int]) -> None:
        if self._process is not None:
            process, self._waits = self._process, False
            self._given = message, fds
        else:
            process = self._process = self._take_spare()
            self._reusable = bool(message.get("reuse"))
            if process.pidfd is not None:
                self._poll.register(process.pidfd, select.POLLIN)
        # First, so that the worker knows whom to bury should this process be killed while the trial is running already.
        self._channel.send({"is": "started", "pid": process.pid}, [] if process.pidfd is None else [process.pidfd])
        process.channel.send(message, fds)
        if self._reusable:
            self._poll.register(process.channel.fileno(), select.POLLIN)
        if self._given is None:
            for fd in fds:
                os.close(fd)

    def _take_spare(self) -> _Process:
        if self._spare is not None and self._spare.has_ended:
            # Killed by a person, or by the system for memory: no trial should have to answer for that.
            self._spare.reap()
            self._spare.let_go()
            self._spare = None
        if self._spare is None:
            self._make_spare()
        spare, self._spare = self._spare, None
        assert spare is not None  # noqa: S101 - just made
        return spare

    def _attend(self) -> None:
        """Hear a process that may be reused."""
        process = self._process
        assert process is not None  # noqa: S101 - its channel is polled
        received = process.channel.receive()
        match None if received is None else received[0]["is"]:
            case "done":
                others = [*self._own, *([] if self._spare is None else [self._spare.pid])]
                process.channel.send({"keep": not has_descendants(process.pid, others)})
            case "taken":
                self._forget_given()
            case "kept":
                self._poll.unregister(process.channel.fileno())
                self._waits = True
                self._end_trial(0, stays=True)
            case None:
                # It is about to die.
                self._poll.unregister(process.channel.fileno())

    def _forget_given(self) -> None:
        if self._given is not None:
            for fd in self._given[1]:
                os.close(fd)
            self._given = None

    def _end(self, pid: int, number: int) -> None:
        """Hear that a trial is being ended; send its group the signal, unless that is 0: the worker has sent it."""
        if self._is_trial(pid):
            # No other process needs to take what this one was to end.
            self._forget_given()
            if number:
                self._signal(pid, number, group=True)

    def _is_trial(self, pid: int) -> bool:
        # What is meant for a trial that has ended must not hit the next. One that is not reaped yet keeps its number, so
        # this can't hit another process either.
        return self._process is not None and not self._waits and self._process.pid == pid

    def _signal(self, pid: int, number: int, *, group: bool) -> None:
        if not self._is_trial(pid):
            return
        if group:
            _kill_group(pid, number)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _bury(self, process: _Process) -> None:
        """Kill what is left of a process that has ended, reap everything, tell the worker and make the next spare."""
        status, waited = self._remove(process), self._waits
        self._waits = False
        if self._given is not None:
            given, self._given = self._given, None
            self._channel.send({"is": "again"})
            self._start(*given)
        elif not waited:
            self._end_trial(status)
        if self._spare is None:
            self._make_spare()

    def _remove(self, process: _Process) -> int | None:
        """Kill and reap a process, if it lives, and what it has left; return its wait status."""
        # Its number is still reserved, so this can't hit another group.
        _kill_group(process.pid, signal.SIGKILL)
        status = process.reap()
        self._process = None
        self._sweep(process.pid)
        for fd in (process.channel.fileno(), process.pidfd):
            with contextlib.suppress(KeyError):
                if fd is not None:
                    self._poll.unregister(fd)
        process.let_go()
        return status

    def _end_trial(self, status: int | None, *, stays: bool = False) -> None:
        self._channel.send({"is": "ended", "status": status, "stays": stays})
        if self._next is not None:
            waiting, self._next = self._next, None
            self._start(*waiting)

    def _drop_waiting(self) -> None:
        """Have a process that waits for reuse clean up and end; when it takes too long, kill it."""
        process = self._process
        if process is None or not self._waits:
            return
        self._waits = False
        process.channel.end()
        over_at = time.monotonic() + _LEAVE_S
        while not process.has_ended and time.monotonic() < over_at:
            time.sleep(_SWEEP_POLL_S)
        self._remove(process)

    def _orphans(self) -> list[int]:
        """Return what has come to this process from its trials."""
        kept = {process.pid for process in (self._spare, self._process) if process is not None}
        return [child for child in own_children() if child not in kept and child not in self._own]

    def _reap_orphans(self) -> None:
        """Reap what a running trial has left here and has ended."""
        for child in self._orphans():
            _reap_if_dead(child)

    def _sweep(self, group: int) -> None:
        """Wait until the group is gone, killing every descendant that has come to this process."""
        pause_s, say_at = _SWEEP_POLL_S, time.monotonic() + _SWEEPING_S
        while True:
            orphans = self._orphans()
            for child in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                _reap_if_dead(child)
            if not orphans and not group_exists(group):
                return
            if time.monotonic() >= say_at:
                self._channel.send({"is": "sweeping"})
                pause_s, say_at = _LONGEST_SWEEP_POLL_S, time.monotonic() + _SWEEPING_S
            time.sleep(pause_s)

    def _kill_all(self) -> None:
        self._drop_waiting()
        if self._process is not None:
            self._remove(self._process)
        if self._spare is not None:
            # Nobody else would wait for it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._spare.pid, signal.SIGKILL)
            self._spare.reap()
        for child in self._own:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def _time_of(path: Path) -> int:
    """Return when a file was changed; 0 for one that is gone."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _reap_if_dead(child: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def _kill_group(pid: int, number: int) -> None:
    """Send a signal to a process and its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
        return
    # One that has just been started may not have made its group yet.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def run_spare(channel: Channel, load: Callable[[], Loaded], code_root: Path) -> NoReturn:
    """Wait for a start message, run that trial, and exit; exit at once when the zygote closes the channel.

    One that may be reused is then kept for further attempts.

    All that can be done before the message comes is done before, since a slot waits for what is done after. The stop
    signal must be blocked until here, so that one that comes early waits until the trainable is called.
    """
    os.setsid()
    current = reporting.current = Session()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(STOP_SIGNAL, current.tell)
    # Python's own generators are reseeded by fork; NumPy's global one is not, and would give all trials the same numbers.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    received = channel.receive()
    if received is None:
        os._exit(0)
    message, fds = received
    if message.get("reuse"):
        from mqtune.trainable.process.reuse import run_attempts  # noqa: PLC0415

        run_attempts(channel, load, code_root, message, fds)
    channel.close()
    take_over_output(message["stdout"], message["stderr"])
    current.open(message, fds)
    code = 1
    try:
        code = run_attempt(load, message, current)
    finally:
        os._exit(code)


def arguments(role: str, fd: int, spec: TrainableSpec, code_root: Path, manifest: Path | None = None) -> list[str]:
    """Return the command line by which this process starts a zygote (``fork`` or ``spawn``) or a ``spare``."""
    return [
        sys.executable,
        "-m",
        "mqtune.trainable.process.zygote",
        role,
        str(os.getpid()),
        str(fd),
        spec.name,
        spec.module,
        spec.script,
        spec.kind,
        str(code_root),
        str(manifest or ""),
    ]


def main(argv: list[str]) -> None:
    """Run as a zygote or a spare on an inherited channel."""
    role, parent, fd, name, module, script, kind, root, manifest = argv
    # It came here by inheritance, and must not go on to children, who would hold it open.
    os.set_inheritable(int(fd), False)
    channel = Channel.of_fd(int(fd))
    spec, code_root = TrainableSpec(name, module, script, cast(Kind, kind)), Path(root)
    code = Path(manifest) if manifest else None
    if code is not None:
        freeze(code, is_run=spec.kind == "script")
    shape_output()
    if role == "spare":
        die_with_parent(int(parent))
        signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL})
        run_spare(channel, lambda: spec.load(code_root), code_root)
    # While user code is imported nothing watches the channel; afterwards a dead worker is seen there, and what the
    # trial started can be killed, which a signal that kills the zygote would leave alive.
    die_with_parent(int(parent))
    become_subreaper()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Libraries whose native threads survive a fork in good order (BLAS) are no reason to warn on each trial.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
    Zygote(channel, spec, code_root, code, fork=role == "fork").run()


if __name__ == "__main__":
    main(sys.argv[1:])
