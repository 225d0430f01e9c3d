"""The worker's part of late imports: tells importers which modules to import early."""

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
        """Return what knows the late imports of each trainable."""
        return self._known


def for_worker(_: WorkerHost, settings: WorkerSettings) -> tuple[WorkerService]:
    """Return what knows late imports, also those that earlier workers with this log folder have seen."""
    return (EarlyImports(LateImports(settings.log_root)),)
