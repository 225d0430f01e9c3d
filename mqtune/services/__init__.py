"""The services: what mqtune can do besides running one trial from its begin to its end.

The lists say what a worker and a driver have, in the order in which hooks are called. Each service is a folder. The
kernel imports none of them: whoever starts a worker or a driver gives it this list. Without a service, all else works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from mqtune.services import health
from mqtune.worker import WorkerSettings
from mqtune.worker.ports import MakeServices, WorkerHost, WorkerService

if TYPE_CHECKING:
    from mqtune.worker import TrialApp

#: The services of a worker.
OF_WORKER: Final[tuple[Callable[[WorkerHost, WorkerSettings], Sequence[WorkerService]], ...]] = (health.for_worker,)


def worker_services(settings: WorkerSettings) -> MakeServices:
    """Return what makes the services of a worker with these settings."""
    return lambda host: tuple(chain.from_iterable(make(host, settings) for make in OF_WORKER))


def worker_app(settings: WorkerSettings) -> TrialApp:
    """Return the Celery app of a worker with all services; ``celery -A`` takes it, and so does Flower."""
    # Celery's import takes half a second, and the worker of a run on one machine does without.
    from mqtune.worker import create_app  # noqa: PLC0415

    return create_app(settings, worker_services(settings))
