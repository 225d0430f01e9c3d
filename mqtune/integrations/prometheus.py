"""Figures of a running experiment, of a worker, and of a fleet, for Prometheus; needs the extra ``prometheus``."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from wsgiref.simple_server import WSGIServer

from mqtune.core.callback import Callback
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import ENDS, Attempt, Trial
from mqtune.core.version import install_command

try:
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover - the tests have it
    raise ConfigurationError(
        f"prometheus_client can't be imported ({error}); {install_command('prometheus')}"
    ) from error

if TYPE_CHECKING:
    from mqtune.core.experiment import Experiment
    from mqtune.worker.figures import ReadFigures, WorkerFigures

logger = logging.getLogger(__name__)

#: How long the server is waited for at the end: it answers what it has begun.
_CLOSE_S: Final = 2.0


class Prometheus(Callback):
    """Serves ``/metrics`` while a driver runs: trials by status, reports, ended attempts by how they ended, and the best value.

    Figures are read when Prometheus asks, so that a run that nobody looks at does nothing. A driver that goes on counts the reports of
    earlier ones, too, but only the attempts that it has seen end itself.

    Args:
        port: the port; 0 takes any that is free, which ``port`` has once the driver runs.
        address: the address to listen on; by default this machine alone reaches it. It asks for no password.

    Raises:
        ConfigurationError: the port is taken or not allowed; when the run begins.
    """

    def __init__(self, port: int = 9808, *, address: str = "127.0.0.1") -> None:
        self.port = port
        self._address = address
        self._figures = _Figures()
        self._served: tuple[WSGIServer, threading.Thread] | None = None

    def setup(self, folder: Path) -> None:
        del folder
        self._served = _serve(self.port, self._address, self._figures)
        self.port = self._served[0].server_port

    def on_start(self, experiment: Experiment) -> None:
        self._figures.experiment = experiment

    def on_attempt_end(self, trial: Trial, attempt: Attempt) -> None:
        del trial
        if attempt.end is not None:
            self._figures.ends[attempt.end.value] += 1

    def on_end(self) -> None:
        if self._served is not None:
            (server, thread), self._served = self._served, None
            server.shutdown()
            server.server_close()
            thread.join(_CLOSE_S)


def serve_worker(port: int, address: str, read: ReadFigures) -> None:
    """Serve a worker's figures until its process ends: slots, ended attempts, heartbeat, its devices, its own memory and time.

    They are read when Prometheus asks. A worker without devices starts no process for them.

    Raises:
        ConfigurationError: the port is taken or not allowed.
    """
    server, _ = _serve(port, address, WorkerCollector(read), ProcessCollector(registry=None))
    logger.info("figures for Prometheus at http://%s:%d/metrics", address, server.server_port)


class Figure(NamedTuple):
    """A metric and its values of one moment, by the values of its labels; a counter, whose name ends in ``_total``, only grows."""

    name: str
    text: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]


def serve_figures(port: int, address: str, read: Callable[[], Iterable[Figure]]) -> int:
    """Serve what *read* returns until the process ends, and return the port, which 0 leaves to the system.

    It is called when Prometheus asks, by several threads if several ask.

    Raises:
        ConfigurationError: the port is taken or not allowed.
    """
    server, _ = _serve(port, address, FigureCollector(read))
    return server.server_port


def _serve(port: int, address: str, *collectors: Collector) -> tuple[WSGIServer, threading.Thread]:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    try:
        return start_http_server(port, address, registry)
    except OSError as error:
        raise ConfigurationError(
            f"Prometheus: {address}:{port} can't be listened on ({error.strerror}); give another port"
        ) from error


class FigureCollector(Collector):
    """Collects what *read* returns at the moment at which it is asked for."""

    def __init__(self, read: Callable[[], Iterable[Figure]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        for figure in self._read():
            kind = CounterMetricFamily if figure.name.endswith("_total") else GaugeMetricFamily
            family = kind(figure.name, figure.text, labels=figure.labels)
            for labels, value in figure.values.items():
                family.add_metric(labels, value)
            yield family


class _Figures(Collector):
    """The figures at the moment at which they are asked for."""

    def __init__(self) -> None:
        self.experiment: Experiment | None = None
        # A count that begins at 1 is no increase for Prometheus.
        self.ends = Counter(dict.fromkeys(ENDS, 0))

    def collect(self) -> Iterator[Metric]:
        experiment = self.experiment
        if experiment is None:
            return
        name = experiment.name
        owner = InfoMetricFamily("mqtune_experiment", "Who has created the experiment.", labels=["experiment"])
        owner.add_metric([name], experiment.owner._asdict())
        yield owner
        trials = GaugeMetricFamily("mqtune_trials", "Trials by status.", labels=["experiment", "status"])
        for status, count in experiment.counts.items():
            trials.add_metric([name, status.value], count)
        yield trials
        reports = CounterMetricFamily("mqtune_reports", "Reports that count.", labels=["experiment"])
        reports.add_metric([name], experiment.reports)
        yield reports
        ends = CounterMetricFamily("mqtune_attempts_ended", "Attempts by how they ended.", labels=["experiment", "end"])
        for end, count in list(self.ends.items()):
            ends.add_metric([name, end], count)
        yield ends
        best = GaugeMetricFamily("mqtune_best_value", "The best value so far.", labels=["experiment", "metric"])
        if experiment.best is not None:
            best.add_metric([name, experiment.metric], experiment.best.best_value)
        yield best


class WorkerCollector(Collector):
    """A worker's figures at the moment at which they are asked for."""

    def __init__(self, read: ReadFigures) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        figures = self._read()
        if figures is None:
            return
        yield from self._slots(figures)
        ends = CounterMetricFamily(
            "mqtune_worker_attempts_ended",
            "Attempts by the devices of their slot and how they ended.",
            labels=["worker", "device", "end"],
        )
        for (slot, end), count in figures.ended.items():
            ends.add_metric([figures.worker, slot, end], count)
        yield ends
        devices = {
            "memory_bytes": ("Memory in use on a device, by any process.", figures.gpu_memory),
            "load_percent": ("Share of the last moment in which a device computed.", figures.gpu_load),
            "power_watts": ("What a device draws.", figures.gpu_power),
        }
        for name, (text, values) in devices.items():
            family = GaugeMetricFamily(f"mqtune_worker_gpu_{name}", text, labels=["worker", "device"])
            for device, value in values.items():
                family.add_metric([figures.worker, device], value)
            yield family

        yield from self._redis(figures)

    @staticmethod
    def _redis(figures: WorkerFigures) -> Iterator[Metric]:
        if figures.redis is None:
            return
        used, most = figures.redis
        for name, text, value in (
            ("bytes", "Memory that the worker's Redis uses.", used),
            ("limit_bytes", "Memory that it may use; 0 for no limit.", most),
        ):
            family = GaugeMetricFamily(f"mqtune_worker_redis_memory_{name}", text, labels=["worker"])
            family.add_metric([figures.worker], value)
            yield family

    @staticmethod
    def _slots(figures: WorkerFigures) -> Iterator[Metric]:
        values = {
            "slots": ("Slots.", figures.slots),
            "slots_usable": ("Slots that take trials or run one.", figures.usable),
            "slots_busy": ("Slots that run a trial.", figures.busy),
            "heartbeat_timestamp_seconds": ("When it last told the fleet that it is here.", figures.heartbeat_at),
        }
        for name, (text, value) in values.items():
            family = GaugeMetricFamily(f"mqtune_worker_{name}", text, labels=["worker"])
            family.add_metric([figures.worker], value)
            yield family
