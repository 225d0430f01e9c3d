"""The services of a worker, in the order in which their hooks are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from mqtune.services.code import worker as code
from mqtune.services.exporter import worker as exporter
from mqtune.services.folders import worker as folders
from mqtune.services.gangs import worker as gangs
from mqtune.services.health import worker as health
from mqtune.services.late_imports import worker as late_imports
from mqtune.services.logs import worker as logs
from mqtune.services.packing import worker as packing
from mqtune.services.reuse import worker as reuse
from mqtune.services.submissions import worker as submissions
from mqtune.services.usage import worker as usage
from mqtune.worker import WorkerSettings
from mqtune.worker.ports import MakeServices, WorkerHost, WorkerService

if TYPE_CHECKING:
    from mqtune.worker import TrialApp

SERVICES: Final[tuple[Callable[[WorkerHost, WorkerSettings], Sequence[WorkerService]], ...]] = (
    gangs.for_worker,
    code.for_worker,
    late_imports.for_worker,
    folders.for_worker,
    reuse.for_worker,
    health.for_worker,
    # Behind the check of health: a device's memory is measured last.
    packing.for_worker,
    usage.for_worker,
    logs.for_worker,
    exporter.for_worker,
    submissions.for_worker,
)


def worker_services(settings: WorkerSettings) -> MakeServices:
    """Return a function that makes the services of a worker with these settings."""
    return lambda host: tuple(chain.from_iterable(make(host, settings) for make in SERVICES))


def worker_app(settings: WorkerSettings) -> TrialApp:
    """Return the Celery app of a worker with all services, for ``celery -A`` and Flower."""
    # Celery's import takes half a second, and the worker of a run on one machine does without.
    from mqtune.worker import create_app  # noqa: PLC0415

    return create_app(settings, worker_services(settings))
