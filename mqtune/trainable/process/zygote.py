"""The zygote of one slot.

It is forked from an importer, has never touched a device, and forks trials in a millisecond.

It runs one trial at a time, and keeps one *spare*: a process that has executed the program, and waits for its start
message. It is forked while the trial before it runs, so no slot waits. The zygote is the trial's parent and subreaper:
orphans of the trial come to it and are killed.

User code may have run in its importer, and have set any signal's handler. So the zygote relies on no signal: all are
blocked, and the end of a trial is seen by its pidfd.

Messages from the worker:

- ``start``, with the ends of the pipes. While the trial before is still ending, it waits.
- ``signal``, with the process id of a trial: send it, or its group, a signal. It is used where there are no pidfds.

Messages to the worker:

- ``started``, with the process id and a pidfd, where the system has these.
- ``ended``, when the trial's process group and all descendants that left it are gone; ``sweeping``, now and then, while
  that takes long.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FrameType
from typing import ClassVar, Final, NamedTuple, NoReturn

from mqtune.trainable.frozen_code import times_of
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.descendants import (
    die_with_parent,
    own_children,
    pidfd_of,
    reap,
    signal_group,
    signal_process,
)
from mqtune.trainable.process.life import Executed, Life
from mqtune.trainable.process.program import Program
from mqtune.trainable.process.protocol import STOP_SIGNAL, Message
from mqtune.trainable.process.signals import change_mask

#: How often it is checked whether a killed process group is gone. Most are gone at the first check; a device driver or a
#: disk may hold one for minutes.
_SWEEP_POLL_S: Final = 0.001
_LONGEST_SWEEP_POLL_S: Final = 0.1
#: How often the worker is told that a trial's processes are not gone yet.
_SWEEPING_S: Final = 1.0
#: How often dead orphans of a running trial are reaped.
_REAP_MS: Final = 1_000
#: How often it is checked whether a trial's process has ended, where the kernel has no pidfd (macOS).
_LOOK_MS: Final = 20
#: How long after a trial's start the next spare is forked: the two should not compete for the cores.
_SPARE_DELAY_MS: Final = 2
#: How long a process that waits for a message may take to clean up when it has to exit: the worker waits for it.
_LEAVE_S: Final = 1.0


class Child(NamedTuple):
    """A process that waits for its next message, or runs a trial."""

    pid: int
    channel: Channel
    pidfd: int | None = None
    #: The files that it may have read before its start message, with their times of change.
    data: Sequence[tuple[str, int]] = ()

    @property
    def has_ended(self) -> bool:
        """Whether it is dead; it keeps its number until it is reaped."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            # A thread of the user's module has reaped it.
            return True

    def let_end(self, patience_s: float = _LEAVE_S) -> None:
        """Have it exit while it waits for a message, and wait for that, but not for long."""
        self.channel.end()
        over_at = time.monotonic() + patience_s
        while not self.has_ended and time.monotonic() < over_at:
            time.sleep(_SWEEP_POLL_S)

    def end(self) -> int | None:
        """Kill and reap it, with its group.

        Return its wait status, None if a thread of the user's module has taken it.
        """
        # Its id is still reserved, so no other group is hit.
        signal_process(self.pid, signal.SIGKILL, group=True)
        try:
            return os.waitpid(self.pid, 0)[1]
        except ChildProcessError:
            return None

    def close(self) -> None:
        """Close the channel to it and its pidfd; if it waits, it exits."""
        self.channel.close()
        if self.pidfd is not None:
            os.close(self.pidfd)


class Signals(NamedTuple):
    """The signals that trials find blocked, and the handler of SIGCHLD, as imports have left them."""

    mask: set[int]
    on_child: Callable[[int, FrameType | None], object] | int | None

    @classmethod
    def block(cls) -> Signals:
        """Block all signals, with or without handlers.

        Return those and the handler that trials get back.
        """
        on_child = signal.getsignal(signal.SIGCHLD)
        # If it were ignored, the kernel would reap the children.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The stop signal is blocked in each spare until the trial has its handler.
        return cls({*signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()), STOP_SIGNAL}, on_child)

    def put_back(self) -> None:
        """Have this process handle signals as the imports have left them."""
        if self.on_child is not None:
            signal.signal(signal.SIGCHLD, self.on_child)
        change_mask(signal.SIG_SETMASK, self.mask)


