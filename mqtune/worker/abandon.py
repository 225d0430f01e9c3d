"""An attempt that a person revoked before it ran ends without running."""

from __future__ import annotations

import logging
import uuid

from mqtune.core.events import AttemptEnded, AttemptStarted
from mqtune.core.trial import AttemptEnd, TrialId
from mqtune.journal.base import Claim
from mqtune.journal.connection import RedisClient
from mqtune.journal.redis import RedisJournal
from mqtune.worker.runtime import WorkerRuntime

__all__ = ["abandon"]

logger = logging.getLogger(__name__)


def abandon(runtime: WorkerRuntime, client: RedisClient, task_id: str) -> None:
    """Claim and end an attempt whose message Celery has just thrown away; otherwise the driver would publish it again."""
    experiment, trial, number = task_id.rsplit("/", 2)
    journal = RedisJournal(client, experiment, closing=runtime.closing)
    claim, now = Claim(TrialId(trial), int(number), uuid.uuid4().hex), runtime.services.clock.time()
    started = AttemptStarted(
        trial=claim.trial,
        attempt=claim.attempt,
        worker=runtime.name,
        host=runtime.services.host,
        devices=[],
        at=now,
        stdout_path="",
        stderr_path="",
        queue=runtime.queue,
    )
    if isinstance(journal.claim(claim, runtime.name, runtime.services.lease_s, started.encode()), str):
        return
    ended = AttemptEnded(
        trial=claim.trial, attempt=claim.attempt, end=AttemptEnd.STOPPED, at=now, error="revoked by hand before it ran"
    )
    journal.end(claim, ended.encode())
    logger.info("experiment %s, trial %s: revoked by hand before it ran", experiment, trial)
