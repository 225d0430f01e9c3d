"""The zygote's part of reuse: it keeps a trial's process, and runs the next trial in it.

Further messages from the worker:

- ``drop``: end the kept process.
- ``forget``, with the process id of a trial: it is to end, and no fresh process should take it.

Further messages to the worker:

- ``dropped``: no process is kept any more.
- ``again``: the kept process has refused a trial, whose next ``started`` follows.

The message ``ended`` also has ``stays``, whether the process is kept, and ``left``, the remains of the trial that
prevent this.
"""

from __future__ import annotations

import os
import select
from collections.abc import Collection, Sequence

from mqtune.services.reuse.life import KeptLife
from mqtune.trainable import Child, Message, Zygote as KernelZygote, has_descendants


class ReusingZygote(KernelZygote):
    """A zygote whose processes may run several trials."""

    life = KeptLife
    #: The process that waits for its next trial.
    _kept: Child | None = None
    #: The start message that a kept process has got and not taken yet.
    _given: tuple[Message, Sequence[int]] | None = None
    #: Why the trial's process can't run another trial; empty if it can.
    _left = ""

    def hear(self, ready: Collection[int]) -> bool:
        """Handle a message of the trial's process, or the kept one's end. Return whether one came."""
        process = self.process
        if process is not None and process.channel.fileno() in ready:
            self._hear(process)
            return True
        if self._kept is not None and self._kept.has_ended:
            self._drop()
            return True
        return False

    def _hear(self, process: Child) -> None:
        received = process.channel.receive()
        match None if received is None else received[0]["is"]:
            case "done" if received is not None:
                others = [] if self.spare is None else [self.spare.pid]
                self._left = received[0]["left"]
                if not self._left and has_descendants(process.pid, others):
                    self._left = "it has left processes"
                process.channel.send({"left": self._left})
            case "taken":
                self._forget_given()
            case "kept":
                self.poll.unregister(process.channel.fileno())
                self._kept, self.process = process, None
                self.end_trial(status=0, stays=True)
            case None:
                # It is about to exit.
                self.poll.unregister(process.channel.fileno())

    def handle(self, message: Message, fds: Sequence[int]) -> None:
        """Carry out a message of the worker."""
        match message["do"]:
            case "drop":
                self._drop()
                self.channel.send({"is": "dropped"})
            case "forget" if self.runs(message["pid"]):
                self._forget_given()
            case _:
                super().handle(message, fds)

    def start(self, message: Message, fds: Sequence[int]) -> None:
        """Start a trial, in the kept process if there is one."""
        if self._kept is not None:
            self._given = message, [os.dup(fd) for fd in fds]
        super().start(message, fds)
        if self.process is not None:
            self.poll.register(self.process.channel.fileno(), select.POLLIN)

    def take_process(self) -> Child:
        """Return the kept process, or a spare."""
        kept, self._kept = self._kept, None
        return kept or super().take_process()

    def finish(self, process: Child) -> None:
        """End the trial of a process that has ended, or give it to a fresh process."""
        given, self._given = self._given, None
        if given is None:
            super().finish(process)
            return
        self.remove(process)
        self.channel.send({"is": "again"})
        self.start(*given)

    def end_trial(self, **how: object) -> None:
        """Tell the worker how a trial has ended, and its remains."""
        left, self._left = self._left, ""
        super().end_trial(left=left, **how)

    def _drop(self) -> None:
        """End the kept process: it may clean up, and is killed if that takes too long."""
        if self._kept is not None:
            kept, self._kept = self._kept, None
            kept.let_end()
            self.remove(kept)

    def _forget_given(self) -> None:
        if self._given is not None:
            for fd in self._given[1]:
                os.close(fd)
            self._given = None

    def children(self) -> list[Child]:
        """Return the processes that it has made and not reaped."""
        return [*super().children(), *([] if self._kept is None else [self._kept])]

    def forget(self) -> None:
        """Close the zygote's descriptors in a fork of it."""
        super().forget()
        if self._kept is not None:
            self._kept.close()
        self._forget_given()

    def close(self) -> None:
        """End all processes."""
        self._drop()
        super().close()
