"""The worker's part of submissions: its driver slots, and the check of their account."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from mqtune.core.errors import AccessDenied, WorkerStartError
from mqtune.journal import RedisClient, connect, open_client
from mqtune.services.submissions.board import Submissions
from mqtune.services.submissions.driver_slots import DriverSlots
from mqtune.worker import WorkerSettings
from mqtune.worker.ports import WorkerHost, WorkerService


def check_for_worker(client: RedisClient, settings: WorkerSettings) -> None:
    """Check that the scripts of driver slots have a driver's account.

    Raises:
        WorkerStartError: the account is not a driver's.
    """
    if not settings.drivers:
        return
    url, timing = settings.driver_broker, settings.timing
    with contextlib.ExitStack() as stack:
        if url:
            client = stack.enter_context(contextlib.closing(connect(url, timing=timing, role="driver")))
        try:
            Submissions(client, patience_s=timing.connect_timeout_s).due()
        except AccessDenied as error:
            raise WorkerStartError(
                f"--drivers {settings.drivers}: scripts drive experiments, and "
                f"{'--driver-broker' if url else '--broker'} has no driver's account; give one by --driver-broker, or "
                f"MQTUNE_DRIVER_BROKER: {error}"
            ) from None


def for_worker(host: WorkerHost, settings: WorkerSettings) -> Sequence[WorkerService]:
    """Return the worker's driver slots, if it has any."""
    if not settings.drivers:
        return ()
    url = settings.driver_broker
    client = open_client(url, timing=settings.timing, role="driver") if url else host.client
    slots = DriverSlots(
        Submissions(client, patience_s=math.inf),
        slots=settings.drivers,
        worker=host.name,
        experiments=settings.experiments,
        broker=url or settings.broker,
        key=settings.code_key,
        logs=host.logs,
        scratch=host.scratch,
        impairments=host.impairments,
        timing=settings.timing,
    )
    return (slots,)
