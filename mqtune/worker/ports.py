"""The port between a worker and its services.

A service adds a feature to a worker. The worker knows no service by name: it calls the hooks of its services, in order.
An error in a hook is logged, and counts as its default answer. ``WorkerService`` names the exceptions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mqtune.core.clock import Clock
from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.core.trial import AttemptEnd
from mqtune.journal.base import Claim, Grant, Journal, Refusal, Reserved
from mqtune.journal.server.connection import RedisClient
from mqtune.worker.host.devices import SlotPlan
from mqtune.worker.host.impairments import Impairments
from mqtune.worker.host.logs import Logs
from mqtune.worker.host.scratch import Scratch
from mqtune.worker.host.threads import Step
from mqtune.worker.programs.experiments import ExperimentHere
from mqtune.worker.programs.importers import ImportKey
from mqtune.worker.programs.preloads import Preloads
from mqtune.worker.reports.outcome import RunResult


class SlotHere(Protocol):
    """A slot of the worker, as services see it."""

    @property
    def index(self) -> int:
        """Its number."""

    @property
    def places(self) -> tuple[str, ...]:
        """Its devices by the names in impairments; ``WHOLE_WORKER`` for a slot without devices."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that name its devices to a process."""


class AttemptHere(Protocol):
    """An attempt whose task is on the worker, as services see it."""

    @property
    def journal(self) -> Journal:
        """Its experiment's journal."""

    @property
    def claim(self) -> Claim:
        """Its trial and number, and the token of its lease."""

    @property
    def definition(self) -> Mapping[str, Any]:
        """Its experiment's definition."""

    @property
    def slot(self) -> int:
        """The number of its slot; -1 until it has one."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of its slot; empty until it has one."""

    @property
    def resources(self) -> Resources:
        """The resources for which each trial of its experiment asks."""

    @property
    def process(self) -> int | None:
        """The id of its trial's process; None while it has no process."""

    @property
    def shared_bytes(self) -> int:
        """The memory that it asks for on a shared GPU, in bytes; 0 if it is unknown."""

    @property
    def waited_s(self) -> float:
        """The seconds that its data has waited for the server so far."""

    def fail(self, error_type: str, error: str) -> None:
        """Kill its processes, and end it as failed with this error."""

    def wait(self, timeout_s: float) -> bool:
        """Wait at most *timeout_s* seconds until it has to end. Return whether it has to."""

    @property
    def is_running(self) -> bool:
        """Whether this worker has claimed it, and not ended it yet."""

    @property
    def has_reported(self) -> bool:
        """Whether it has sent a report."""

    @property
    def began_at(self) -> float | None:
        """When its process started, by ``time.monotonic``; None before that."""

    @property
    def gone_at(self) -> float:
        """When its last process had exited, by ``time.monotonic``; infinite before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """The state of a worker at one moment.

    Attributes:
        slots: the number of its slots.
        usable: the number of slots that take trials or run one.
        busy: the number of slots with a trial.
        free: the numbers of the slots that an attempt could take now.
        waiting: the number of attempts that wait for a slot.
        heartbeat_at: the time of its last heartbeat that the server answered, by this machine's clock; 0 before that.
        is_heard: whether the server has answered a heartbeat within the last ``lease_s``.
    """

    slots: int
    usable: int
    busy: int
    free: Sequence[int] = ()
    waiting: int = 0
    heartbeat_at: float
    is_heard: bool


@dataclass(frozen=True, slots=True)
class ProgramPlace:
    """Where the program of an experiment is on this worker.

    Attributes:
        code_root: the folder below which the trainable is.
        cwd: the folder in which trials run; None for the worker's own.
        environment: entries to add to each attempt's environment in the journal.
    """

    code_root: Path
    cwd: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHost:
    """The parts of a worker that its services use.

    Attributes:
        name: the worker's name in the fleet.
        plan: its slots and their devices.
        client: its connection to the server.
        clock: the time that all machines share.
        timing: its intervals and time-outs.
        impairments: the impairments of the worker and its devices; services add theirs.
        attempts: returns the attempts whose tasks are here, claimed or not.
        journal: returns the journal of an experiment.
        logs: returns the output files of its attempts.
        state: returns the worker's state. It may be called once the worker starts.
        scratch: the temporary folders of its attempts, and of services' files.
        code_roots: returns the code roots of the programs that have an importer.
        closing: set when the worker closes. Calls then retry no more while the server is away.
    """

    name: str
    plan: SlotPlan
    client: RedisClient
    clock: Clock
    timing: Timing
    impairments: Impairments
    attempts: Callable[[], Iterable[AttemptHere]]
    journal: Callable[[str], Journal]
    logs: Callable[[], Logs]
    state: Callable[[], WorkerState]
    scratch: Scratch
    code_roots: Callable[[], set[Path]]
    closing: threading.Event


#: Sends an attempt's claim, with its lease in seconds and this worker's address, and returns the journal's answer.
SendClaim = Callable[[float, str], Grant | Refusal | Reserved]


class WorkerService:
    """A feature of a worker. It overrides the hooks that it needs; the others do nothing.

    These hooks can keep an attempt from starting:

    - ``room`` and ``leaves``: the attempt gets no slot. It waits for one, or returns to its queue.
    - ``program``, ``prepare`` and ``variables``: an error refuses the attempt, with its text.
    - ``admit``: the slot runs no attempt, also after an error. The task returns to the queue.
    - ``claim``: the attempt has a slot, but gets no lease in the journal, and so its process does not start.
    """

    def start(self) -> None:
        """Start the service, before the worker joins the fleet. An error ends the worker's start."""

    def heartbeat(self) -> Iterable[Step]:
        """Return steps for each heartbeat. They must be quick: leases are renewed after them."""
        return ()

    def tick(self) -> Iterable[Step]:
        """Return steps for each round. They may take seconds: no lease and no report waits for them."""
        return ()

    def hinted(self, experiment: str, hint: str) -> None:
        """Handle a hint of the control channel. Return immediately, and ignore unknown hints."""

    def program(self, experiment: ExperimentHere) -> ProgramPlace | None:
        """Return the place of an experiment's program on this worker.

        Return None if this service does not know.

        It is called before each import and before each claim, in the attempt's thread, and may take seconds. The first
        answer counts; without one, the program is below the worker's code root. After an error the attempt does not
        start: no other program may run in place of the right one.
        """
        return None

    def prepare(self, experiment: ExperimentHere, key: ImportKey) -> ImportKey:
        """Return the import key with this service's additions to the processes of trials.

        It is called after ``program``. Each service gets the key that the previous one returned. Trials with equal keys
        share importers and zygotes. After an error the attempt does not start, with the error's text as the reason.
        """
        return key

    def preloads(self) -> Preloads | None:
        """Return the modules to import before trials need them; None if this service does not know.

        It is called once, before the worker has importers. The first answer counts. Without one, packages are left to
        trials. An error in a method of the answer is logged, and that call has no effect.
        """
        return None

    def room(self, slot: SlotHere, run: AttemptHere) -> float:
        """Return how much room a free slot would have left with an attempt, in a unit of its own.

        Below 0 the attempt can't have the slot. Of several slots, an attempt gets the one with the least room left. If
        no slot has room, it waits, and so do all later attempts. No call of ``room``, ``taken`` or ``left`` overlaps
        another one; each must return immediately.
        """
        return 0.0

    def taken(self, slot: SlotHere, run: AttemptHere) -> None:
        """Note that an attempt has got a slot, perhaps minutes before its claim."""

    def left(self, slot: SlotHere, run: AttemptHere) -> None:
        """Note that an attempt with a slot is over, claimed or not.

        Then ``room`` is called for waiting attempts.
        """

    def leaves(self, run: AttemptHere) -> str:
        """Return why an attempt should return to its queue; empty to let it wait for a slot.

        It is called when the attempt begins to wait, with each heartbeat, and when a slot may have become free. It
        must return immediately.
        """
        return ""

    def admit(self, slot: SlotHere) -> bool:
        """Return whether an attempt may start in a slot.

        It is called before the claim, in the attempt's thread, when the slot's previous turn is over. After False the
        task returns to the queue. A service that refuses a slot must add an impairment; otherwise the task would come
        again immediately.
        """
        return True

    def emptied(self, slot: SlotHere, *, waits: bool) -> None:
        """Note that an admitted slot has no process any more.

        If *waits*, its attempt has just ended, and the next one starts when all services have returned.
        """

    def retires(self, slot: SlotHere) -> str:
        """Return why a slot's process may not run another attempt, or "". May take seconds."""
        return ""

    def working_dir(self, run: AttemptHere) -> Path | None:
        """Return the working directory of an attempt, as users know it.

        Return None if this service gives it none.

        It is called before the claim. The first answer counts.
        """
        return None

    def claim(self, run: AttemptHere, send: SendClaim) -> Grant | RunResult | None:
        """Claim an attempt by *send*. Return the grant, or a result that says why it is not claimed.

        None leaves the claim to the worker. It is called in the attempt's thread, when the slot is ready. The first
        answer counts. It may wait until ``run.wait`` returns True. After an unexpected error the task returns to its
        queue.
        """
        return None

    def variables(self, run: AttemptHere) -> Mapping[str, str]:
        """Return variables for the environment of a claimed attempt's code.

        It is called in the attempt's thread, before its process starts. The import of the trainable's module does not
        see them. After an error the process is not started.
        """
        return {}

    def started(self, run: AttemptHere) -> None:
        """Note that an attempt has a process, perhaps a second one."""

    def renewed(self, run: AttemptHere) -> None:
        """Note that the lease of an attempt was renewed."""

    def measured(self, run: AttemptHere) -> Mapping[str, float]:
        """Return numbers for the journal's entry of an attempt's end. Its processes are gone."""
        return {}

    def ending(self, run: AttemptHere, end: AttemptEnd) -> None:
        """Note an attempt's end before it is journaled. Only its folder still exists, no process."""

    def ended(self, run: AttemptHere, result: RunResult) -> None:
        """Note how an attempt has ended. ``admit`` of the slot's next attempt is called after it."""

    def describe(self) -> Mapping[str, Any]:
        """Return fields of ``WorkerInfo``, the worker's description in the fleet.

        It is called before the worker joins, and with each heartbeat. Leases wait for it, so it must be quick.
        """
        return {}

    def drain(self) -> None:
        """Prepare for the end: the worker starts nothing more. Return immediately, also if repeated."""

    def close(self) -> None:
        """End the service, after the last attempt."""


#: Makes services for a worker.
MakeServices = Callable[[WorkerHost], Sequence[WorkerService]]


def no_services(_: WorkerHost) -> Sequence[WorkerService]:
    """Return no services."""
    return ()
