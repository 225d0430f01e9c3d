"""A backend: runs trials in threads of the driver's process.

Trials are generators, as those of ``mqtune.Simulated`` are, but time is real. What a backend has to do for an attempt
stands in ``_Attempt``: claim it, report, obey, and say how it ended.
"""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from mqtune import Resources
from mqtune.backends.base import BackendSession
from mqtune.checkpoints import decode_dict, encode_dict, open_store
from mqtune.core.codec import decode_value, pack_metrics, segment_bytes
from mqtune.core.errors import CheckpointGone, ConfigurationError
from mqtune.core.events import AttemptEnded, AttemptStarted, CheckpointSaved
from mqtune.core.trial import (
    Attempt,
    AttemptEnd,
    CheckpointId,
    Config,
    Intent,
    Metrics,
    TrialId,
    checkpoint_id,
    is_in_memory,
)
from mqtune.journal import (
    FENCED,
    WAIT,
    Assignment,
    Claim,
    LogChunk,
    LogStream,
    MemoryJournal,
    MemoryServer,
    Segment,
)

Reports = Callable[[Config], Iterable[tuple[float, Metrics | Exception]]]
_Key = tuple[TrialId, int]

#: How long an attempt counts as running after the last sign of its thread.
LEASE_S: Final = 15.0
#: How often a thread checks whether its trial should stop, pause or save.
LOOK_S: Final = 0.005
#: How each intent ends an attempt.
ENDS: Final = {
    Intent.STOP: AttemptEnd.STOPPED,
    Intent.PAUSE: AttemptEnd.PAUSED,
    Intent.COMPLETE: AttemptEnd.COMPLETED,
    Intent.ABANDON: AttemptEnd.STOPPED,
    Intent.HAND_BACK: AttemptEnd.HANDED_BACK,
}


class Threads:
    """Runs each trial in a thread. Users pass it as ``Tuner(backend=…)``.

    Args:
        reports: returns or yields ``(seconds, metrics)`` of a config's reports; an exception in place of the metrics
            fails the trial.
        slots: number of trials that run at the same time.
        checkpoints: whether each report comes with a checkpoint.
    """

    def __init__(self, reports: Reports, *, slots: int = 2, checkpoints: bool = True) -> None:
        self.reports = reports
        self.slots = slots
        self.checkpoints = checkpoints
        self.offer = Resources(cpus=1)
        #: The journal outlives a driver, and so do running trials.
        self.server = MemoryServer()
        self.experiment = ""
        self.waiting: dict[_Key, None] = {}
        self.running: set[_Key] = set()
        self.lock = threading.RLock()

    def open(self, experiment: str, resources: Resources) -> BackendSession:
        if self.experiment not in ("", experiment):
            raise ConfigurationError(f"this backend runs the experiment {self.experiment!r}; make another one")
        self.experiment = experiment
        return ThreadSession(self, resources)

    def start_waiting(self) -> None:
        """Start the attempts that wait, as far as there are slots."""
        with self.lock:
            while self.waiting and len(self.running) < self.slots:
                key = next(iter(self.waiting))
                del self.waiting[key]
                self.running.add(key)
                threading.Thread(target=self._run, args=key, daemon=True).start()

    def _run(self, trial: TrialId, attempt: int) -> None:
        try:
            _Attempt(self, trial, attempt).run()
        finally:
            with self.lock:
                self.running.discard((trial, attempt))
            self.start_waiting()


