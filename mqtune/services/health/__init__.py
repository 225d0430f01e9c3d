"""Devices on which trials would fail are kept from them.

Promises: a slot takes no attempt while the operator's health check fails there. A device takes none on which attempts
fail at once while attempts of the same experiment do well elsewhere, until a probe does well. Trials that fail
everywhere close no device.

Terms: a *health check* is the operator's command. It runs before a slot's first attempt, after one that has failed, and
where the last check is old. A *quick failure* is an attempt that fails within seconds and without a report.
"""

from __future__ import annotations

from collections.abc import Sequence

from mqtune.services.health.check import HealthCheck as HealthCheck
from mqtune.services.health.quick_failures import (
    IN_A_ROW as IN_A_ROW,
    LONGEST_PAUSE_S as LONGEST_PAUSE_S,
    QuickFailures as QuickFailures,
)
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
