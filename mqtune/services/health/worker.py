"""The worker's part of health: the operator's check, and the watch for quick failures."""

from __future__ import annotations

from collections.abc import Sequence

from mqtune.services.health.check import HealthCheck
from mqtune.services.health.quick_failures import QuickFailures
from mqtune.worker import WorkerSettings
from mqtune.worker.ports import WorkerHost, WorkerService


def for_worker(host: WorkerHost, settings: WorkerSettings) -> Sequence[WorkerService]:
    """Return the operator's health check, if there is one, and the watch for quick failures."""

    def devices_of(experiment: str) -> list[tuple[tuple[str, ...], bool]]:
        runs = (run for run in host.attempts() if run.journal.experiment == experiment and run.devices)
        return [(run.devices, run.is_running) for run in runs]

    failures = QuickFailures(host.name, host.impairments, devices_of, host.timing)
    if not settings.health_check:
        return (failures,)
    return HealthCheck(settings.health_check, host.impairments, host.timing), failures
