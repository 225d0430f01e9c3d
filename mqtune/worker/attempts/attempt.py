"""Runs one attempt: claims it, supervises its process, and journals its end."""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from mqtune.core.clock import Clock
from mqtune.core.codec import decode_value
from mqtune.core.errors import BrokerUnavailable, MqtuneError
from mqtune.core.events import AttemptEnded, AttemptStarted
from mqtune.core.timing import Timing
from mqtune.core.trial import UNDRIVEN, WORKER_ERROR, AttemptEnd, Intent, is_in_memory
from mqtune.journal.base import FENCED, GAP, Assignment, Claim, EndedBy, Grant, Refusal, Reserved, Unclaimed
from mqtune.trainable.process.children import refusal_in
from mqtune.trainable.process.protocol import StartMessage
from mqtune.worker.attempts.control_pipe import ControlPipe, parse_count
from mqtune.worker.attempts.slots import Problem, Slot, Slots, Turn, ZygoteFinder, import_again
from mqtune.worker.hooks import NO_HOOKS, WorkerHooks
from mqtune.worker.host.logs import Logs
from mqtune.worker.host.processes import MemoryKills
from mqtune.worker.host.scratch import Scratch
from mqtune.worker.programs.experiments import ExperimentHere
from mqtune.worker.programs.zygotes import Gone, ZygoteDied, ZygoteHandle
from mqtune.worker.reports.outcome import LACKS_REPORTS, AttemptOutcome, RunResult, describe_noise
from mqtune.worker.reports.stream import Stream
from mqtune.worker.reports.uplink import Uplink, Wake

logger = logging.getLogger(__name__)


#: The intents after which a trial has ``pause_grace_s`` to save, instead of ``stop_grace_s`` to stop.
_PATIENT: Final = (Intent.PAUSE, Intent.GIVE_WAY)
#: The intents after which a trial does not run again, so that its further reports are not needed.
_FINAL: Final = (Intent.STOP, Intent.ABANDON)
#: How long the processes of a trial may take to disappear after its main process: a device driver or a disk can hold a
#: killed process for a while.
GONE_S: Final = 60.0
#: How long a process is expected to take to disappear after SIGKILL.
_GO_S: Final = 1.0
#: The refusals after which no worker will claim the attempt, so that its empty output files are deleted. After others,
#: another worker that shares the folder may be using them.
_FOR_GOOD: Final = frozenset({"unknown", "superseded", "ended", "revoked"})
#: The entries of an experiment's definition that are passed to its trainables.
_OPTIONS: Final = ("metric", "pass_config", "pass_checkpoint_dir")
#: The journaled reason for the end of a trial whose task was revoked or terminated by ``celery control`` or in Flower.
REVOKED: Final = "terminated by an operator through Celery"


def stop_s(grace_s: float, timing: Timing = Timing()) -> float:
    """Return how long stopping a trial takes at most, with *grace_s* seconds before SIGTERM."""
    return grace_s + timing.terminate_grace_s + _GO_S


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """The parts of a worker that its attempts use.

    Attributes:
        name: the worker's name in the fleet.
        host: the machine's name.
        queue: the queue that the worker consumes.
        timing: its intervals and time-outs.
        grace_s: how many seconds a trial has to save and end when the worker shuts down.
        clock: the time that all machines share.
        uplink: writes the data of trials to the journal.
        logs: the files of trials' output.
        scratch: the folders of attempts.
        slots: the worker's slots.
        zygotes: finds the zygote that runs an attempt.
        memory_kills: detects kills for lack of memory.
        wake_consumer: makes the consumer check whether it may take a task.
        hooks: call the worker's services.
    """

    name: str
    host: str
    queue: str
    timing: Timing
    grace_s: float
    clock: Clock
    uplink: Uplink
    logs: Logs
    scratch: Scratch
    slots: Slots
    zygotes: ZygoteFinder
    memory_kills: MemoryKills
    wake_consumer: Callable[[], None]
    hooks: WorkerHooks = NO_HOOKS


