"""The zygote of one slot: it forks the slot's trials, and runs one at a time.

It is a fork of an importer, and has never used a device. To fork a trial takes a millisecond.

While a trial runs, the zygote makes a *spare*: a process that executes the program and then waits for the next start
message. So no slot waits for the program. The zygote is the parent and the subreaper of its trials: it adopts their
orphans and kills them.

User code in the importer may have set a handler of any signal. So the zygote blocks all signals and relies on none. It
notices the end of a trial by its pidfd.

Messages from the worker:

- ``start``, with the ends of the trial's pipes: run this trial. While the previous trial is still ending, the message
  waits.
- ``signal``: send this signal to the trial with this process id, or to its process group. Used where there are no
  pidfds.

Messages to the worker:

- ``started``: the trial's process id, and its pidfd where the system has pidfds.
- ``ended``: all processes of the trial are gone, also those that had left its process group.
- ``sweeping``, once a second until then, if they need long to end.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
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

#: The Python code of an importer, and of a scout or spare that is a new interpreter. It first removes the worker's
#: folder from ``sys.path``: a folder named mqtune there would hide the installed package. Python's option -P has the
#: same effect, but would also show in a script that runs here.
_COMMAND: Final = """\
import sys
sys.flags.safe_path or sys.path.pop(0)
from mqtune.trainable.process.importer import main
main(sys.argv[1:])
"""
#: How often to check whether a killed process group is gone, at first and after a second. Most are gone at the first
#: check, but a device driver or a disk may block a process for minutes.
_SWEEP_POLL_S: Final = 0.001
_LONGEST_SWEEP_POLL_S: Final = 0.1
#: How often the worker is told that some of a trial's processes still exist.
_SWEEPING_S: Final = 1.0
#: How often dead orphans of a running trial are reaped.
_REAP_MS: Final = 1_000
#: How often to check whether a trial's process has ended, where the kernel has no pidfds (macOS).
_CHECK_MS: Final = 20
#: How long after a trial's start or end the next spare is forked. So it doesn't compete with the trial's start for the
#: cores.
_SPARE_DELAY_MS: Final = 2
#: As ``signal.pthread_sigmask``, which makes an enumeration member for each signal of the previous mask. Each trial
#: would wait for that.
_set_mask: Final[Callable[[int, Iterable[int]], object]] = importlib.import_module("_signal").pthread_sigmask
#: How long an unneeded process may clean up before it is killed. The worker waits meanwhile.
_LEAVE_S: Final = 1.0


class Child(NamedTuple):
    """A process that waits for a message or runs a trial."""

    pid: int
    channel: Channel
    pidfd: int | None = None
    #: The program's data files, with their modification times when the process was made.
    data: Sequence[tuple[str, int]] = ()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended. It keeps its process id until it is reaped."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            # A thread of user code has reaped it.
            return True

    def let_end(self, patience_s: float = _LEAVE_S) -> None:
        """Ask the waiting process to exit, and wait for that at most *patience_s* seconds."""
        self.channel.end()
        over_at = time.monotonic() + patience_s
        while not self.has_ended and time.monotonic() < over_at:
            time.sleep(_SWEEP_POLL_S)

    def end(self) -> int | None:
        """Kill the process and its group, and reap it.

        Return its wait status, or None if a thread of user code has reaped it.
        """
        # It is not reaped, so no other group can have its id.
        signal_process(self.pid, signal.SIGKILL, group=True)
        try:
            return os.waitpid(self.pid, 0)[1]
        except ChildProcessError:
            return None

    def dismiss(self, patience_s: float = _LEAVE_S) -> None:
        """End the waiting process. Its exit handlers run first, for at most *patience_s* seconds."""
        self.let_end(patience_s)
        self.end()
        self.close()

    def close(self) -> None:
        """Close its channel and its pidfd. A waiting process then exits."""
        self.channel.close()
        if self.pidfd is not None:
            os.close(self.pidfd)


class Signals(NamedTuple):
    """The signal mask and the SIGCHLD handler of trials, as the program's imports have left them."""

    mask: set[int]
    on_child: Callable[[int, FrameType | None], object] | int | None

    @classmethod
    def block(cls) -> Signals:
        """Block all signals in this process, and return the mask and the handler for trials."""
        on_child = signal.getsignal(signal.SIGCHLD)
        # If SIGCHLD were ignored, the kernel would reap the children.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A trial unblocks the stop signal when it has a handler for it.
        return cls({*signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()), STOP_SIGNAL}, on_child)

    def restore(self) -> None:
        """Restore the mask and the handler in a trial's process."""
        if self.on_child is not None:
            signal.signal(signal.SIGCHLD, self.on_child)
        _set_mask(signal.SIG_SETMASK, self.mask)