class ThreadSession:
    """Serves one driver."""

    def __init__(self, threads: Threads, resources: Resources) -> None:
        self.journal = MemoryJournal(threads.server, threads.experiment)
        self.clock = time
        self._threads = threads
        self._resources = resources

    @property
    def slots(self) -> int:
        return self.offered(self._resources)

    def refresh(self) -> None:
        """Do nothing: the slots are always the same."""

    def why_no_slot(self) -> str:
        return f"no worker offers a slot with {self._resources}: {self.resource_string()}"

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        with self._threads.lock:
            if (trial, attempt) not in self._threads.running:
                self._threads.waiting[trial, attempt] = None
        self._threads.start_waiting()

    def started(self, trial: TrialId, attempt: int, queue: str) -> None:
        """Do nothing: the threads know what runs."""

    def ended(self, trial: TrialId, attempt: int) -> None:
        with self._threads.lock:
            self._threads.waiting.pop((trial, attempt), None)

    def lost(self, trial: TrialId, attempt: Attempt) -> None:
        """Do nothing: nobody watches but the driver."""

    def offered(self, resources: Resources) -> int:
        return self._threads.slots if resources.fits(self._threads.offer) else 0

    def free(self, resources: Resources) -> int:
        busy = len(self._threads.running) + len(self._threads.waiting)
        return max(0, self.offered(resources) - busy)

    def resource_string(self) -> str:
        return f"{self._threads.slots} threads: each {self._threads.offer}"

    def has_gpus(self) -> bool | None:
        return False

    def queued(self) -> set[_Key]:
        with self._threads.lock:
            return set(self._threads.waiting)

    def read_log(self, worker: str, trial: TrialId, attempt: int, stream: LogStream, offset: int) -> LogChunk:
        return LogChunk(b"", 0, 0, is_open=False)

    def close(self) -> None:
        """Do nothing: the threads go on, for the next driver."""


class AttemptTimeout(Exception):
    """An attempt ran for longer than its ``timeout_s``."""


class _Ended(Exception):
    """The attempt is to end so; without an end, it no longer counts."""

    def __init__(self, end: AttemptEnd | None = None) -> None:
        self.end = end


