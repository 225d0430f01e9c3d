"""One attempt on this worker, from its claim to its end: the supervisor of one trial process."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from mqtune.journal.base import FENCED, GAP, Claim, Journal
from mqtune.messages import AttemptEnded, AttemptStarted, decode_value
from mqtune.trainable.spec import TrainableSpec
from mqtune.trial import AttemptEnd, Intent, TrialId
from mqtune.worker.slots import Slot, Turn
from mqtune.worker.uplink import Stream, Uplink, Wake
from mqtune.worker.zygotes import ImportFailed, ZygoteDied, ZygoteHandle, ZygoteKey

__all__ = ["STOP_S", "AttemptRun", "Host", "Outcome"]

logger = logging.getLogger(__name__)

#: How long a trial has, once told, to leave its ``finally`` blocks, before its group gets SIGTERM.
TOLD_GRACE_S: Final = 10.0
#: How long its group has after SIGTERM before it gets SIGKILL.
TERMINATE_GRACE_S: Final = 5.0
#: The longest import of a trainable's module: large frameworks on a cold network disk take minutes.
IMPORT_TIMEOUT_S: Final = 600.0
#: The whole of the stop ladder, with a moment for the process to go.
STOP_S: Final = TOLD_GRACE_S + TERMINATE_GRACE_S + 1.0
#: What the journal keeps of an attempt's output; the files have all of it.
TAIL_BYTES: Final = 2_000
TAIL_BYTES_FAILED: Final = 16_000
#: How long the rest of the reports may take once the process group is gone and nothing can add to them.
_DETACH_POLL_S: Final = 1.0


class Host(Protocol):
    """The worker, as an attempt sees it."""

    name: str
    host: str
    code_root: Path
    log_root: Path
    lease_s: float
    closing: threading.Event
    draining: bool
    running: set[AttemptRun]
    uplink: Uplink

    def offer(self, slot: Slot) -> None:
        """Let the next attempt prepare in a slot whose trial has ended."""

    def fetch_ahead(self) -> None:
        """Have the next task fetched while a trial ends."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended here; ``end`` is None when it was not claimed, or no longer counted."""

    end: AttemptEnd | None
    note: str


