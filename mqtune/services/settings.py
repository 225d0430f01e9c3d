"""The settings of a worker's services, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from mqtune.services.code.settings import CodeSettings
from mqtune.services.exporter.settings import ExporterSettings
from mqtune.services.gangs.settings import GangSettings
from mqtune.services.health.settings import HealthSettings
from mqtune.services.packing.settings import PackingSettings
from mqtune.services.submissions.settings import SubmissionSettings
from mqtune.services.usage.settings import UsageSettings
from mqtune.worker import ServiceSettings, WorkerSettings

SETTINGS: Final[tuple[type[ServiceSettings], ...]] = (
    PackingSettings,
    HealthSettings,
    GangSettings,
    CodeSettings,
    SubmissionSettings,
    UsageSettings,
    ExporterSettings,
)


def worker_settings(values: Mapping[str, Any]) -> WorkerSettings:
    """Return the settings of a worker and its services from values by field name.

    Raises:
        ConfigurationError: a value is invalid.
    """
    left = dict(values)
    services = tuple(kind(**{name: left.pop(name) for name in _names(kind) & left.keys()}) for kind in SETTINGS)
    return WorkerSettings(**left, services=services)


def _names(kind: type[ServiceSettings]) -> set[str]:
    return {declared.name for declared in fields(kind) if declared.init}