class Zygote:
    """Makes the trial processes of one slot, and reaps them.

    A service may subclass it, and name the class in ``Program.zygote``.

    Args:
        channel: to the worker.
        executed: the program as the importer has executed it. None if each process executes it.
        signals: the signal mask and the handler for trials.
        is_ahead: whether spares execute the program before their start message.
        data: paths of the data files that the program reads.
    """

    #: The class whose ``run`` each of its processes executes.
    life: ClassVar[type[Life]] = Life

    def __init__(
        self,
        channel: Channel,
        program: Program,
        executed: Executed | None,
        signals: Signals,
        *,
        is_ahead: bool,
        data: Sequence[str],
    ) -> None:
        self.channel = channel
        self._program = program
        self._executed = executed
        self._signals = signals
        self._is_ahead = is_ahead
        self._data = data
        self.spare: Child | None = None
        #: The trial's process.
        self.process: Child | None = None
        #: A start message that came while the previous trial was still ending, with its descriptors.
        self._next: tuple[Message, Sequence[int]] | None = None
        self.poll = select.poll()

    def run(self) -> None:
        """Serve the worker until it closes the channel or dies. Then end all processes."""
        self.poll.register(self.channel.fileno(), select.POLLIN)
        self.spare = self._make_process()
        while self._serve():
            pass
        self.close()

    def _serve(self) -> bool:
        """Wait for one event and handle it. Return False when the worker is gone."""
        ready = {fd for fd, _ in self.poll.poll(self._poll_timeout_ms)}
        process = self.process
        # One event at a time, as each may close the descriptor of the next one. They are handled in the order in which
        # they may have happened: the worker's message, a message of the process, its end.
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
        """Handle a message from a trial's process. Return False if there is no message.

        The kernel's own processes send none, but those of a derived class may.
        """
        return False

    @property
    def _poll_timeout_ms(self) -> int | None:
        if self.spare is None:
            return _SPARE_DELAY_MS
        if self.process is None:
            return None
        return _CHECK_MS if self.process.pidfd is None else _REAP_MS

    def _make_process(self) -> Child:
        """Return a new process that waits for its start message."""
        data = times_of(self._data)
        child = fork_child(self._become_spare)
        assert child is not None  # noqa: S101 - a spare does not return
        if self._program.spawns:
            child.channel.send({"do": "begin", "program": self._program.encode(), "ahead": self._is_ahead})
        return child._replace(pidfd=pidfd_of(child.pid), data=data)

    def _become_spare(self, zygote: int, channel: Channel) -> NoReturn:
        try:
            self._signals.restore()
            self.forget()
            die_with_parent(zygote)
            if self._program.spawns:
                become_interpreter("spare", channel, zygote)
            self.life(channel, self._program, self._executed).run(ahead=self._is_ahead)
        except BaseException:  # noqa: BLE001 - no error of a trial may make it a zygote
            os._exit(1)

    def forget(self) -> None:
        """Close the zygote's descriptors in a fork. Open copies would hide when the zygote closes them."""
        self.channel.close()
        if self.process is not None:
            self.process.close()
        for fd in self._next[1] if self._next is not None else ():
            os.close(fd)

    def handle(self, message: Message, fds: Sequence[int]) -> None:
        """Carry out a message from the worker."""
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
        # Sent before the trial starts: if the zygote dies, the worker then knows which process to kill.
        self.channel.send({"is": "started", "pid": process.pid}, [] if process.pidfd is None else [process.pidfd])
        process.channel.send(message, fds)
        for fd in fds:
            os.close(fd)

    def take_process(self) -> Child:
        """Return the process for the next trial: the spare, or a new one. It is not the spare any more."""
        spare = self.spare
        # A person, or the system for lack of memory, may have killed the spare. That should not fail a trial. Or the
        # spare has read an older version of a data file.
        if spare is not None and (spare.has_ended or times_of(self._data) != spare.data):
            self._drop_spare()
            spare = None
        self.spare = None
        return spare or self._make_process()

    def runs(self, pid: int) -> bool:
        """Whether the process with this id runs the current trial, and not an ended one."""
        # No other process can have the id, as it is not reaped yet.
        return self.process is not None and self.process.pid == pid

    def finish(self, process: Child) -> None:
        """End the trial of a process that has exited."""
        self.end_trial(status=self.remove(process))

    def remove(self, process: Child) -> int | None:
        """Kill and reap a process and its descendants. Return its wait status."""
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
        """Tell the worker how a trial has ended. Start the next trial if its start message has come."""
        self.channel.send({"is": "ended", **how})
        if self._next is not None:
            waiting, self._next = self._next, None
            self.start(*waiting)

    def _drop_spare(self) -> None:
        if self.spare is not None:
            spare, self.spare = self.spare, None
            # Its exit handlers should run, since they delete temporary folders.
            spare.dismiss()

    def children(self) -> list[Child]:
        """Return the processes that this zygote has made and not reaped."""
        return [child for child in (self.spare, self.process) if child is not None]

    def _find_orphans(self) -> list[int]:
        """Return the process ids of the trials' orphans that this process has adopted."""
        kept = {child.pid for child in self.children()}
        return [child for child in own_children() if child not in kept]

    def _sweep(self, group: int) -> None:
        """Kill the adopted orphans, until no process of the trial's process group is left."""
        pause_s, message_at = _SWEEP_POLL_S, time.monotonic() + _SWEEPING_S
        while True:
            orphans = self._find_orphans()
            for child in orphans:
                signal_process(child, signal.SIGKILL)
                reap(child)
            if not orphans and not signal_group(group, 0):
                return
            if time.monotonic() >= message_at:
                self.channel.send({"is": "sweeping"})
                pause_s, message_at = _LONGEST_SWEEP_POLL_S, time.monotonic() + _SWEEPING_S
            time.sleep(pause_s)

    def close(self) -> None:
        """End all processes of this zygote."""
        if self.process is not None:
            self.remove(self.process)
        self._drop_spare()