class _Attempt:
    """One attempt, in its thread."""

    def __init__(self, threads: Threads, trial: TrialId, attempt: int) -> None:
        self._threads = threads
        self._journal = MemoryJournal(threads.server, threads.experiment)
        self._claim = Claim(trial, attempt, secrets.token_hex(8))
        #: The number of reports so far, of this attempt and of the trial.
        self._sequence = 0
        self._position = 0
        self._total_s = 0.0
        self._saved = 0
        self._saves_heard = 0
        self._cleared = 0
        self._timeout_s = 0.0
        self._until = float("inf")
        self._definition: dict[str, Any] = {}

    def run(self) -> None:
        worker, host = f"thread-{threading.get_ident()}", socket.gethostname()
        started = AttemptStarted(
            trial=self._claim.trial,
            attempt=self._claim.attempt,
            worker=worker,
            host=host,
            devices=[],
            at=time.time(),
            queue="threads",
        )
        grant = self._journal.claim(self._claim, worker, LEASE_S, started.encode())
        if isinstance(grant, str):
            # It was stopped, superseded or claimed meanwhile.
            return
        try:
            self._play(grant.assignment)
        except _Ended as ended:
            if ended.end is not None:
                self._end(ended.end)
        except AttemptTimeout as error:
            self._end(AttemptEnd.FAILED, error, outlived=True)
        except Exception as error:  # noqa: BLE001 - what the user's code raises is the trial's failure
            self._end(AttemptEnd.FAILED, error)
        else:
            self._end(AttemptEnd.COMPLETED)

    def _play(self, assignment: Assignment) -> None:
        self._definition = decode_value(self._journal.definition() or b"")
        if assignment.timeout_s is not None:
            self._timeout_s = assignment.timeout_s
            self._until = time.monotonic() + assignment.timeout_s
        for seconds, metrics in self._items(assignment):
            self._wait(seconds)
            if isinstance(metrics, Exception):
                raise metrics
            self._report(metrics, seconds)

    def _items(self, assignment: Assignment) -> Iterator[tuple[float, Metrics | Exception]]:
        """Yield the reports that follow the report of the attempt's checkpoint."""
        if assignment.checkpoint:
            self._position, self._total_s = self._restored(assignment.checkpoint)
        begin, left = self._position, self._position
        for item in self._threads.reports(assignment.config):
            left -= not isinstance(item[1], Exception)
            # An error before that report has happened already.
            if left < 0 or not begin:
                yield item

    def _restored(self, checkpoint: CheckpointId) -> tuple[int, float]:
        """Return the position and the time in a checkpoint, which is a dict in the journal, or a folder."""
        if is_in_memory(checkpoint):
            data = self._journal.checkpoint(checkpoint)
            if data is None:
                raise CheckpointGone(f"the checkpoint {checkpoint} is gone")
            values, counters = decode_dict(data)
            return values["position"], counters["time_total_s"]
        with tempfile.TemporaryDirectory() as folder:
            counters = open_store(self._definition["store"]).fetch(checkpoint, Path(folder, "checkpoint"))
            return int(Path(folder, "checkpoint", "position").read_text()), counters.get("time_total_s", 0.0)

    def _wait(self, seconds: float) -> None:
        """Let time pass, and do meanwhile what the driver wants."""
        until = time.monotonic() + seconds
        while True:
            self._obey(self._journal.renew([self._claim], LEASE_S)[0])
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, LOOK_S))

    def _obey(self, answer: str) -> None:
        """Do what an answer of the journal's says.

        Raises:
            _Ended: the attempt is to end.
        """
        if time.monotonic() > self._until:
            raise AttemptTimeout(f"the attempt ran for {self._timeout_s:g} s, which is its timeout_s")
        if answer == FENCED:
            raise _Ended
        for word in answer.split():
            name, _, number = word.partition(":")
            if name == "save" and int(number) > self._saves_heard:
                self._saves_heard = int(number)
                self._save_on_demand()
            elif name == "go":
                self._cleared = int(number)
            elif name == "undriven":
                raise _Ended(AttemptEnd.HANDED_BACK)
            # A full journal asks to wait, and takes what comes all the same.
            elif name not in ("save", "go", WAIT):
                raise _Ended(ENDS[Intent(name)])

    def _report(self, metrics: Metrics, seconds: float) -> None:
        self._sequence += 1
        self._position += 1
        self._total_s += seconds
        counters = {
            "training_iteration": self._position,
            "time_this_iter_s": seconds,
            "time_total_s": self._total_s,
        }
        checkpoint = self._save() if self._threads.checkpoints else ""
        at = time.time()
        packed = pack_metrics(at, {**counters, **metrics}, checkpoint)
        data = segment_bytes(self._claim.trial, self._claim.attempt, self._sequence, [packed])
        self._obey(self._journal.report([Segment(self._claim, self._sequence, 1, at, data)])[0])
        while self._definition["sync"] == "lockstep" and self._cleared < self._sequence:
            self._wait(LOOK_S)

    def _save(self) -> CheckpointId:
        self._saved += 1
        trial, attempt, _ = self._claim
        checkpoint = checkpoint_id(trial, attempt, self._saved, in_memory=True, claim=self._claim.mark)
        counters = {"training_iteration": self._position, "time_total_s": self._total_s}
        self._journal.put_checkpoint(self._claim, checkpoint, encode_dict({"position": self._position}, counters))
        return checkpoint

    def _save_on_demand(self) -> None:
        if self._threads.checkpoints:
            checkpoint = self._save()
            saved = CheckpointSaved(
                trial=self._claim.trial, attempt=self._claim.attempt, checkpoint=checkpoint, at=time.time()
            )
            self._journal.saved(self._claim, {checkpoint: saved.encode()})

    def _end(self, end: AttemptEnd, error: Exception | None = None, *, outlived: bool = False) -> None:
        ended = AttemptEnded(
            trial=self._claim.trial,
            attempt=self._claim.attempt,
            end=end,
            at=time.time(),
            pid=os.getpid(),
            exit_code=int(error is not None),
            error_type="" if error is None else type(error).__name__,
            error="" if error is None else "".join(traceback.format_exception(error)),
            outlived=outlived,
        )
        self._journal.end(self._claim, ended.encode())
