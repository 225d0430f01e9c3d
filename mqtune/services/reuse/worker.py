"""The worker's part of reuse: which experiments' processes are kept, and when one is ended."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from signal import Signals
from typing import Any

from mqtune.core.codec import encode_value
from mqtune.trainable import Message, StartMessage
from mqtune.worker import ExperimentHere, Gone, ImportKey, WorkerSettings, ZygoteDied, ZygoteHandle, is_readable
from mqtune.worker.ports import WorkerHost, WorkerService


class KeepingZygote(ZygoteHandle):
    """A zygote that keeps the process of an ended trial for the next one."""

    keeps = True
    retired = "it has ended"
    #: Why the process of the ended trial can't run another one, as it says itself; empty if it can.
    _left = ""

    def send_start(self, message: StartMessage, fds: Sequence[int]) -> None:
        """Start a trial as soon as the one before it is gone."""
        self.holds = True
        super().send_start(message, fds)

    def send_signal(self, pid: int, number: Signals, *, group: bool) -> None:
        """Send a signal to the trial *pid*, or to its process group; a no-op once it has ended."""
        if group:
            # Before the signal, so that the zygote starts no fresh process for a trial that is to end.
            self.channel.send({"do": "forget", "pid": pid})
        super().send_signal(pid, number, group=group)

    def end_of(self, message: Message) -> Gone:
        """Return how the trial ended, by the zygote's message."""
        if message["is"] == "again":
            self.forget_trial()
            return Gone(None, again=True)
        self.holds, self._left = message.get("stays", False), message["left"]
        if not self.holds:
            return super().end_of(message)
        self.forget_trial()
        return Gone(message["status"])

    def keep(self, status: int | None, objection: Callable[[bool], str]) -> tuple[bool, str]:
        """Return whether the process of an ended trial is kept for further ones, and if not, why.

        End it if it may not.
        """
        why = objection(self.holds) or self._left
        if self.holds:
            if why:
                # A zygote that is dead has ended it too.
                with contextlib.suppress(ZygoteDied):
                    self.drop()
            return not why, why
        has_failed = status is not None and os.waitstatus_to_exitcode(status) == 1
        return False, why or ("it failed" if has_failed else self.retired)

    def drop(self) -> None:
        """End the kept process, if there is one, so that the next trial gets a fresh one.

        Raises:
            ZygoteDied: the zygote is dead, and the kept process too.
        """
        try:
            self.channel.send({"do": "drop"})
            if not is_readable(self.fileno(), self.timing.zygote_exchange_s):
                self.take_over("did not end the process that it kept")
            self.receive()
        finally:
            self._keep_nothing()

    def close(self) -> None:
        """End the zygote and wait until it is gone."""
        super().close()
        self._keep_nothing()

    def _keep_nothing(self) -> None:
        kept, self.holds = self.holds, False
        if kept:
            self.on_empty()


def reusing(key: ImportKey, mark: bytes) -> ImportKey:
    """Return an import key whose trials share processes with trials of the same *mark* only."""
    program = replace(key.program, zygote="mqtune.services.reuse.zygote:ReusingZygote")
    return replace(key, program=program, mark=mark, handle=KeepingZygote)


class Reuse(WorkerService):
    """Lets a process run several trials one after another, for experiments that ask for it."""

    def prepare(self, experiment: ExperimentHere, key: ImportKey) -> ImportKey:
        """Let trials of the same definition share processes, if the experiment asks for that."""
        definition: dict[str, Any] = dict(experiment.definition)
        if not definition.get("reuse"):
            return key
        return reusing(key, hashlib.sha256(encode_value([experiment.name, definition])).digest())


def for_worker(_: WorkerHost, __: WorkerSettings) -> tuple[WorkerService]:
    """Return the service that lets processes run several trials."""
    return (Reuse(),)
