"""Figures of a running experiment for Prometheus; needs the extra ``prometheus``."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from wsgiref.simple_server import WSGIServer

from mqtune.core.callback import Callback
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import Attempt, Trial

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover - the tests have it
    raise ConfigurationError(
        f"prometheus_client can't be imported ({error}); pip install 'mqtune[prometheus]'"
    ) from error

if TYPE_CHECKING:
    from mqtune.core.experiment import Experiment

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
        registry = CollectorRegistry()
        registry.register(self._figures)
        try:
            self._served = start_http_server(self.port, self._address, registry)
        except OSError as error:
            raise ConfigurationError(
                f"Prometheus: {self._address}:{self.port} can't be listened on ({error.strerror}); give another port"
            ) from error
        self.port = self._served[0].server_port

    def on_start(self, experiment: Experiment) -> None:
        self._figures.experiment = experiment

    def on_attempt_end(self, trial: Trial, attempt: Attempt) -> None:
        del trial
        if attempt.end is not None:
            self._figures.ends[attempt.end.value] += 1

    def on_end(self) -> None:
        if self._served is not None:
            server, thread = self._served
            server.shutdown()
            server.server_close()
            thread.join(_CLOSE_S)


class _Figures(Collector):
    """The figures at the moment at which they are asked for."""

    def __init__(self) -> None:
        self.experiment: Experiment | None = None
        self.ends: Counter[str] = Counter()

    def collect(self) -> Iterator[Metric]:
        experiment = self.experiment
        if experiment is None:
            return
        name = experiment.name
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
