"""The worker's part of the service ``late_imports``."""

from __future__ import annotations

from mqtune.services.late_imports.known import LateImports
from mqtune.worker import Preloads, WorkerSettings
from mqtune.worker.ports import WorkerHost, WorkerService


class EarlyImports(WorkerService):
    """Tells importers which modules to import early.

    Args:
        known: the late imports of each trainable.
    """

    def __init__(self, known: LateImports) -> None:
        self._known = known

    def preloads(self) -> Preloads:
        """Return the known late imports."""
        return self._known


def for_worker(_: WorkerHost, settings: WorkerSettings) -> tuple[WorkerService]:
    """Return the service, with the knowledge of earlier workers with this log folder."""
    return (EarlyImports(LateImports(settings.log_root)),)
