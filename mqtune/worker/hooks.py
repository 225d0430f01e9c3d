"""The calls of the hooks of a worker's services, with their order and their errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from mqtune.core.errors import MqtuneError
from mqtune.core.trial import AttemptEnd
from mqtune.core.worker_info import WorkerInfo
from mqtune.journal.base import Grant
from mqtune.worker.host.threads import Step
from mqtune.worker.ports import AttemptHere, ProgramPlace, SendClaim, SlotHere, WorkerService
from mqtune.worker.programs.experiments import ExperimentHere
from mqtune.worker.programs.importers import ImportKey
from mqtune.worker.programs.preloads import Preloads, SafePreloads
from mqtune.worker.reports.outcome import RunResult

logger = logging.getLogger(__name__)

T = TypeVar("T")


class WorkerHooks:
    """Calls the hooks of a worker's services, in their order.

    An error in a hook is logged, and the next hook is called.
    """

    def __init__(self, services: Sequence[WorkerService]) -> None:
        self._services = services
        #: The services that may refuse a slot. Without them, an attempt need not wait for the end of the last one.
        self.guards = [service for service in services if type(service).admit is not WorkerService.admit]
        #: The services that may have no room for an attempt although a slot is free.
        self.dividers = [service for service in services if type(service).room is not WorkerService.room]

    def start(self) -> None:
        """Start the services.

        Raises:
            Exception: a service can't start.
        """
        for service in self._services:
            service.start()

    def heartbeat(self) -> list[Step]:
        """Return the steps of a heartbeat."""
        return self._steps(lambda service: service.heartbeat())

    def tick(self) -> list[Step]:
        """Return the steps of a round."""
        return self._steps(lambda service: service.tick())

    def _steps(self, steps_of: Callable[[WorkerService], Iterable[Step]]) -> list[Step]:
        steps: list[Step] = []
        # An error that reached the caller would end its thread, and with that the worker.
        self._each(lambda service: steps.extend(steps_of(service)))
        return steps

    def hinted(self, experiment: str, hint: str) -> None:
        """Call ``hinted`` of each service."""
        self._each(lambda service: service.hinted(experiment, hint))

    def program(self, experiment: ExperimentHere) -> ProgramPlace | None:
        """Return the place of an experiment's program by the first service that knows it, or None.

        Raises:
            Exception: a service refuses the experiment, or fails.
        """
        places = (service.program(experiment) for service in self._services)
        return next((place for place in places if place is not None), None)

    def prepare(self, experiment: ExperimentHere, key: ImportKey) -> ImportKey:
        """Return the key of an experiment's imports as all services change it.

        Raises:
            Exception: a service refuses the experiment, or fails.
        """
        for service in self._services:
            key = service.prepare(experiment, key)
        return key

    def preloads(self) -> Preloads:
        """Return the provider of early imports, from the first service that has one."""
        return SafePreloads(self._first(lambda service: service.preloads()))

    def room(self, slot: SlotHere, run: AttemptHere) -> list[float]:
        """Return the room left in a slot with an attempt, for each service that divides slots."""
        rooms: list[float] = []
        self._each(lambda service: rooms.append(service.room(slot, run)), self.dividers)
        return rooms

    def taken(self, slot: SlotHere, run: AttemptHere) -> None:
        """Tell services that an attempt has got a slot."""
        self._each(lambda service: service.taken(slot, run))

    def left(self, slot: SlotHere, run: AttemptHere) -> None:
        """Tell services that an attempt with a slot is over."""
        self._each(lambda service: service.left(slot, run))

    def leaves(self, run: AttemptHere) -> str:
        """Return the first reason why an attempt should return to its queue, or ""."""
        return self._first(lambda service: service.leaves(run) or None) or ""

    def emptied(self, slot: SlotHere, *, waits: bool) -> None:
        """Tell services that a slot has no process any more."""
        self._each(lambda service: service.emptied(slot, waits=waits))

    def retires(self, slot: SlotHere) -> str:
        """Return the first reason why a slot's process may not run another attempt, or ""."""
        return self._first(lambda service: service.retires(slot) or None) or ""

    def working_dir(self, run: AttemptHere) -> Path | None:
        """Return an attempt's working directory, by the first service that gives it one.

        Return None without one.
        """
        return self._first(lambda service: service.working_dir(run))

    def claim(self, run: AttemptHere, send: SendClaim) -> Grant | RunResult | None:
        """Return the answer of the first service that claims the attempt; None if no service does.

        Raises:
            MqtuneError: the journal accepts no claims.
        """
        try:
            results = (service.claim(run, send) for service in self._services)
            return next((result for result in results if result is not None), None)
        except MqtuneError:
            raise
        except Exception as error:
            logger.exception("trial %s attempt %d could not be claimed", *run.claim[:2])
            return RunResult(None, f"not run: {type(error).__name__}: {error}", goes_back=True)

    def variables(self, run: AttemptHere) -> dict[str, str]:
        """Return the variables for an attempt's code.

        Raises:
            Exception: a service can't name its variables.
        """
        return dict(item for service in self._services for item in service.variables(run).items())

    def started(self, run: AttemptHere) -> None:
        """Tell services that an attempt has a process."""
        self._each(lambda service: service.started(run))

    def renewed(self, run: AttemptHere) -> None:
        """Tell services that a lease was renewed."""
        self._each(lambda service: service.renewed(run))

    def measured(self, run: AttemptHere) -> dict[str, float]:
        """Return the numbers that go into the journal with an attempt's end."""
        numbers: dict[str, float] = {}
        self._each(lambda service: numbers.update(service.measured(run)))
        return numbers

    def describe(self, info: WorkerInfo) -> WorkerInfo:
        """Return the worker's description with the fields that the services add."""

        def add(service: WorkerService) -> None:
            nonlocal info
            info = replace(info, **service.describe())

        self._each(add)
        return info

    def ending(self, run: AttemptHere, end: AttemptEnd) -> None:
        """Tell services how an attempt ends."""
        self._each(lambda service: service.ending(run, end))

    def ended(self, run: AttemptHere, result: RunResult) -> None:
        """Tell services how an attempt has ended."""
        self._each(lambda service: service.ended(run, result))

    def drain(self) -> None:
        """Tell services that the worker starts nothing more."""
        self._each(lambda service: service.drain())

    def close(self) -> None:
        """End the services, the last one first."""
        self._each(lambda service: service.close(), reversed(self._services))

    def _first(self, call: Callable[[WorkerService], T | None]) -> T | None:
        """Return the first answer of a service. Later services are not asked."""
        answers: list[T] = []

        def ask(service: WorkerService) -> None:
            if not answers and (answer := call(service)) is not None:
                answers.append(answer)

        self._each(ask)
        return answers[0] if answers else None

    def _each(self, call: Callable[[WorkerService], object], services: Iterable[WorkerService] | None = None) -> None:
        for service in self._services if services is None else services:
            try:
                call(service)
            except Exception:
                logger.exception("service %s of this worker failed; the worker continues", type(service).__name__)


#: The hooks of a worker without services.
NO_HOOKS: Final = WorkerHooks(())