class Zygote:
    """Makes the trial processes of one slot, and reaps them.

    A service may derive from it (``Program.zygote``).

    Args:
        channel: to the worker.
        program: the program that trials execute.
        executed: the program as the importer has executed it; None if each process executes it.
        signals: how trials find them.
        spawn: returns the command that starts a spare on a descriptor of its channel; None to fork spares.
        is_ahead: whether spares execute the program before their start message.
        data: the files that the program reads.
    """

    #: The life of its processes.
    life: ClassVar[type[Life]] = Life

    def __init__(
        self,
        channel: Channel,
        program: Program,
        executed: Executed | None,
        signals: Signals,
        *,
        spawn: Callable[[int], list[str]] | None,
        is_ahead: bool,
        data: Sequence[str],
    ) -> None:
        self.channel = channel
        self._program = program
        self._executed = executed
        self._signals = signals
        self._spawn = spawn
        self._is_ahead = is_ahead
        self._data = data
        self.spare: Child | None = None
        #: The trial's process.
        self.process: Child | None = None
        #: A start message that came while the trial before it was still ending.
        self._next: tuple[Message, Sequence[int]] | None = None
        self.poll = select.poll()

    def run(self) -> None:
        """Serve the worker until it closes the channel or dies; no process is left."""
        self.poll.register(self.channel.fileno(), select.POLLIN)
        self.spare = self._make_process()
        while self._serve():
            pass
        self.close()

    def _serve(self) -> bool:
        """Wait for one event and handle it; return False when the worker is gone."""
        ready = {fd for fd, _ in self.poll.poll(self._patience_ms)}
        process = self.process
        # One at a time, since each may close the descriptor of the next; in the order in which they can have happened:
        # the worker's message, a message of the process, its end.
        if self.channel.fileno() in ready:
            if (received := self.channel.receive()) is None:
                return False
            self.handle(*received)
        elif self.hear(ready):
            pass
        elif process is not None and (ready or process.pidfd is None) and process.has_ended:
            self.finish(process)
        elif self.spare is None:
            self.spare = self._make_process()
        elif not ready:
            for child in self._find_orphans():
                reap(child)
        return True

    def hear(self, ready: Collection[int]) -> bool:
        """Handle a message that a process has sent, and return whether there was one.

        The kernel's send none.
        """
        return False

    @property
    def _patience_ms(self) -> int | None:
        if self.spare is None:
            return _SPARE_DELAY_MS
        if self.process is None:
            return None
        return _LOOK_MS if self.process.pidfd is None else _REAP_MS

    def _make_process(self) -> Child:
        """Return a new process that waits for its start message."""
        data = times_of(self._data)
        if self._spawn is None:
            child = fork_child(self._become_spare)
            assert child is not None  # noqa: S101 - a spare does not return
        else:
            begin = {"do": "begin", "program": self._program.encode(), "ahead": self._is_ahead}
            child = spawn_child(self._spawn, begin, self._signals.mask)
        return child._replace(pidfd=pidfd_of(child.pid), data=data)

    def _become_spare(self, zygote: int, channel: Channel) -> NoReturn:
        try:
            self._signals.put_back()
            self.forget()
            die_with_parent(zygote)
            self.life(channel, self._program, self._executed).run(ahead=self._is_ahead)
        except BaseException:  # noqa: BLE001 - no error of a trial may make it a zygote
            os._exit(1)

    def forget(self) -> None:
        """Close the zygote's descriptors in a fork. Open ones would hide the end of their other side."""
        self.channel.close()
        if self.process is not None:
            self.process.close()
        for fd in self._next[1] if self._next is not None else ():
            os.close(fd)

    def handle(self, message: Message, fds: Sequence[int]) -> None:
        """Carry out a message of the worker."""
        match message["do"]:
            case "start" if self.process is None:
                self.start(message, fds)
            case "start":
                self._next = message, fds
            case "signal" if self.runs(message["pid"]):
                signal_process(message["pid"], message["signal"], group=message["group"])

    def start(self, message: Message, fds: Sequence[int]) -> None:
        """Start a trial."""
        process = self.process = self.take_process()
        if process.pidfd is not None:
            self.poll.register(process.pidfd, select.POLLIN)
        # First, so that the worker knows which process to kill if this one dies while the trial is running already.
        self.channel.send({"is": "started", "pid": process.pid}, [] if process.pidfd is None else [process.pidfd])
        process.channel.send(message, fds)
        for fd in fds:
            os.close(fd)

    def take_process(self) -> Child:
        """Return the process that gets the next start message."""
        spare = self.spare
        # Killed by a person, or by the system for memory: that is no trial's failure. Or it has read an older file.
        if spare is not None and (spare.has_ended or times_of(self._data) != spare.data):
            self._drop_spare()
            spare = None
        self.spare = None
        return spare or self._make_process()

    def runs(self, pid: int) -> bool:
        """Whether a trial runs in this process: a signal for a trial that has ended must not hit the next."""
        # A process that is not reaped yet keeps its id, so no other process is hit either.
        return self.process is not None and self.process.pid == pid

    def finish(self, process: Child) -> None:
        """Kill and reap an ended process's descendants, tell the worker, and make the next spare."""
        self.end_trial(status=self.remove(process))
        if self.spare is None:
            self.spare = self._make_process()

    def remove(self, process: Child) -> int | None:
        """Kill and reap a process and its descendants; return its wait status."""
        status = process.end()
        self.process = None
        self._sweep(process.pid)
        for fd in (process.channel.fileno(), process.pidfd):
            with contextlib.suppress(KeyError):
                if fd is not None:
                    self.poll.unregister(fd)
        process.close()
        return status

    def end_trial(self, **how: object) -> None:
        """Say how a trial has ended, and start the next one if it has come."""
        self.channel.send({"is": "ended", **how})
        if self._next is not None:
            waiting, self._next = self._next, None
            self.start(*waiting)

    def _drop_spare(self) -> None:
        if self.spare is not None:
            spare, self.spare = self.spare, None
            # It has exit handlers, which delete temporary folders.
            spare.let_end()
            spare.end()
            spare.close()

    def children(self) -> list[Child]:
        """Return the processes that it has made and not reaped."""
        return [child for child in (self.spare, self.process) if child is not None]

    def _find_orphans(self) -> list[int]:
        """Return the orphans of trials that have come to this process."""
        kept = {child.pid for child in self.children()}
        return [child for child in own_children() if child not in kept]

    def _sweep(self, group: int) -> None:
        """Kill every orphan that comes to this process, until the process group is gone."""
        pause_s, say_at = _SWEEP_POLL_S, time.monotonic() + _SWEEPING_S
        while True:
            orphans = self._find_orphans()
            for child in orphans:
                signal_process(child, signal.SIGKILL)
                reap(child)
            if not orphans and not signal_group(group, 0):
                return
            if time.monotonic() >= say_at:
                self.channel.send({"is": "sweeping"})
                pause_s, say_at = _LONGEST_SWEEP_POLL_S, time.monotonic() + _SWEEPING_S
            time.sleep(pause_s)

    def close(self) -> None:
        """End all processes."""
        if self.process is not None:
            self.remove(self.process)
        self._drop_spare()


def fork_child(become: Callable[[int, Channel], None]) -> Child | None:
    """Fork this process, and return the child.

    In the child call *become* with its parent and its channel.
    """
    ours, theirs = Channel.pair()
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        # Open in the child too, its end would never be seen.
        ours.close()
        become(me, theirs)
        return None
    theirs.close()
    return Child(pid, ours)


def spawn_child(command: Callable[[int], list[str]], begin: Mapping[str, object], mask: Collection[int] = ()) -> Child:
    """Start an interpreter, by its command for a channel, with its first message and its blocked signals."""
    ours, theirs = Channel.pair()
    os.set_inheritable(theirs.fileno(), True)
    pid = os.posix_spawn(sys.executable, command(theirs.fileno()), os.environ, setsigmask=mask)
    theirs.close()
    ours.send(begin)
    return Child(pid, ours)


def zygote_class(program: Program) -> type[Zygote]:
    """Return the class of a program's zygotes: the one that it names, or the kernel's."""
    module, _, name = program.zygote.partition(":")
    return getattr(importlib.import_module(module), name) if module else Zygote
