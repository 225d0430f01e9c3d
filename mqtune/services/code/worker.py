"""The worker's part of code: fetches, verifies and unpacks bundles."""

from __future__ import annotations

from mqtune.journal import CodeExchange
from mqtune.services.code.bundles import Bundles
from mqtune.services.code.settings import CodeSettings
from mqtune.worker import WorkerSettings
from mqtune.worker.ports import WorkerHost, WorkerService


def for_worker(host: WorkerHost, settings: WorkerSettings) -> tuple[WorkerService]:
    """Return the service for code that drivers send. Without a key it refuses all of it."""

    def exchange(experiment: str) -> CodeExchange:
        return CodeExchange(host.client, experiment, closing=host.closing)

    key = settings.code_key if settings.of(CodeSettings).accept_code else ""
    return (Bundles(host.scratch.hidden("bundles"), key, exchange, host.code_roots),)
