"""The worker's part of submissions: its driver slots."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mqtune.journal import open_client
from mqtune.services.submissions.board import Submissions
from mqtune.services.submissions.driver_slots import DriverSlots
from mqtune.services.submissions.settings import SubmissionSettings
from mqtune.worker import WorkerSettings
from mqtune.worker.ports import WorkerHost, WorkerService


def for_worker(host: WorkerHost, settings: WorkerSettings) -> Sequence[WorkerService]:
    """Return the worker's driver slots, if it has any."""
    own = settings.of(SubmissionSettings)
    if not own.drivers:
        return ()
    url = own.driver_broker
    client = open_client(url, timing=settings.timing, role="driver") if url else host.client
    slots = DriverSlots(
        Submissions(client, patience_s=math.inf),
        slots=own.drivers,
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
