"""The operator's settings for a worker's figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mqtune.worker import ServiceSettings, option

if TYPE_CHECKING:
    from mqtune.services.exporter.figures import ReadFigures, WorkerFigures


class Observer:
    """Returns a worker's figures, also before the worker has any."""

    def __init__(self) -> None:
        self._read: ReadFigures = _nothing

    def follow(self, read: ReadFigures) -> None:
        """Return the figures from *read* from now on."""
        self._read = read

    def __call__(self) -> WorkerFigures | None:
        """Return the figures; None before the worker's start. Any thread may call it."""
        return self._read()


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings(ServiceSettings):
    """Where a worker serves its figures. They are served from before it is connected."""

    metrics_port: int | None = option(
        None, "Port to serve metrics for Prometheus at; by default none.", range=(0, 65_535)
    )
    metrics_address: str = option("127.0.0.1", "Address to serve these metrics at.")
    observer: Observer = field(default_factory=Observer, init=False, repr=False, compare=False)

    def begin(self) -> None:
        """Begin to serve the figures.

        Raises:
            ConfigurationError: the port is taken or not allowed, or the extra ``prometheus`` is missing.
        """
        if self.metrics_port is not None:
            from mqtune.services.exporter.prometheus import serve_worker  # noqa: PLC0415 - needs the extra prometheus

            serve_worker(self.metrics_port, self.metrics_address, self.observer)
