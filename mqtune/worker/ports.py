"""The port between a worker and its services.

A service adds a feature to a worker. The worker knows no service by name: it calls the hooks of its services, in order.
docs/adr/0009-ports.md says when each hook is called, and how an error in it is handled.
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
from mqtune.journal.base import Claim, Grant, Journal, Refusal, Seated
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
        """Its devices, as impairments name them; without devices, the whole worker."""

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
        """The number of its process; None while it has no process."""

    @property
    def shared_bytes(self) -> int:
        """How many bytes of a shared device it asks for; 0 where that is not known."""

    @property
    def waited_s(self) -> float:
        """For how long its data has waited for the server so far."""

    def fail(self, error_type: str, error: str) -> None:
        """Kill its processes and fail it, for this reason."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is to end, at most so long. Return whether it is to end."""

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
        """When its last process was gone, likewise; infinite before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """The state of a worker at one moment.

    Attributes:
        slots: the number of its slots.
        usable: the number of slots that take trials or run one; 0 when it leaves.
        busy: the number of slots with a trial.
        free: the numbers of the slots that an attempt could take now.
        waiting: the number of attempts that wait for a slot.
        heartbeat_at: the time of its last heartbeat that the server answered, by this machine's clock; 0 before that.
        is_heard: whether the server has answered a heartbeat recently.
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
        state: returns the worker's state; once it starts.
        figures: returns the figures of all its services, by their names and devices. It may take seconds.
        scratch: the temporary folders of its attempts, and of services' files.
        code_roots: returns the code roots of all programs that it has imported.
        closing: set once the worker closes: calls to the server stop trying.
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
    figures: Callable[[], Mapping[str, Mapping[str, float]]]
    scratch: Scratch
    code_roots: Callable[[], set[Path]]
    closing: threading.Event


#: Sends an attempt's claim for a number of seconds, with this worker's address, and returns the journal's answer.
SendClaim = Callable[[float, str], Grant | Refusal | Seated]


class WorkerService:
    """A feature of a worker. It overrides the hooks that it needs; the others do nothing.

    These hooks can keep an attempt from starting:

    - ``room`` and ``leaves``: the attempt gets no slot. It waits for one, or returns to its queue.
    - ``program``, ``prepare`` and ``variables``: an error refuses the attempt, with its text.
    - ``admit``: the slot runs no attempt. The task returns to the queue.
    - ``claim``: the attempt has a slot, and is not claimed.

    No hook of a worker keeps attempts from being queued. ``DriverService.capacity`` does that.
    """

    def start(self) -> None:
        """Begin, before the worker joins the fleet. An error ends the worker's start."""

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
        """Return the key of an experiment's imports, with this service's additions to its trials' processes.

        It is called behind ``program``, and each service gets the key of the one before it. Equal keys share importers
        and zygotes. An error is the reason why the attempt is not started.
        """
        return key

    def preloads(self) -> Preloads | None:
        """Return the modules to import before trials need them; None if this service does not know.

        It is called once, before the worker has importers. The first answer counts. Without one, packages are left to
        trials. An error in a method of the answer is logged, and its call has nothing imported early.
        """
        return None

    def room(self, slot: SlotHere, run: AttemptHere) -> float:
        """Return the room that a free slot has beside an attempt; below 0, the attempt waits.

        Attempts get slots in their order. Of several, an attempt gets the slot with the least room left. No call of
        ``room``, ``taken`` or ``left`` overlaps another one; each must return immediately.
        """
        return 0.0

    def taken(self, slot: SlotHere, run: AttemptHere) -> None:
        """Note that an attempt has got a slot, long before its claim."""

    def left(self, slot: SlotHere, run: AttemptHere) -> None:
        """Note that an attempt with a slot is over, claimed or not.

        Then ``room`` is called for waiting attempts.
        """

    def leaves(self, run: AttemptHere) -> str:
        """Return why an attempt returns to its queue instead of waiting for a slot.

        The result is empty if it waits.

        It is called when the attempt begins to wait, with each heartbeat, and when a slot may have become free. It
        must return immediately.
        """
        return ""

    def admit(self, slot: SlotHere) -> bool:
        """Return whether an attempt may start in a slot.

        It is called before the claim, in the attempt's thread, when the slot's last attempt has left nothing behind.
        After False the task returns to the queue. A service that refuses a slot adds an impairment; otherwise the task
        would come again immediately.
        """
        return True

    def emptied(self, slot: SlotHere, *, waits: bool) -> None:
        """Note that an admitted slot has no process any more.

        If *waits*, its attempt has just ended, and the next one starts when all services have returned.
        """

    def retires(self, slot: SlotHere) -> str:
        """Return why a slot's process may not run another attempt.

        The result is empty if it may. It may take seconds.
        """
        return ""

    def working_dir(self, run: AttemptHere) -> Path | None:
        """Return the working directory of an attempt, as users know it.

        Return None if this service gives it none.

        It is called before the claim. The first answer counts.
        """
        return None

    def claim(self, run: AttemptHere, send: SendClaim) -> Grant | RunResult | None:
        """Claim an attempt by *send*, or return why it is not claimed.

        None leaves the claim to the worker.

        It is called in the attempt's thread, when the slot is ready. The first answer counts. It may wait until
        ``run.wait`` says that the attempt is to end. After an error the attempt's task goes back.
        """
        return None

    def variables(self, run: AttemptHere) -> Mapping[str, str]:
        """Return variables for the environment of a claimed attempt's code.

        It is called in the attempt's thread, before its process starts. The module's import does not have them yet.
        After an error the process is not started.
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
        """Note an attempt's end before it is journaled. Its processes are gone, its folder is not."""

    def ended(self, run: AttemptHere, result: RunResult) -> None:
        """Note how an attempt has ended, before its slot is free."""

    def figures(self) -> Mapping[str, Mapping[str, float]]:
        """Return figures of the worker by name and device, on request. It may take seconds."""
        return {}

    def describe(self) -> Mapping[str, Any]:
        """Return fields of ``WorkerInfo``, the worker's description in the fleet.

        It is called before the worker joins, and with each heartbeat. Leases wait for it, so it must be quick.
        """
        return {}

    def drain(self) -> None:
        """Prepare for the end: the worker starts nothing more.

        Return immediately, also from a second call.
        """

    def close(self) -> None:
        """End, behind the last attempt."""


#: Makes services for a worker.
MakeServices = Callable[[WorkerHost], Sequence[WorkerService]]
#: Checks what the operator has given to a worker, on its connection, before the worker takes its name in the fleet.
#: An error of mqtune's ends the start with one line.
CheckStart = Callable[[RedisClient], object]


def no_services(_: WorkerHost) -> Sequence[WorkerService]:
    """Return none: the kernel alone."""
    return ()