def fork_child(become: Callable[[int, Channel], None]) -> Child | None:
    """Fork this process, and return the child.

    The child calls *become* with its parent's process id and its end of a channel. If that returns, so does this call,
    with None.
    """
    ours, theirs = Channel.pair()
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        # An open copy in the child would hide when the parent closes its end.
        ours.close()
        become(me, theirs)
        return None
    theirs.close()
    return Child(pid, ours)


def command(role: str, fd: int, parent: int | None = None) -> list[str]:
    """Return the command line of an importer, a scout or a spare.

    It gets its first message on the channel with the descriptor *fd*, and ends with the process *parent*, by default
    this one.
    """
    return [sys.executable, "-c", _COMMAND, role, str(parent or os.getpid()), str(fd)]


def become_interpreter(role: str, channel: Channel, parent: int) -> NoReturn:
    """Replace this fork by a new interpreter, which takes over its channel. See ``command``."""
    os.set_inheritable(channel.fileno(), True)
    os.execv(sys.executable, command(role, channel.fileno(), parent))  # noqa: S606 - it is this interpreter


def zygote_class(program: Program) -> type[Zygote]:
    """Return the class of a program's zygotes: ``Program.zygote``, or else the kernel's."""
    module, _, name = program.zygote.partition(":")
    return getattr(importlib.import_module(module), name) if module else Zygote
