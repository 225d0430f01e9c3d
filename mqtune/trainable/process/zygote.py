"""The zygote of one slot: forked from an importer, it has never touched a device, and forks trials in a millisecond.

It runs one trial at a time, and keeps one *spare*: a process that has made its working folder, has executed the program, and waits
for its start message. It is forked while the trial before it runs, so that no slot waits. The zygote is the trial's parent and
subreaper: orphans of the trial come to it and are killed. A process that may be reused stays after its trial, if no process that it
has started is left, and gets the next one (``mqtune.trainable.process.life``).

User code may have run in its importer, and have set any signal's handler. So the zygote relies on no signal: all are blocked, and
the end of a trial is seen by its pidfd.

Messages from the worker:

- ``start``, with the ends of the pipes; while the trial before is still ending it waits until that is gone.
- ``tell`` and ``end``, with the process id of a trial: signal it that there is something to read; send its group a signal.
- ``drop``: end a process that waits for reuse, if there is one.

Messages to the worker:

- ``started``, with the process id and a pidfd, where the system has these.
- ``ended``, when the trial's process group and all descendants that left it are gone, but for a process that stays;
  ``sweeping``, now and then, while that takes long.
- ``dropped``: no process waits any more.
- ``again``: the process refused to be reused, and the trial's next ``started`` follows.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, NoReturn

from mqtune.trainable.frozen_code import times_of
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.descendants import die_with_parent, has_descendants, own_children, signal_group
from mqtune.trainable.process.life import Executed, run_attempts
from mqtune.trainable.process.program import Program
from mqtune.trainable.process.protocol import STOP_SIGNAL, Message
from mqtune.trainable.process.signals import change_mask
from mqtune.trainable.process.working_folder import discard, working_path

#: How often it is checked whether a killed process group is gone: most are gone at the first check; one that a device driver
#: or a disk holds may take minutes.
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
#: The length of a random name: several machines may share the folder.
_PLACE_BYTES: Final = 6


class _Process(NamedTuple):
    """A process that waits for its start message, or has had it."""

    pid: int
    channel: Channel
    pidfd: int | None
    #: The folder of its attempt; None if trials share a folder.
    place: Path | None
    #: The files that it may have read before its start message, with their times of change.
    data: Sequence[tuple[str, int]]

    @property
    def has_ended(self) -> bool:
        """Whether it is dead; it keeps its number until it is reaped."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            # A thread of the user's module has reaped it.
            return True

    def reap(self) -> int | None:
        """Wait for its end and return its wait status; None if a thread of the user's module has taken that."""
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
        """Block all signals, whatever handlers imports have set; return what trials get back."""
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

    Args:
        channel: to the worker.
        program: the program that trials execute.
        executed: what the importer has executed of it; None if each process executes it.
        signals: how trials find them.
        spawn: returns the command that starts a spare on a descriptor of its channel; None if spares are forked from this process.
        is_ahead: whether spares execute the program before their start message.
        data: the files that the program reads.
    """

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
        self._channel = channel
        self._program = program
        self._executed = executed
        self._signals = signals
        self._spawn = spawn
        self._is_ahead = is_ahead
        self._data = data
        self._spare: _Process | None = None
        #: The trial's process; or, once its trial has ended, the same process, which waits to be reused.
        self._process: _Process | None = None
        self._reusable = self._waits = False
        #: What its trials have in common.
        self._definition = b""
        #: What its trial has left that keeps it from running another one; empty for nothing.
        self._left = ""
        #: The start message that a process that waited for reuse has got and not taken yet.
        self._given: tuple[Message, list[int]] | None = None
        #: A start message that came while the trial before it was still ending.
        self._next: tuple[Message, list[int]] | None = None
        self._poll = select.poll()

    def run(self) -> None:
        """Serve the worker until it closes the channel or dies; no process is left."""
        self._poll.register(self._channel.fileno(), select.POLLIN)
        self._spare = self._make_process()
        while self._serve():
            pass

    def _serve(self) -> bool:
        """Wait for one event and handle it; return False when the worker is gone."""
        ready = {fd for fd, _ in self._poll.poll(self._patience_ms)}
        process = self._process
        # One at a time, since each may close the descriptor of the next; in the order in which they can have happened: the
        # worker's message, a message of the process, its end.
        if self._channel.fileno() in ready:
            if not self._handle_message():
                self._kill_all()
                return False
        elif process is not None and self._reusable and process.channel.fileno() in ready:
            self._handle_reusable(process)
        elif process is not None and (ready or process.pidfd is None) and process.has_ended:
            self._finish(process)
        elif self._spare is None:
            self._spare = self._make_process()
        elif not ready:
            for child in self._orphans():
                _reap_if_dead(child)
        return True

    @property
    def _patience_ms(self) -> int | None:
        if self._spare is None:
            return _SPARE_DELAY_MS
        if self._process is None:
            return None
        return _LOOK_MS if self._process.pidfd is None else _REAP_MS

    def _make_process(self) -> _Process:
        """Return a new process that waits for its start message."""
        ours, theirs = Channel.pair()
        place, data = self._new_place(), times_of(self._data)
        if self._spawn is None:
            me = os.getpid()
            pid = os.fork()
            if pid == 0:
                # Open in the child too, its end would never be seen.
                ours.close()
                self._become_spare(me, theirs, place)
        else:
            os.set_inheritable(theirs.fileno(), True)
            command = self._spawn(theirs.fileno())
            pid = os.posix_spawn(sys.executable, command, os.environ, setsigmask=self._signals.mask)
            begin = {
                "do": "begin",
                "program": self._program.encode(),
                "place": str(place or ""),
                "ahead": self._is_ahead,
            }
            ours.send(begin)
        theirs.close()
        pidfd = None
        with contextlib.suppress(ProcessLookupError, AttributeError):
            # Opened while the process can't have been reaped, it can never mean another one.
            pidfd = os.pidfd_open(pid)
        return _Process(pid, ours, pidfd, place, data)

    def _new_place(self) -> Path | None:
        root = self._program.work_root
        return None if root is None else root / secrets.token_hex(_PLACE_BYTES)

    def _become_spare(self, zygote: int, channel: Channel, place: Path | None) -> NoReturn:
        try:
            self._signals.put_back()
            self._channel.close()
            if self._process is not None:
                self._process.close()
            self._forget_given()
            for fd in self._next[1] if self._next is not None else ():
                # The pipes of the next trial: open in the child too, their end would never be seen.
                os.close(fd)
            die_with_parent(zygote)
            run_attempts(channel, self._program, place, self._executed, ahead=self._is_ahead)
        except BaseException:  # noqa: BLE001 - no error of a trial may make it a zygote
            os._exit(1)

    def _handle_message(self) -> bool:
        """Carry out one message of the worker; return False when the channel is closed."""
        received = self._channel.receive()
        if received is None:
            return False
        message, fds = received
        match message["do"]:
            case "start" if self._process is None or self._waits:
                self._start(message, fds)
            case "start":
                self._next = message, fds
            case "tell" if self._is_trial(message["pid"]):
                _kill(message["pid"], STOP_SIGNAL)
            case "end" if self._is_trial(message["pid"]):
                # No other process should take the start message that this one has refused.
                self._forget_given()
                # Otherwise the worker has sent the signal.
                if message["signal"]:
                    _kill_group(message["pid"], message["signal"])
            case "drop":
                self._drop_waiting()
                self._channel.send({"is": "dropped"})
        return True

    def _start(self, message: Message, fds: list[int]) -> None:
        if message["definition"] != self._definition:
            self._drop_waiting()
        if self._process is not None:
            process, self._waits = self._process, False
            place = self._new_place()
            self._given = message, fds
        else:
            process = self._process = self._take_spare()
            place = process.place
            self._reusable, self._definition = message["reuse"], message["definition"]
            if process.pidfd is not None:
                self._poll.register(process.pidfd, select.POLLIN)
        self._show_place(place, message["working_dir"])
        # First, so that the worker knows which process to kill if this one dies while the trial is running already.
        self._channel.send({"is": "started", "pid": process.pid}, [] if process.pidfd is None else [process.pidfd])
        process.channel.send({**message, "place": str(place or "")}, fds)
        if self._reusable:
            self._poll.register(process.channel.fileno(), select.POLLIN)
        if self._given is None:
            for fd in fds:
                os.close(fd)

    def _show_place(self, place: Path | None, working_dir: str) -> None:
        """Let the attempt's working directory, as users know it, be a link to its folder; the worker puts the folder there at the end."""
        if place is None or not working_dir:
            return
        path = Path(working_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(working_path(self._program.home, place))

    def _take_spare(self) -> _Process:
        spare = self._spare
        # Killed by a person, or by the system for memory: that is no trial's failure. Or it has read an older file.
        if spare is not None and (spare.has_ended or times_of(self._data) != spare.data):
            self._drop_spare()
            spare = None
        self._spare = None
        return spare or self._make_process()

    def _handle_reusable(self, process: _Process) -> None:
        """Handle one message of a process that may be reused."""
        received = process.channel.receive()
        match None if received is None else received[0]["is"]:
            case "done":
                others = [] if self._spare is None else [self._spare.pid]
                self._left = received[0]["left"] if received is not None else ""
                if not self._left and has_descendants(process.pid, others):
                    self._left = "it has left processes"
                process.channel.send({"left": self._left})
            case "taken":
                self._forget_given()
            case "kept":
                self._keep(process)
            case None:
                # It is about to exit.
                self._poll.unregister(process.channel.fileno())

    def _keep(self, process: _Process) -> None:
        """Have a process whose trial is over wait for the next one."""
        self._poll.unregister(process.channel.fileno())
        self._waits = True
        self._end_trial(0, stays=True)

    def _forget_given(self) -> None:
        if self._given is not None:
            for fd in self._given[1]:
                os.close(fd)
            self._given = None

    def _is_trial(self, pid: int) -> bool:
        # A signal for a trial that has ended must not hit the next. A process that is not reaped yet keeps its id, so no
        # other process is hit either.
        return self._process is not None and not self._waits and self._process.pid == pid

    def _finish(self, process: _Process) -> None:
        """Kill the descendants of a process that has ended, reap all, tell the worker, and make the next spare."""
        status, waited = self._remove(process), self._waits
        self._waits = False
        if self._given is not None:
            given, self._given = self._given, None
            self._channel.send({"is": "again"})
            self._start(*given)
        elif not waited:
            self._end_trial(status)
        if self._spare is None:
            self._spare = self._make_process()

    def _remove(self, process: _Process) -> int | None:
        """Kill and reap a process and all that it has left; return its wait status."""
        # Its id is still reserved, so no other group is hit.
        _kill_group(process.pid, signal.SIGKILL)
        status = process.reap()
        self._process = None
        self._sweep(process.pid)
        for fd in (process.channel.fileno(), process.pidfd):
            with contextlib.suppress(KeyError):
                if fd is not None:
                    self._poll.unregister(fd)
        process.close()
        return status

    def _end_trial(self, status: int | None, *, stays: bool = False) -> None:
        self._channel.send({"is": "ended", "status": status, "stays": stays, "left": self._left})
        self._left = ""
        if self._next is not None:
            waiting, self._next = self._next, None
            self._start(*waiting)

    def _drop_waiting(self) -> None:
        """End a process that waits for reuse: it may clean up, and is killed if that takes too long."""
        process = self._process
        if process is None or not self._waits:
            return
        self._waits = False
        _let_end(process)
        self._remove(process)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            spare, self._spare = self._spare, None
            # It has exit handlers, which delete temporary folders.
            _let_end(spare)
            _kill_group(spare.pid, signal.SIGKILL)
            spare.reap()
            spare.close()
            if spare.place is not None:
                discard(spare.place)

    def _orphans(self) -> list[int]:
        """Return the orphans of trials that have come to this process."""
        kept = {process.pid for process in (self._spare, self._process) if process is not None}
        return [child for child in own_children() if child not in kept]

    def _sweep(self, group: int) -> None:
        """Kill every orphan that comes to this process, until the process group is gone."""
        pause_s, say_at = _SWEEP_POLL_S, time.monotonic() + _SWEEPING_S
        while True:
            orphans = self._orphans()
            for child in orphans:
                _kill(child, signal.SIGKILL)
                _reap_if_dead(child)
            if not orphans and not signal_group(group, 0):
                return
            if time.monotonic() >= say_at:
                self._channel.send({"is": "sweeping"})
                pause_s, say_at = _LONGEST_SWEEP_POLL_S, time.monotonic() + _SWEEPING_S
            time.sleep(pause_s)

    def _kill_all(self) -> None:
        self._drop_waiting()
        if self._process is not None:
            self._remove(self._process)
        self._drop_spare()


def _let_end(process: _Process) -> None:
    """Have a process that waits for a message exit, and wait for that, but not for long."""
    process.channel.end()
    over_at = time.monotonic() + _LEAVE_S
    while not process.has_ended and time.monotonic() < over_at:
        time.sleep(_SWEEP_POLL_S)


def _reap_if_dead(child: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def _kill_group(pid: int, number: int) -> None:
    """Send a signal to a process and its group."""
    if not signal_group(pid, number):
        # A process that has just been started may not have made its group yet.
        _kill(pid, number)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
