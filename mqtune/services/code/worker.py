"""The worker's part of code: fetches bundles, checks and unpacks them."""

from __future__ import annotations

from mqtune.journal import CodeExchange
from mqtune.services.code.bundles import Bundles
from mqtune.worker import WorkerSettings
from mqtune.worker.ports import WorkerHost, WorkerService


def for_worker(host: WorkerHost, settings: WorkerSettings) -> tuple[WorkerService]:
    """Return what has the code that drivers bring. Without a key it refuses all."""

    def exchange(experiment: str) -> CodeExchange:
        return CodeExchange(host.client, experiment, closing=host.closing)

    key = settings.code_key if settings.accept_code else ""
    return (Bundles(host.scratch.hidden("bundles"), key, exchange, host.code_roots),)
