"""The worker's part of health: the operator's check, and the watch for quick failures."""

from __future__ import annotations

from collections.abc import Sequence

from mqtune.services.health.check import HealthCheck
from mqtune.services.health.quick_failures import QuickFailures
from mqtune.services.health.settings import HealthSettings
from mqtune.worker import WorkerSettings
from mqtune.worker.ports import WorkerHost, WorkerService


def for_worker(host: WorkerHost, settings: WorkerSettings) -> Sequence[WorkerService]:
    """Return the operator's health check, if there is one, and the watch for quick failures."""

    def devices_of(experiment: str) -> list[tuple[tuple[str, ...], bool]]:
        runs = (run for run in host.attempts() if run.journal.experiment == experiment and run.devices)
        return [(run.devices, run.is_running) for run in runs]

    failures = QuickFailures(host.name, host.impairments, devices_of, host.timing)
    command = settings.of(HealthSettings).health_check
    if not command:
        return (failures,)
    return HealthCheck(command, host.impairments, host.timing), failures
