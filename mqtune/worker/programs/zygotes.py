"""The worker's side of zygotes.

It has them run trials, and cleans up all processes of a trial.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from mqtune.core.timing import Timing
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.descendants import signal_group, signal_process
from mqtune.trainable.process.protocol import STOP_SIGNAL, Message, StartMessage
from mqtune.trainable.spec import TrainableSpec
from mqtune.worker.host.processes import reaper

logger = logging.getLogger(__name__)

#: The interval of checks whether a process has exited, on systems without pidfds.
_LOOK_S: Final = 0.01


class ZygoteDied(Exception):
    """The zygote is dead, and its trial with it."""


class ZygoteSilent(ZygoteDied):
    """The zygote did not answer in time, perhaps frozen, and was killed with its trial."""


class Gone(NamedTuple):
    """All processes of a trial have exited, except for a process that stays for further trials.

    Attributes:
        status: the wait status of the trial's process; None when it is unknown.
        again: whether a kept process has refused the trial. It has not begun then, and another process is started for
            it.
    """

    status: int | None
    again: bool = False


class ForkedProcess:
    """A zygote, or a fork of the driver: a process that is not started by ``subprocess``.

    A zygote is a child of its importer, and becomes a child of the worker when the importer dies.
    """

    def __init__(self, pid: int, pidfd: int | None = None) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._has_ended = False
        #: Its exit code, negative for a signal; None while it runs, and if another process has reaped it.
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, as ``subprocess.Popen`` does; see ``returncode``."""
        self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float) -> bool:
        """Wait for its end for at most *timeout* seconds, and return whether it has ended."""
        deadline = time.monotonic() + timeout
        while not self._has_ended:
            left_s = deadline - time.monotonic()
            if self._pidfd is None or is_readable(self._pidfd, left_s):
                self._reap()
            if self._has_ended or left_s <= 0:
                break
            time.sleep(_LOOK_S if self._pidfd is None else 0)
        return self._has_ended

    def _reap(self) -> None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._has_ended = pid == self.pid
            if self._has_ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            # It is no child of this process, or was reaped.
            self._has_ended = self._pidfd is not None or not signal_process(self.pid, 0)

    def kill(self) -> None:
        """Send it SIGKILL; a no-op when it has ended."""
        if not self._has_ended:
            signal_process(self.pid, signal.SIGKILL, pidfd=self._pidfd)

    def close(self) -> None:
        """Close its pidfd. The process must have exited."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


class ZygoteHandle:
    """The worker's handle of a zygote, which forks the processes of trials.

    A service may use a subclass (``ImportKey.handle``). Any thread may call ``tell``, ``terminate``, ``kill``, ``end``
    and ``close``. Only one thread at a time may call the other methods.

    Args:
        environment: the versions of the imported packages.
        channel: the channel to it.
        on_empty: called after the end of a process that the zygote kept, after one attempt, for the slot's next one.
    """

    #: Whether its processes may run several attempts.
    keeps: ClassVar[bool] = False
    #: Whether it may be keeping a process between two attempts now.
    holds = False
    #: The reason, for the journal, why a process that exits without giving one runs no further attempt; empty if no
    #: process ever does.
    retired: ClassVar[str] = ""

    def __init__(
        self,
        spec: TrainableSpec,
        environment: dict[str, Any],
        process: ForkedProcess,
        channel: Channel,
        on_empty: Callable[[], None] = lambda: None,
        timing: Timing = Timing(),
    ) -> None:
        self.timing = timing
        self.spec = spec
        self.environment = environment
        self._trial: int | None = None
        #: The descriptor that is readable once the trial's process has ended, where there are pidfds.
        self.pidfd: int | None = None
        self._telling = threading.Lock()
        self._closing = threading.Lock()
        self._is_ended = self.is_closed = False
        self._process = process
        self.channel = channel
        self.on_empty = on_empty

    def fileno(self) -> int:
        """Return the descriptor that is readable when the zygote has sent a message."""
        return self.channel.fileno()

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    @property
    def is_dead(self) -> bool:
        """Whether its process has ended, or is about to."""
        return self._is_ended or self._process.wait(0.0)

    def send_start(self, message: StartMessage, fds: Sequence[int]) -> None:
        """Tell the zygote to start a trial as soon as the previous trial is gone.

        Another thread may still be waiting for the end of the previous trial.

        Raises:
            ZygoteDied: the zygote is dead, or accepts no messages.
        """
        if not self.channel.send({**message, "do": "start"}, fds):
            # After a message that was sent in part no other can be sent. A thread that still waits for the end of the
            # previous trial gets ZygoteDied.
            self.end()
            if self.is_dead:
                raise self._died()
            raise ZygoteSilent(f"the zygote of {self.spec} took no start message; it may have been frozen")

    def wait_started(self) -> int:
        """Return the id of the trial's process once it is started. The previous trial must be over.

        Raises:
            ZygoteDied: the zygote is dead, or did not answer in time.
        """
        start_s = self.timing.zygote_start_s
        if not is_readable(self.fileno(), start_s):
            self.take_over(f"started no process within {start_s:g} s")
        started, pidfds = self.receive()
        with self._telling:
            self._trial = started["pid"]
            self.pidfd = pidfds[0] if pidfds else None
        return self._trial

    def tell(self, pid: int) -> None:
        """Send the stop signal to the trial *pid*; a no-op once it has ended."""
        self.send_signal(pid, STOP_SIGNAL, group=False)

    def terminate(self, pid: int) -> None:
        """Send SIGTERM to the process group of the trial *pid*; a no-op once it has ended."""
        self.send_signal(pid, signal.SIGTERM, group=True)

    def kill(self, pid: int) -> None:
        """Send SIGKILL to the process group of the trial *pid*; a no-op once it has ended."""
        self.send_signal(pid, signal.SIGKILL, group=True)

    def send_signal(self, pid: int, number: signal.Signals, *, group: bool) -> None:
        """Send a signal to the trial *pid*, or to its process group; a no-op once it has ended."""
        with self._telling:
            if pid != self._trial:
                return
            if self.pidfd is None:
                self.channel.send({"do": "signal", "pid": pid, "signal": int(number), "group": group})
            elif not is_readable(self.pidfd):
                # Directly, as the zygote may be frozen. The process is not reaped yet, so the pid is still its own.
                signal_process(pid, number, pidfd=self.pidfd, group=group)

    def keep(self, status: int | None, objection: Callable[[bool], str]) -> tuple[bool, str]:
        """Return whether the process of an ended attempt is kept for further ones, and if not, why.

        By default it is never kept.

        Args:
            status: the wait status of the process.
            objection: returns why the worker gives the process to no other attempt, or an empty text. Its argument is
                whether the process still exists.
        """
        return False, ""

    def drop(self) -> None:
        """End the process that it keeps between two attempts, if there is one.

        Raises:
            ZygoteDied: the zygote is dead, and the kept process too.
        """

    def hear_end(self) -> Gone | None:
        """Wait for the zygote's next message.

        Return how the trial ended, or None while the zygote still cleans up.

        Raises:
            ZygoteDied: the zygote is dead; the trial was killed, and all its processes have exited.
        """
        message, _ = self.receive()
        return None if message["is"] == "sweeping" else self.end_of(message)

    def end_of(self, message: Message) -> Gone:
        """Return how the trial ended, according to the zygote's message."""
        if self.pidfd is not None and not is_readable(self.pidfd):
            return self.take_over("said that a trial had ended which had not")
        self.forget_trial()
        return Gone(message["status"])

    def take_over(self, why: str) -> Gone:
        """Kill a zygote that does not reap its trial, and reap it here.

        Return how the trial had ended.

        Args:
            why: the zygote's failure, for the log.

        Raises:
            ZygoteSilent: the trial had not ended by itself.
        """
        had_ended = self.pidfd is not None and is_readable(self.pidfd)
        silent = ZygoteSilent(f"the zygote of {self.spec} {why} and was killed; it may have been frozen")
        logger.warning("%s", silent)
        status = self._reap()
        if not had_ended:
            raise silent
        return Gone(status)

    def forget_trial(self) -> None:
        """Send no more signals to the trial's process: it has ended, or runs no attempt now."""
        with self._telling:
            self._trial = None
            if self.pidfd is not None:
                os.close(self.pidfd)
                self.pidfd = None

    def receive(self) -> tuple[Message, list[int]]:
        """Wait for the zygote's next message; see ``Channel.receive``.

        Raises:
            ZygoteDied: the zygote is dead.
        """
        received = self.channel.receive()
        if received is None:
            self._reap()
            raise self._died()
        return received

    def _died(self) -> ZygoteDied:
        return ZygoteDied(f"the zygote of {self.spec} died")

    def _reap(self) -> int | None:
        """Kill and reap the zygote and its descendants.

        Return its trial's wait status, if that had ended before.
        """
        trial = self._trial
        status = reaper.kill(self._process, trial or 0)
        if trial is not None and not reaper.adopts:
            # Processes that have left its group stay.
            deadline = time.monotonic() + self.timing.zygote_close_s
            while signal_group(trial, signal.SIGKILL) and time.monotonic() < deadline:
                time.sleep(0.001)
        reaper.clear(self.timing.zygote_close_s, str(self.spec))
        self.forget_trial()
        return status

    def end(self) -> None:
        """Make the zygote kill its trial and exit. Return immediately.

        A thread that waits for the trial gets ZygoteDied.
        """
        self._is_ended = True
        self.channel.end()

    def close(self) -> None:
        """End the zygote and wait until it is gone, unless that was done before.

        It must not be running a trial.
        """
        with self._closing:
            if self.is_closed:
                return
            self.is_closed = True
            self.end()
            self._process.wait(self.timing.zygote_close_s)
            self._reap()
            self._process.close()
            self.channel.close()


def is_readable(fd: int, timeout_s: float = 0.0) -> bool:
    """Wait at most *timeout_s* seconds until a descriptor is readable. Return whether it is."""
    # Not by select(), which takes no descriptor from 1,024 on.
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))
