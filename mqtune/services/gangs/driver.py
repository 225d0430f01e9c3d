"""The driver's part of gangs: it has them seated, and refuses them where they can't run."""

from __future__ import annotations

from collections.abc import Sequence

from mqtune.backends import BackendSession, QueueBackend, TakesSeveralTasks
from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import Resources
from mqtune.services.gangs.seating import Seating


def check_for_settings(asked: Sequence[Resources], backend: BackendSession | None) -> None:
    """Prepare a backend for gangs, or refuse gangs that it can't run.

    Args:
        asked: the resources that trials may ask for.
        backend: the backend's session; None for one worker on this machine, which has not started yet.

    Raises:
        ConfigurationError: the backend, or this machine, can't run what trials ask for.
    """
    machines, seats = max(resources.machines for resources in asked), asked[0].seats
    if backend is None and machines > 1:
        raise ConfigurationError(
            f"a trial asks for machines={machines}, and this machine alone is one worker: give seats={machines} to "
            f"have {machines} slots here, or a broker with several workers"
        )
    if backend is not None and seats > 1 and not isinstance(backend, TakesSeveralTasks):
        raise ConfigurationError(
            f"resources: a trial asks for {seats} seats, and this backend, {type(backend).__name__}, runs each trial "
            "in one slot: leave out machines=… and seats=…"
        )
    if isinstance(backend, QueueBackend):
        backend.placement = Seating()
