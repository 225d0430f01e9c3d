"""Serves figures of workers and fleets to Prometheus. Needs the extra ``prometheus``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from mqtune.core.errors import ConfigurationError
from mqtune.core.version import install_command
from mqtune.services.exporter.figures import Figure, ReadFigures, WorkerFigures

try:
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover - the tests have it
    raise ConfigurationError(
        f"prometheus_client can't be imported ({error}); {install_command('prometheus')}"
    ) from error

logger = logging.getLogger(__name__)


def serve_worker(port: int, address: str, read: ReadFigures) -> None:
    """Serve the figures of a worker and its process until the process ends.

    They are read when Prometheus asks.

    Raises:
        ConfigurationError: the port is taken or not allowed.
    """

    def figures() -> Iterable[Figure]:
        figures_read = read()
        return () if figures_read is None else figures_of_worker(figures_read)

    _serve(port, address, FigureCollector(figures), ProcessCollector(registry=None))
    logger.info("figures for Prometheus at http://%s:%d/metrics", address, port)


class FigureCollector(Collector):
    """Collects the figures from *read* when Prometheus asks."""

    def __init__(self, read: Callable[[], Iterable[Figure]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        for figure in self._read():
            kind = CounterMetricFamily if figure.name.endswith("_total") else GaugeMetricFamily
            family = kind(figure.name, figure.text, labels=figure.labels)
            for labels, value in figure.values.items():
                family.add_metric(labels, value)
            yield family


def serve_figures(port: int, address: str, read: Callable[[], Iterable[Figure]]) -> int:
    """Serve figures until the process ends, and return the port.

    Args:
        port: the port; 0 for any free one.
        address: the address of the port.
        read: returns the figures. Several threads may call it at the same time.

    Raises:
        ConfigurationError: the port is taken or not allowed.
    """
    return _serve(port, address, FigureCollector(read))


def figures_of_worker(worker: WorkerFigures) -> Iterator[Figure]:
    """Yield a worker's figures, each with its name as the label ``worker``."""
    labels, name = ("worker",), (worker.worker,)
    yield Figure("mqtune_worker_slots", "Slots.", labels, {name: worker.slots})
    yield Figure("mqtune_worker_slots_usable", "Slots that take trials or run one.", labels, {name: worker.usable})
    yield Figure("mqtune_worker_slots_busy", "Slots that run a trial.", labels, {name: worker.busy})
    text = "Time of its last heartbeat in the fleet."
    yield Figure("mqtune_worker_heartbeat_timestamp_seconds", text, labels, {name: worker.heartbeat_at})
    text = "Attempts by the devices of their slot and how they ended."
    ended: dict[tuple[str, ...], float] = {(worker.worker, *key): count for key, count in worker.ended.items()}
    yield Figure("mqtune_worker_attempts_ended_total", text, ("worker", "device", "end"), ended)
    for unit, text, values in (
        ("memory_bytes", "Memory in use on a device, by any process.", worker.gpu_memory),
        ("load_percent", "Percentage of recent time in which a device computed.", worker.gpu_load),
        ("power_watts", "Power that a device draws.", worker.gpu_power),
    ):
        by_device: dict[tuple[str, ...], float] = {(worker.worker, device): value for device, value in values.items()}
        yield Figure(f"mqtune_worker_gpu_{unit}", text, ("worker", "device"), by_device)
    if worker.redis is not None:
        used, most = worker.redis
        yield Figure("mqtune_worker_redis_memory_bytes", "Memory that the worker's Redis uses.", labels, {name: used})
        text = "Memory that the worker's Redis may use; 0 for no limit."
        yield Figure("mqtune_worker_redis_memory_limit_bytes", text, labels, {name: most})


def _serve(port: int, address: str, *collectors: Collector) -> int:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    try:
        server, _ = start_http_server(port, address, registry)
    except OSError as error:
        raise ConfigurationError(
            f"Prometheus: {address}:{port} can't be listened on ({error.strerror}); give another port"
        ) from error
    return server.server_port
