"""The zygote of one slot: has imported the trainable's module, never touched a device, and makes a trial in a millisecond.

A worker starts it as ``python -m mqtune.trainable.zygote`` with one end of a channel. It keeps one *spare*: a process
that waits for its start message, forked while the trial before it runs, so that no slot waits for a fork. It is
the parent and the subreaper of the trial, so that whatever the trial leaves behind comes to it and is killed. It runs
one trial at a time. A process that may be reused stays behind its trial, if nothing else of that is left, and is given the
next one (see ``mqtune.trainable.reuse``).

From the worker: ``start`` (with the ends of the pipes; it may come while the trial before is on its way out, and then waits
until that is gone), with the trial's process id ``tell``, ``terminate`` and ``kill``, and ``drop``, for a process that waits
for reuse.
To the worker: ``ready`` (with the files of the user's code, and the versions of everything) or ``broken``, then for each
trial ``started`` (with a pidfd, where there are any) and ``ended`` (sent when its process group, and every descendant that
left it, is gone, but for a process that stays). An ``ended`` without a status means that a process would not be reused: the
trial's next ``started`` follows.
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
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

# What trials call is imported here once, and not in each of them.
import mqtune.trainable.reporting  # noqa: F401
from mqtune.errors import TrainableNotFound
from mqtune.trainable.channel import Channel
from mqtune.trainable.code_files import loaded_files
from mqtune.trainable.descendants import group_exists, has_descendants, own_children
from mqtune.trainable.ending import describe_error
from mqtune.trainable.environment import describe_environment
from mqtune.trainable.output import shape_output
from mqtune.trainable.process import become_subreaper, die_with_parent, run_spare
from mqtune.trainable.session import STOP_SIGNAL
from mqtune.trainable.spec import Kind, Loaded, TrainableSpec, extras_of

__all__ = ["Zygote", "arguments", "main"]

#: How often a killed process group that is not gone yet is looked at; most are gone at the first look.
_SWEEP_POLL_S: Final = 0.001
#: How long after a trial's start the next spare is forked: the start itself should have the cores for itself.
_SPARE_DELAY_MS: Final = 2
#: How long a process that waits for reuse may take to clean up once it has to go: the worker waits for it.
_LEAVE_S: Final = 1.0


class _Process(NamedTuple):
    """A process that waits for its start message, or has had it."""

    pid: int
    channel: Channel
    pidfd: int | None

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
        fork: whether spares are forked from here, else they start as processes of their own.
    """

    def __init__(self, channel: Channel, spec: TrainableSpec, code_root: Path, *, fork: bool) -> None:
        self._channel = channel
        self._spec = spec
        self._code_root = code_root
        self._fork = fork
        self._trainable: Loaded | None = None
        self._before = frozenset(sys.modules)
        self._spare: _Process | None = None
        self._trial: int | None = None
        #: The trial's process, if it may be reused; or, once its trial has ended, the same process, which waits.
        self._reusable: _Process | None = None
        self._waits = False
        #: What a process that waited was given, and has not taken yet.
        self._given: tuple[dict[str, Any], list[int]] | None = None
        #: A start that came while the trial before it was on its way out.
        self._next: tuple[dict[str, Any], list[int]] | None = None
        self._poll = select.poll()
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Blocked here, it is blocked in each spare until the trial has its handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL})

    def run(self) -> None:
        """Serve the worker until it closes the channel or dies; leaves no process behind."""
        if not self._prepare():
            return
        die_with_parent(os.getppid(), 0)
        poll = self._poll
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        self._make_spare()
        script = self._trainable if isinstance(self._trainable, Path) else None
        files = loaded_files(self._code_root, script)
        imported = [name for name in sys.modules if name not in self._before]
        environment = describe_environment(imported, [path for path, _ in files])
        self._channel.send({"is": "ready", "files": files, "environment": environment})
        while True:
            ready = poll.poll(_SPARE_DELAY_MS if self._spare is None else None)
            if not ready:
                self._make_spare()
            for fd, _ in ready:
                if fd == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 4096)
                    self._bury()
                    # That may have closed what comes next.
                    break
                if fd != self._channel.fileno():
                    self._attend()
                elif not self._obey():
                    self._kill_all()
                    return

    def _prepare(self) -> bool:
        """Import the trainable and say so if that fails."""
        if not self._fork:
            return True
        try:
            self._trainable = self._spec.load(self._code_root)
            if self._spec.kind == "function":
                # Looked up here once, and not by each trial.
                extras_of(self._trainable)
        except BaseException as error:  # noqa: BLE001 - user code runs on import
            text = str(error) if isinstance(error, TrainableNotFound) else describe_error(error)
            self._channel.send({"is": "broken", "error_type": type(error).__name__, "error": text})
            return False
        # A trial that saves or loads a dict would take longer to import this than for all else until its first report.
        from mqtune.checkpoints import checkpoint, dicts  # noqa: F401, PLC0415

        if threading.active_count() > 1:
            # A lock that one of these threads holds would stay held for ever in a forked child.
            self._fork = False
        # Collections in a child would otherwise touch, and so copy, everything that was imported.
        gc.collect()
        gc.freeze()
        return True

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
            pid = os.posix_spawn(
                sys.executable, arguments("spare", theirs.fileno(), self._spec, self._code_root), os.environ
            )
        theirs.close()
        # Opened while the process can't have been reaped, it can never mean another one.
        self._spare = _Process(pid, ours, os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None)

    def _become_spare(self, zygote: int, channel: Channel) -> None:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._channel.close()
            os.close(self._wake_read)
            if self._reusable is not None:
                self._reusable.let_go()
            self._forget_given()
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
            case "start" if self._trial is None:
                self._start(message, fds)
            case "start":
                self._next = message, fds
            case "tell":
                self._signal(message["pid"], STOP_SIGNAL, group=False)
            case "terminate":
                self._signal(message["pid"], signal.SIGTERM, group=True)
            case "kill":
                self._signal(message["pid"], signal.SIGKILL, group=True)
            case "drop":
                self._drop_waiting()
        return True

    def _start(self, message: dict[str, Any], fds: list[int]) -> None:
        if self._reusable is not None:
            process, self._waits = self._reusable, False
            self._given = message, fds
        else:
            if self._spare is None:
                self._make_spare()
            assert self._spare is not None  # noqa: S101 - just made
            process, self._spare = self._spare, None
            if message.get("reuse"):
                self._reusable = process
        self._trial = process.pid
        # First, so that the worker knows whom to bury should this process be killed while the trial is running already.
        self._channel.send({"is": "started", "pid": process.pid}, [] if process.pidfd is None else [process.pidfd])
        process.channel.send(message, fds)
        if self._reusable is None:
            process.channel.close()
        else:
            self._poll.register(process.channel.fileno(), select.POLLIN)
        if self._given is None:
            for fd in fds:
                os.close(fd)
        if self._reusable is None and process.pidfd is not None:
            os.close(process.pidfd)

    def _attend(self) -> bool:
        """Hear a process that may be reused; False when it has nothing more to say."""
        process = self._reusable
        assert process is not None  # noqa: S101 - its channel is polled
        received = process.channel.receive()
        match None if received is None else received[0]["is"]:
            case "done":
                others = [] if self._spare is None else [self._spare.pid]
                process.channel.send({"keep": not has_descendants(process.pid, others)})
            case "taken":
                self._forget_given()
            case "kept":
                self._look_away(process)
                self._trial, self._waits = None, True
                self._end_trial(0)
            case None:
                # It is about to die.
                self._look_away(process)
        return received is not None

    def _look_away(self, process: _Process) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(process.channel.fileno())

    def _forget_given(self) -> None:
        if self._given is not None:
            for fd in self._given[1]:
                os.close(fd)
            self._given = None

    def _signal(self, pid: int, number: signal.Signals, *, group: bool) -> None:
        # What is meant for a trial that has ended must not hit the next. One that is not reaped yet keeps its number, so
        # this can't hit another process either.
        if pid != self._trial:
            return
        if group:
            # No other process needs to take what this one was to end.
            self._forget_given()
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(pid, number)
                return
        # A process that has just been started may not have made its group yet.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def _bury(self) -> None:
        """When the trial's leader has died, kill what it left, reap everything, tell the worker and make the next spare."""
        pid = self._trial if self._reusable is None else self._reusable.pid
        if pid is None or not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        # It may have said, just before, that it takes what it was given, or that it waits.
        while (
            self._reusable is not None and not self._waits and _is_readable(self._reusable.channel) and self._attend()
        ):
            pass
        waited, reusable = self._waits, self._reusable
        # Its number is still reserved, so this can't hit another group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        self._trial, self._reusable, self._waits = None, None, False
        self._sweep(pid)
        if reusable is not None:
            self._look_away(reusable)
            reusable.let_go()
        if self._given is not None:
            given, self._given = self._given, None
            self._channel.send({"is": "ended", "status": None})
            self._start(*given)
        elif not waited:
            self._end_trial(status)
        if self._spare is None:
            self._make_spare()

    def _end_trial(self, status: int) -> None:
        self._channel.send({"is": "ended", "status": status})
        if self._next is not None:
            waiting, self._next = self._next, None
            self._start(*waiting)

    def _drop_waiting(self) -> None:
        """Have a process that waits for reuse clean up and end; when it takes too long, kill it."""
        if self._reusable is None or not self._waits:
            return
        process, self._reusable, self._waits = self._reusable, None, False
        process.let_go()
        over_at = time.monotonic() + _LEAVE_S
        while not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) and time.monotonic() < over_at:
            select.select([], [], [], _SWEEP_POLL_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        self._sweep(process.pid)

    def _sweep(self, group: int) -> None:
        """Wait until the group is gone, killing every descendant that has come to this process."""
        spare = self._spare.pid if self._spare else None
        while True:
            orphans = [child for child in own_children() if child != spare]
            for child in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)
            if not orphans and not group_exists(group):
                return
            select.select([], [], [], _SWEEP_POLL_S)

    def _kill_all(self) -> None:
        if self._trial is not None:
            self._signal(self._trial, signal.SIGKILL, group=True)
            self._sweep(self._trial)
        self._drop_waiting()
        if self._spare is not None:
            # Nobody else would wait for it.
            os.kill(self._spare.pid, signal.SIGKILL)
            os.waitpid(self._spare.pid, 0)