class AttemptRun:
    """Runs one attempt. One thread calls ``run``, and then ``close``.

    Any thread may call the other methods.
    """

    def __init__(self, parts: WorkerParts, here: ExperimentHere, claim: Claim, shared_bytes: int | None = None) -> None:
        self._worker = parts
        self._here = here
        #: The memory that it asks for on a shared GPU, in bytes; 0 if it is unknown.
        self.shared_bytes = here.shared_bytes if shared_bytes is None else shared_bytes
        self.journal = journal = here.journal
        self.claim = claim
        #: Its trial, and the number of its task.
        self.trial, self.task = claim.task
        self.resources = here.resources
        #: Whether this worker has requeued it.
        self._gives_back = False
        self.definition = here.definition
        #: The number of its slot, and the slot's devices; -1 and empty until it has one.
        self.slot = -1
        self.devices: tuple[str, ...] = ()
        #: The config and the other results of the claim; empty before that.
        self.assignment = Assignment({})
        #: The attempt's own working directory; empty for the worker's.
        self._working_dir = ""
        self.task_id = ""
        self.stream: Stream | None = None
        self._intent = Intent.RUN
        #: Whether its driver or an operator has ended the trial permanently. Then reports are dropped if the server is
        #: full.
        self.drops_unwritten = False
        self._reason = self._reason_type = ""
        self._ending = threading.Event()
        self._slot: Slot | None = None
        #: When its wait for an import began; None while it doesn't wait for one.
        self._imports_since: float | None = None
        self._wake = Wake()
        self._control = ControlPipe()
        #: The zygote of the trial's process and its pid, while it may be signalled; and the pid of its last process.
        self._process: tuple[ZygoteHandle, int] | None = None
        self.pid: int | None = None
        #: When its process started, by ``time.monotonic``; None before that.
        self.began_at: float | None = None
        #: When all its processes had exited; when the next signal (SIGTERM, then SIGKILL) is due; when its timeout
        #: expires.
        self.gone_at = self._next_signal_at = self._over_at = math.inf
        self._outlived = self._has_gap = self._forced = False
        #: The error of a child process of the trial that has tried to report, if the trial itself has made no report.
        self._refusal = ""
        #: Why its process runs no other attempt; empty if it may, or if no process ever does.
        self._retired = ""
        #: Whether only its end remains to be journaled.
        self._is_over = False
        #: Whether this worker has claimed it, and not ended it yet.
        self.is_running = False
        #: Type and text of the error for which this worker fails it; None without one.
        self._fault: tuple[str, str] | None = None
        #: The files of its output, and those of them that ``prepare`` has made.
        self._output = parts.logs.files(journal.experiment, claim)
        self._made: list[Path] | None = None
        self._lock = threading.Lock()

    @property
    def held(self) -> Unclaimed:
        """The message that tells the driver that this worker has the attempt, before it is claimed."""
        since = self._imports_since
        importing_s = None if since is None else time.monotonic() - since
        return Unclaimed(self.claim.trial, self.claim.attempt, self._worker.name, importing_s)

    @property
    def is_importing(self) -> bool:
        """Whether it waits for its trainable's module to be imported."""
        return self._imports_since is not None

    @property
    def process(self) -> int | None:
        """The id of its trial's process; None while it has no process."""
        process = self._process
        return process[1] if process is not None else None

    @property
    def waited_s(self) -> float:
        """The seconds that its data has waited for the server so far."""
        return self.stream.waited_s if self.stream is not None else 0.0

    @property
    def has_reported(self) -> bool:
        """Whether it has sent a report."""
        return self.stream is not None and self.stream.sequence > 0

    def write_again_if_in_doubt(self) -> None:
        """Write its last data again if an outage may have lost it.

        If its stream was suspended and the journal has room by now, reading resumes.
        """
        if self.stream is not None and self.stream.is_in_doubt:
            self._worker.uplink.write_again(self.stream)

    @property
    def is_ending(self) -> bool:
        """Whether its slot will soon be free."""
        return self._ending.is_set()

    @property
    def is_abandoned(self) -> bool:
        """Whether a person has abandoned the trial."""
        return self._intent is Intent.ABANDON

    def on_answer(self, answer: str) -> None:
        """Apply an answer of the journal, or a message of the control channel, to this attempt.

        It is idempotent, and raises nothing: the calling thread also serves other trials, among them other teams'.
        """
        try:
            self._apply_answer(answer)
        except Exception:
            logger.exception("trial %s attempt %d: %.100r can't be applied", *self.claim[:2], answer)

    def _apply_answer(self, answer: str) -> None:
        if self._is_over:
            # The answer is to a heartbeat that was under way while the end was journaled.
            return
        if answer in (FENCED, GAP):
            logger.warning(
                "trial %s attempt %d: the journal refuses it (%s); it ends here",
                self.claim.trial,
                self.claim.attempt,
                answer,
                extra={
                    "experiment": self.journal.experiment,
                    "trial": self.claim.trial,
                    "attempt": self.claim.attempt,
                },
            )
            self._has_gap = True  # even if the journal accepts its end after all
            self._apply_intent(Intent.STOP, kill=True)
            return
        for word in answer.split():
            try:
                self._apply_order(word)
            except ValueError as error:
                # The word comes from a newer driver, or from no driver at all.
                named = f"trial {self.claim.trial} attempt {self.claim.attempt}"
                logger.warning(
                    "%s got %.100r, which this version of mqtune does not understand: %s", named, word, error
                )

    def _apply_order(self, word: str) -> None:
        order, _, number = word.partition(":")
        if order == "save":
            self._control.request_save(parse_count(number))
        elif order == "go":
            sequence, _, answer = number.partition(":")
            self._control.release(parse_count(sequence), answer)
        elif order == UNDRIVEN:
            self._reason_type = UNDRIVEN
            self.requeue("nobody drives the experiment any more")
        else:
            self.drops_unwritten |= Intent(order) in _FINAL
            self._apply_intent(Intent(order))

    def on_end_frame(self) -> None:
        """Handle the end of the trainable: let the next attempt prepare while this process ends."""
        if self.stream is not None and self.stream.end is not None and self._process is not None:
            # Before the next attempt prepares in the slot.
            imported = decode_value(self.stream.end).get("imported", [])
            self._worker.slots.importers.preloads.learn(self._process[0].spec, imported)
        self._mark_ending()
        self._offer_slot()
        self._hurry(self._worker.timing.stop_grace_s)

    def on_noise(self, fault: str) -> None:
        """Fail the attempt because its process has sent malformed data. Its earlier reports count."""
        self.fail(*describe_noise(fault))

    def fail(self, error_type: str, error: str) -> None:
        """Kill the attempt's processes, and end it as failed with this error. Its reports count."""
        self._fault = self._fault or (error_type, error)
        self._apply_intent(Intent.STOP, kill=True)

    def wait(self, timeout_s: float) -> bool:
        """Wait at most *timeout_s* seconds until the attempt has to end. Return whether it has to."""
        self._ending.wait(timeout_s)
        return self._intent is not Intent.RUN

    def requeue(self, reason: str) -> None:
        """End the attempt within the worker's grace, so that the trial runs again elsewhere."""
        self._reason = reason
        self._gives_back = True
        self._apply_intent(Intent.HAND_BACK, grace_s=self._worker.grace_s)
        self._hurry(self._worker.grace_s)

    def terminate(self, *, kill: bool) -> None:
        """End the attempt because an operator has terminated its task."""
        self._reason = REVOKED
        self.drops_unwritten = True
        self._apply_intent(Intent.STOP, kill=kill)

    def _apply_intent(self, intent: Intent, *, kill: bool = False, grace_s: float | None = None) -> None:
        """Tell the trial to end in this way, unless it has to end in a more final way already.

        *kill* kills its processes in any case. *grace_s* replaces the usual time until SIGTERM.
        """
        effect = intent.effect
        with self._lock:
            further = effect.reach > self._intent.effect.reach
            # The trial was told to save already, and now has less time for that.
            hurries = self._intent is Intent.GIVE_WAY and intent is Intent.HAND_BACK
            if further or hurries:
                self._intent = intent
            if further:
                # Before the signal, which makes the trial read the order.
                self._control.tell("pause" if effect.keeps_state else "stop")
            self._forced = self._forced or kill
            # Under the lock, while the process is this attempt's: a kept process has the same id in the next attempt.
            if self._process is not None and (further or kill):
                zygote, pid = self._process
                zygote.kill(pid) if kill else zygote.tell(pid)
        if further or hurries:
            if intent not in _PATIENT:
                # No other trial should wait here for a pause, which may take minutes.
                self._mark_ending()
            timing = self._worker.timing
            usual_s = timing.pause_grace_s if intent in _PATIENT else timing.stop_grace_s
            self._hurry(usual_s if grace_s is None else grace_s)

    def _hurry(self, grace_s: float) -> None:
        """Have the next signal (SIGTERM, then SIGKILL) sent after *grace_s* seconds at the latest."""
        with self._lock:
            self._next_signal_at = min(self._next_signal_at, time.monotonic() + grace_s)
        self._wake.set()

    def _mark_ending(self) -> None:
        if not self._ending.is_set():
            self._ending.set()
            self._worker.wake_consumer()

    def _offer_slot(self) -> None:
        with self._lock:
            slot, self._slot = self._slot, None
        if slot is not None:
            self._worker.slots.offer(slot)

    def prepare(self) -> None:
        """Create the files of its output, which needs no slot. A second call does nothing."""
        if self._made is None:
            self._made = self._worker.logs.make(*self._output)

    def run(self, slot: Slot) -> RunResult:
        """Claim the attempt, run it and journal its end.

        All its processes have exited when this returns.

        An attempt that is no longer wanted, or that another worker has claimed, is not run. The slot is offered to the
        next attempt as soon as that may prepare. The next attempt starts when this one's turn is over: when its process
        has exited, or, if services check the slot, when they know how it has ended.
        """
        self._slot, self.slot, self.devices = slot, slot.index, slot.devices
        turn = slot.next_turn()
        try:
            result = self._run(slot, turn)
            self._worker.hooks.ended(self, result)
            return result
        finally:
            turn.end()
            self._offer_slot()

    def close(self) -> None:
        """Close the pipes. Later answers have no effect."""
        self._wake.close()
        self._control.close()

    def _run(self, slot: Slot, turn: Turn) -> RunResult:
        zygote, problem = self._worker.zygotes.find(turn, self._here, self._note_import)
        self._imports_since = None
        if self._intent is Intent.HAND_BACK:
            return RunResult(None, "not run: the worker is shutting down")
        if not turn.take(stays=zygote is not None and zygote.keeps):
            return RunResult(None, "not run: a device of its slot is quarantined", goes_back=True)
        stdout, stderr = self._output
        self._working_dir = str(self._worker.hooks.working_dir(self) or "")
        started = AttemptStarted(
            trial=self.trial,
            task=self.task,
            attempt=self.claim.attempt,
            worker=self._worker.name,
            host=self._worker.host,
            devices=list(slot.devices),
            at=self._worker.clock.time(),
            stdout_path=str(stdout),
            stderr_path=str(stderr),
            queue=self._worker.queue,
            environment=zygote.environment if zygote is not None else {},
            working_dir=self._working_dir,
            log_mark=self._worker.logs.mark,
        )
        event = started.encode()

        def send(lease_s: float, address: str = "") -> Grant | Refusal | Reserved:
            answer = self.journal.claim(self.claim, self._worker.name, lease_s, event, address)
            if isinstance(answer, str) and answer in _FOR_GOOD:
                self._worker.logs.unmake(self._made or ())
            return answer

        grant = self._worker.hooks.claim(self, send) or send(self._worker.timing.lease_s)
        if isinstance(grant, RunResult):
            return grant
        if isinstance(grant, str):
            return RunResult(None, f"not run: {grant}")
        self.assignment = grant.assignment
        self.is_running = True
        try:
            ended = self._execute(turn, zygote, problem, grant, stdout, stderr)
            self._is_over = True
            self._worker.slots.retries.note(self.journal.experiment, self.claim, ended, slot.devices)
            journaled = self._journal_end(ended)
            self._worker.slots.back_off.note_done("ended")
        except MqtuneError:
            # The journal takes no end; the error says why.
            raise
        except Exception as error:
            logger.exception("trial %s attempt %d could not be ended", self.claim.trial, self.claim.attempt)
            journaled = self._hand_back(error, slot)
        finally:
            self.is_running = False
        if journaled is None:
            return RunResult(None, "superseded: its end was refused")
        return RunResult(journaled.end, journaled.error or self._reason, journaled.error_type)

    def _hand_back(self, error: Exception, slot: Slot) -> AttemptEnded | None:
        """Hand the attempt back because of this worker's own error, and back off if errors repeat.

        Without this its lease would expire, and the driver would take the worker for dead.
        """
        text = f"{type(error).__name__}: {error}"
        self._worker.slots.back_off.note_problem("ended", text)
        ended = AttemptEnded(
            trial=self.trial,
            attempt=self.claim.attempt,
            end=AttemptEnd.HANDED_BACK,
            at=self._worker.clock.time(),
            pid=self.pid or 0,
            error_type=WORKER_ERROR,
            error=f"on worker {self._worker.name}: the attempt could not be ended: {text}",
        )
        self._is_over = True
        self._worker.slots.retries.note(self.journal.experiment, self.claim, ended, slot.devices)
        return self._journal_end(ended)

    def _journal_end(self, ended: AttemptEnded) -> AttemptEnded | None:
        """Journal the end after all reports, and return it as it is in the journal.

        Return None if the journal refuses it because the attempt no longer counts.
        """
        stream = self.stream
        reports = 0 if stream is None or self._has_gap else stream.sequence
        # Otherwise a server that was set back between a dict and its report would never get the dict again.
        self.write_again_if_in_doubt()
        by = self._find_end_cause(ended.end)
        if self.journal.end(self.claim, ended.encode(), reports=reports, by=by):
            return ended
        if stream is None or not reports:
            return None
        # A server that was set back may lack the last reports.
        self._worker.uplink.write_again(stream)
        if self.journal.end(self.claim, ended.encode(), reports=reports, by=by):
            return ended
        lost = replace(ended, **LACKS_REPORTS._asdict())
        return lost if self.journal.end(self.claim, lost.encode(), by="worker") else None

    def _find_end_cause(self, end: AttemptEnd) -> EndedBy:
        """Return the cause of its end, which decides how the other tasks of its attempt end."""
        is_told = self._intent is not Intent.RUN
        if self._gives_back or (end in (AttemptEnd.LOST, AttemptEnd.HANDED_BACK) and not is_told):
            return "worker"
        # A further task that is told to end may fail because the other tasks have ended. That is not its own failure.
        is_own = not (self.task and is_told) or self._fault is not None
        return "failure" if end is AttemptEnd.FAILED and is_own else "itself"

    def _note_import(self) -> None:
        """Tell the driver that this worker has the attempt, and claims it after an import."""
        self._imports_since = time.monotonic()
        self.journal.hold([self.held], self._worker.timing.lease_s)

    def _execute(
        self,
        turn: Turn,
        zygote: ZygoteHandle | None,
        problem: Problem,
        grant: Grant,
        stdout: Path,
        stderr: Path,
    ) -> AttemptEnded:
        """Run the trial's process, unless it has no zygote or has to end already.

        Return how the attempt ended.
        """
        status = None
        folder = self._worker.scratch.folder(self.journal.experiment, self.claim)
        try:
            if zygote is not None and self._intent is Intent.RUN:
                try:
                    self._worker.logs.begin(stdout, stderr)
                    message = self._start_message(grant, stdout, stderr, folder)
                    status = self._supervise(turn, zygote, message)
                except ZygoteDied as error:
                    problem = (type(error).__name__, str(error))
                except BrokerUnavailable:
                    # Raised only when the worker is shutting down: until then the journal tries again.
                    raise
                except Exception as error:
                    logger.exception("trial %s attempt %d could not be started", self.claim.trial, self.claim.attempt)
                    text = f"on worker {self._worker.name}: the trial's process could not be started: {error}"
                    problem = (type(error).__name__, text)
                self._refusal = "" if self.task or self.has_reported else refusal_in(folder)
            if problem[0] and self.pid is None and self._intent is Intent.RUN:
                self._worker.slots.back_off.note_problem("started", f"{problem[0]}: {problem[1]}")
            ended = self._make_end_event(status, problem, stdout, stderr)
            self._worker.hooks.ending(self, ended.end)
            return ended
        finally:
            self._worker.scratch.remove(folder)

    def _start_message(self, grant: Grant, stdout: Path, stderr: Path, folder: Path) -> StartMessage:
        clock = self._worker.clock
        config, checkpoint = grant.assignment[:2]
        return {
            "config": config,
            "timestamp": grant.timestamp,
            "epoch_s": clock.time() - clock.monotonic(),
            "stdout": str(stdout),
            "stderr": str(stderr),
            "trial": self.trial,
            "seat": self.task,
            "seats": grant.assignment.tasks,
            "address": grant.address,
            "attempt": self.claim.attempt,
            "claim": self.claim.mark,
            "experiment": self.journal.experiment,
            "checkpoint": checkpoint,
            "checkpoint_data": self.journal.checkpoint(checkpoint) if is_in_memory(checkpoint) else None,
            "store": self.definition.get("store", ""),
            "sync": self.definition.get("sync", "stream"),
            "folder": str(folder),
            "working_dir": self._working_dir,
            "options": {name: self.definition[name] for name in _OPTIONS if name in self.definition},
            # Last: a service may release a port here, which the process then uses.
            "environment": self._worker.hooks.variables(self),
        }

    def _supervise(self, turn: Turn, zygote: ZygoteHandle, message: StartMessage) -> int | None:
        """Start the trial and wait for its end. Return its wait status; None if it is unknown."""
        self.stream = stream = Stream(self.journal, self.claim, self)
        try:
            try:
                self._worker.uplink.attach(stream)
                if zygote.keeps or turn.changes_zygote:
                    # A kept process must not get this attempt while it can still be signalled for the previous one. And
                    # another zygote does not know whether the previous trial has ended.
                    turn.wait()
                zygote, pid = self._start(turn, zygote, message, [stream.write_end, self._control.read_end])
            finally:
                os.close(stream.write_end)
            if self.assignment.timeout_s is not None:
                self._over_at = time.monotonic() + self.assignment.timeout_s
            while True:
                self.pid, self._retired = pid, zygote.retired
                self._worker.slots.back_off.note_done("started")
                self.began_at = self.began_at or time.monotonic()
                with self._lock:
                    self._process = zygote, pid
                self._worker.hooks.started(self)
                if self._intent is not Intent.RUN:
                    zygote.tell(pid)
                gone = self._watch(zygote, pid)
                if not gone.again:
                    break
                pid = zygote.wait_started()
            stays, self._retired = zygote.keep(gone.status, partial(self._find_objection, turn))
            if not stays:
                turn.note_not_kept()
            return gone.status
        except Exception:
            # If the trial runs nevertheless, it ends with its zygote.
            zygote.end()
            raise
        finally:
            with self._lock:
                self._process = None
            self.gone_at = time.monotonic()
            if not turn.is_checked:
                turn.end()
            self._offer_slot()
            self._worker.uplink.detach(stream)

    def _find_objection(self, turn: Turn, stays: bool) -> str:
        """Return why this worker runs no other attempt in this one's process; empty if it may.

        *stays* says whether the process still exists; only then services are asked.
        """
        if self._outlived:
            return "it ran longer than its timeout_s"
        if self._forced:
            return "it was ended by a signal"
        return turn.slot.hooks.retires(turn.slot) if stays else ""

    def _start(
        self, turn: Turn, zygote: ZygoteHandle, message: StartMessage, fds: Sequence[int]
    ) -> tuple[ZygoteHandle, int]:
        """Have the trial's process started. Return its zygote and its process id.

        A zygote that dies before that, perhaps with the previous trial, has started nothing. A fresh zygote replaces it
        once.
        """
        is_fresh = False
        while True:
            try:
                zygote.send_start(message, fds)
                turn.wait()
                return zygote, zygote.wait_started()
            except ZygoteDied as error:
                zygote.end()
                turn.wait()
                if is_fresh or self._intent is not Intent.RUN:
                    raise
                logger.warning("trial %s attempt %d: %s; a fresh one starts it", *self.claim[:2], error)
            zygote, is_fresh = import_again(turn), True

    def _watch(self, zygote: ZygoteHandle, pid: int) -> Gone:
        """Wait for the trial's end; send SIGTERM and then SIGKILL when these are due.

        The end of the trial's process is watched here too: a zygote that does not reap it in time is killed, and this
        process reaps it. So an attempt ends within a known time after SIGKILL, even if processes are frozen.
        """
        silent_s = self._worker.timing.zygote_silence_s
        poll = select.poll()
        says, exits = zygote.fileno(), zygote.pidfd
        for fd in (says, self._wake.fileno(), exits):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        signals, over_at = [zygote.terminate, zygote.kill], self._over_at
        #: By when the zygote must send a message, and by when nothing of the trial may be left.
        says_by = gone_by = math.inf
        while True:
            due = min(self._next_signal_at if signals else math.inf, over_at, says_by)
            wait_ms = None if due == math.inf else max(0.0, due - time.monotonic()) * 1000
            ready = {fd for fd, _ in poll.poll(wait_ms)}
            now = time.monotonic()
            if says in ready:
                if (gone := zygote.hear_end()) is not None:
                    return gone
                says_by = min(now + silent_s, gone_by)
            elif now >= says_by:
                if now < due + silent_s:
                    return zygote.take_over("did not reap its trial")
                # This process was frozen itself, and perhaps the zygote too.
                says_by = now + silent_s
            elif exits in ready:
                poll.unregister(exits)
                says_by, gone_by = now + silent_s, now + GONE_S
                # The trial needs no more signals, and can't exceed its time any more.
                signals.clear()
                over_at = math.inf
            self._wake.clear()
            if now >= over_at:
                self._over_at = over_at = math.inf
                # A trial that is about to end anyway does not count as too slow.
                if self._intent is Intent.RUN and not self.is_ending:
                    self._outlived = True
                    self._apply_intent(Intent.STOP)
            if signals and now >= self._next_signal_at:
                self._forced = True
                signals.pop(0)(pid)
                with self._lock:
                    self._next_signal_at = now + self._worker.timing.terminate_grace_s
                if not signals:
                    says_by = min(says_by, now + silent_s)

    def _make_end_event(self, status: int | None, problem: Problem, stdout: Path, stderr: Path) -> AttemptEnded:
        packed = self.stream.end if self.stream is not None else None
        said = None if packed is None else decode_value(packed)
        end, error_type, error = ending = AttemptOutcome(
            intent=self._intent,
            said=said,
            problem=problem,
            status=status,
            forced=self._forced,
            memory_ran_out=self._worker.memory_kills.happened,
            outlived_s=self.assignment.timeout_s if self._outlived else None,
            has_gap=self._has_gap,
            dropped=self.stream.dropped if self.stream is not None else 0,
            fault=self._fault,
            has_devices=bool(self.devices),
            refusal=self._refusal,
        ).ending()
        return AttemptEnded(
            trial=self.trial,
            attempt=self.claim.attempt,
            end=end,
            at=self._worker.clock.time(),
            pid=self.pid or 0,
            exit_code=os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
            signal=os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            error_type=error_type or (self._reason_type if end is AttemptEnd.HANDED_BACK else ""),
            error=error or (self._reason if end is not AttemptEnd.COMPLETED else ""),
            outlived=self._outlived and end is AttemptEnd.FAILED,
            retired=self._retired,
            stdout_tail=self._worker.logs.end(stdout, ending.tail_bytes),
            stderr_tail=self._worker.logs.end(stderr, ending.tail_bytes),
            usage=self._worker.hooks.measured(self),
        )