class AttemptRun:
    """Runs one attempt; one thread calls ``run``, any thread may call the others."""

    def __init__(self, runtime: Host, journal: Journal, claim: Claim, definition: dict[str, Any]) -> None:
        self.runtime = runtime
        self.journal = journal
        self.claim = claim
        self.definition = definition
        self.config: dict[str, Any] = {}
        self.task_id = ""
        self.stream: Stream | None = None
        self._intent = Intent.RUN
        self._reason = ""
        self._ending = threading.Event()
        self._slot: Slot | None = None
        self._wake = Wake()
        #: The zygote of the trial's process and its number, while it may be signalled.
        self._process: tuple[ZygoteHandle, int] | None = None
        self._lock = threading.Lock()

    @property
    def is_ending(self) -> bool:
        """Whether its slot will soon be free."""
        return self._ending.is_set()

    def on_answer(self, answer: str) -> None:
        """Obey what the journal, or a hint, says of this attempt; repeating it changes nothing."""
        if answer in (FENCED, GAP):
            logger.warning(
                "trial %s attempt %d: refused (%s); it ends here", self.claim.trial, self.claim.attempt, answer
            )
            self._want(Intent.STOP, kill=True)
        elif answer:
            self._want(Intent(answer))

    def on_end_frame(self) -> None:
        """Hear that the trainable has ended; the next attempt may prepare while its process is taken down."""
        self._mark_ending()
        self._offer_slot()
        self._wake.set()

    def hand_back(self, reason: str) -> None:
        """End the attempt so that the trial can run again elsewhere."""
        self._reason = reason
        self._want(Intent.HAND_BACK)

    def terminate(self, *, kill: bool) -> None:
        """End the attempt because a person said so."""
        self._reason = "terminated by hand"
        self._want(Intent.STOP, kill=kill)

    def _want(self, intent: Intent, *, kill: bool = False) -> None:
        with self._lock:
            first = self._intent is Intent.RUN and intent is not Intent.RUN
            if first:
                self._intent = intent
            process = self._process
        if process is not None and (first or kill):
            zygote, pid = process
            zygote.kill(pid) if kill else zygote.tell(pid)
        if first:
            self._mark_ending()
            self._wake.set()

    def _mark_ending(self) -> None:
        if not self._ending.is_set():
            self._ending.set()
            self.runtime.fetch_ahead()

    def _offer_slot(self) -> None:
        with self._lock:
            slot, self._slot = self._slot, None
        if slot is not None:
            self.runtime.offer(slot)

    def run(self, slot: Slot) -> Outcome:
        """Claim the attempt, run it, journal its end; returns when nothing of it is left.

        An attempt that is no longer wanted, or is claimed by another, is left alone. The slot is offered to the next
        attempt as soon as that may prepare, which starts when this one's turn is over.
        """
        self._slot = slot
        turn = slot.next_turn()
        try:
            return self._run(slot, turn)
        finally:
            turn.end()
            self._offer_slot()
            self._wake.close()

    def _run(self, slot: Slot, turn: Turn) -> Outcome:
        zygote, problem = self._ready_zygote(slot, turn)
        if self.runtime.draining:
            return Outcome(None, "not run: the worker is closing")
        logs = self.runtime.log_root / self.journal.experiment / self.claim.trial
        stdout, stderr = logs / f"{self.claim.attempt}.stdout", logs / f"{self.claim.attempt}.stderr"
        started = AttemptStarted(
            trial=self.claim.trial,
            attempt=self.claim.attempt,
            worker=self.runtime.name,
            host=self.runtime.host,
            devices=list(slot.devices),
            at=time.time(),
            stdout_path=str(stdout),
            stderr_path=str(stderr),
        )
        grant = self.journal.claim(self.claim, self.runtime.name, self.runtime.lease_s, started.encode())
        if isinstance(grant, str):
            return Outcome(None, f"not run: {grant}")
        self.config = grant.config
        self.runtime.running.add(self)
        try:
            ended = self._execute(turn, zygote, problem, grant.timestamp, stdout, stderr)
            counted = self.journal.end(self.claim, ended.encode())
        finally:
            self.runtime.running.discard(self)
        if not counted:
            return Outcome(None, "superseded: its end was refused")
        return Outcome(ended.end, ended.error or self._reason)

    def _ready_zygote(self, slot: Slot, turn: Turn) -> tuple[ZygoteHandle | None, tuple[str, str]]:
        """Return a zygote that has imported the trainable, or why there is none.

        This comes before the claim: an import may take minutes, in which another worker may have a slot that is ready.
        """
        spec, root = TrainableSpec(**self.definition["trainable"]), self.runtime.code_root
        try:
            zygote = slot.zygote(ZygoteKey(spec, root, self.definition.get("start_method", "fork")), turn)
            zygote.wait_ready(IMPORT_TIMEOUT_S)
        except (ImportFailed, ZygoteDied, OSError) as error:
            slot.close_zygote()
            kind = error.kind if isinstance(error, ImportFailed) else type(error).__name__
            return None, (kind, f"on worker {self.runtime.name}, trainable {spec} below code root {root}:\n{error}")
        return zygote, ("", "")

    def _execute(
        self,
        turn: Turn,
        zygote: ZygoteHandle | None,
        problem: tuple[str, str],
        timestamp: float,
        stdout: Path,
        stderr: Path,
    ) -> AttemptEnded:
        """Run the trial's process, if there is a zygote for it, and return how it ended."""
        pid, status = 0, None
        if zygote is not None:
            try:
                stdout.parent.mkdir(parents=True, exist_ok=True)
                pid, status = self._supervise(turn, zygote, timestamp, stdout, stderr)
            except ZygoteDied as error:
                problem = ("ZygoteDied", str(error))
            except OSError as error:
                problem = (type(error).__name__, f"the trial's process could not be started: {error}")
        return self._ended(pid, status, problem, stdout, stderr)

    def _supervise(
        self, turn: Turn, zygote: ZygoteHandle, timestamp: float, stdout: Path, stderr: Path
    ) -> tuple[int, int | None]:
        """Start the trial and see it to its end; returns its process id and wait status."""
        self.stream = stream = Stream(self.journal, self.claim, self)
        self.runtime.uplink.attach(stream)
        message = {
            "config": self.config,
            "timestamp": timestamp,
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        try:
            zygote.send_start(message, [stream.write_end])
            os.close(stream.write_end)
            turn.wait()
            pid = zygote.wait_started()
            with self._lock:
                self._process = zygote, pid
            if self._intent is not Intent.RUN:
                zygote.tell(pid)
            self._climb(zygote, pid)
            return pid, zygote.wait_ended()
        finally:
            with self._lock:
                self._process = None
            turn.end()
            self._offer_slot()
            while not self.runtime.uplink.detach(stream, _DETACH_POLL_S):
                if self.runtime.closing.is_set():
                    break

    def _climb(self, zygote: ZygoteHandle, pid: int) -> None:
        """Wait for the trial's end, and climb the stop ladder once it is wanted, or the trainable has returned."""
        poll = select.poll()
        told = zygote.fileno()
        poll.register(told, select.POLLIN)
        poll.register(self._wake.fileno(), select.POLLIN)
        rungs = [(TOLD_GRACE_S, zygote.terminate), (TERMINATE_GRACE_S, zygote.kill)]
        deadline: float | None = None
        while True:
            if deadline is None and rungs and self.is_ending:
                deadline = time.monotonic() + rungs[0][0]
            wait_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = {fd for fd, _ in poll.poll(wait_ms)}
            if told in ready:
                return
            self._wake.clear()
            if deadline is not None and time.monotonic() >= deadline:
                rungs.pop(0)[1](pid)
                deadline = None

    def _ended(
        self, pid: int, status: int | None, problem: tuple[str, str], stdout: Path, stderr: Path
    ) -> AttemptEnded:
        end, error_type, error = self._how_it_ended(status, problem)
        size = TAIL_BYTES_FAILED if end is AttemptEnd.FAILED else TAIL_BYTES
        return AttemptEnded(
            trial=TrialId(self.claim.trial),
            attempt=self.claim.attempt,
            end=end,
            at=time.time(),
            pid=pid,
            exit_code=os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
            signal=os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            error_type=error_type,
            error=error or (self._reason if end is not AttemptEnd.COMPLETED else ""),
            stdout_tail=_tail(stdout, size),
            stderr_tail=_tail(stderr, size),
        )

    def _how_it_ended(self, status: int | None, problem: tuple[str, str]) -> tuple[AttemptEnd, str, str]:
        said = decode_value(self.stream.end) if self.stream is not None and self.stream.end is not None else None
        unasked = self._intent is Intent.RUN and said is not None and said["end"] == AttemptEnd.STOPPED.value
        if unasked or (said is not None and said["end"] == AttemptEnd.COMPLETED.value):
            # A trainable that raises StopTrial by itself has ended itself.
            return AttemptEnd.COMPLETED, "", ""
        kind, text = problem if said is None else (said["error_type"], said["error"])
        if self._intent is Intent.COMPLETE:
            return AttemptEnd.COMPLETED, kind, text
        if self._intent is Intent.HAND_BACK:
            return AttemptEnd.HANDED_BACK, kind, text
        if self._intent is not Intent.RUN:
            return AttemptEnd.STOPPED, kind, text
        if said is not None:
            return AttemptEnd(said["end"]), kind, text
        if kind == "ZygoteDied":
            return AttemptEnd.LOST, kind, text
        if kind:
            return AttemptEnd.FAILED, kind, text
        return AttemptEnd.FAILED, *_exit_words(status)


def _exit_words(status: int | None) -> tuple[str, str]:
    """Return type and text for a process that ended without a word."""
    if status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in signal.valid_signals() else str(number)
        hint = "; the system kills so when memory runs out" if number == signal.SIGKILL else ""
        return "Killed", f"the trial's process was killed by {name}{hint}"
    code = os.WEXITSTATUS(status) if status is not None else "?"
    return "Exited", f"the trial's process exited with code {code} in the middle of the trainable"


def _tail(path: Path, size: int) -> str:
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