def _is_readable(channel: Channel) -> bool:
    return bool(select.select([channel.fileno()], [], [], 0)[0])


def arguments(role: str, fd: int, spec: TrainableSpec, code_root: Path) -> list[str]:
    """Return the command line by which this process starts a zygote (``fork`` or ``spawn``) or a ``spare``."""
    return [
        sys.executable,
        "-m",
        "mqtune.trainable.zygote",
        role,
        str(os.getpid()),
        str(fd),
        spec.name,
        spec.module,
        spec.script,
        spec.kind,
        str(code_root),
    ]


def main(argv: list[str]) -> None:
    """Run as a zygote or a spare on an inherited channel."""
    role, parent, fd, name, module, script, kind, root = argv
    # It came here by inheritance, and must not go on to children, who would hold it open.
    os.set_inheritable(int(fd), False)
    channel = Channel.of_fd(int(fd))
    spec, code_root = TrainableSpec(name, module, script, cast(Kind, kind)), Path(root)
    shape_output()
    if role == "spare":
        die_with_parent(int(parent))
        signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL})
        run_spare(channel, lambda: spec.load(code_root), code_root)
    # While user code is imported nothing watches the channel; afterwards a dead worker is seen there, and what the
    # trial started can be killed, which a signal that kills the zygote would leave alive.
    die_with_parent(int(parent), signal.SIGTERM)
    become_subreaper()
    # Libraries whose native threads survive a fork in good order (BLAS) are no reason to warn on each trial.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
    Zygote(channel, spec, code_root, fork=role == "fork").run()


if __name__ == "__main__":
    main(sys.argv[1:])
