"""The worker's part of the exporter: its figures, read on request."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from itertools import chain, product

from mqtune.core.errors import BrokerUnavailable
from mqtune.core.trial import ENDS
from mqtune.journal import Room, room_of
from mqtune.services.exporter.figures import WorkerFigures
from mqtune.services.exporter.settings import ExporterSettings, Observer
from mqtune.worker import GpuProbe, RunResult, WorkerSettings
from mqtune.worker.ports import AttemptHere, WorkerHost, WorkerService, WorkerState


class WorkerExporter(WorkerService):
    """Counts ended attempts, and gives the worker's figures to its observer.

    Args:
        probe: reports how the worker's devices are used.
    """

    def __init__(self, host: WorkerHost, observer: Observer, probe: GpuProbe) -> None:
        self._host, self._observer, self._probe = host, observer, probe
        # A count that begins at 1 is no increase for Prometheus, so all counts begin at 0.
        slots = {",".join(devices) for devices in host.plan.devices}
        self._ended = Counter(dict.fromkeys(product(slots, ENDS), 0))

    def start(self) -> None:
        self._observer.follow(self.read)

    def ended(self, run: AttemptHere, result: RunResult) -> None:
        if result.end is not None:
            self._ended[",".join(run.devices), result.end.value] += 1

    def close(self) -> None:
        self._probe.close()

    def read(self) -> WorkerFigures:
        """Return the worker's figures, which may take seconds."""
        state = self._host.state()
        return WorkerFigures(
            worker=self._host.name,
            slots=state.slots,
            usable=state.usable,
            busy=state.busy,
            ended=dict(self._ended),
            heartbeat_at=state.heartbeat_at,
            redis=self._room(state),
            **self._use(),
        )

    def _use(self) -> dict[str, dict[str, float]]:
        """Return memory, load and power of the worker's devices, by figure and device."""
        devices = sorted(set(chain.from_iterable(self._host.plan.devices)))
        uses = self._probe.use(devices) if devices else {}
        named = zip(("gpu_load", "gpu_memory", "gpu_power"), range(3), strict=True)
        return {
            name: {device: value for device, use in uses.items() if (value := use[at]) is not None}
            for name, at in named
        }

    def _room(self, state: WorkerState) -> Room | None:
        """Return the memory of the server, or None without a recent answer. Never waits for it."""
        if state.is_heard:
            with contextlib.suppress(BrokerUnavailable):
                return room_of(self._host.client, patience_s=0)
        return None


def for_worker(host: WorkerHost, settings: WorkerSettings) -> Sequence[WorkerService]:
    """Return the exporter of a worker that serves its figures."""
    own = settings.of(ExporterSettings)
    # A GPU probe of its own: a slow one must not delay trials.
    return () if own.metrics_port is None else (WorkerExporter(host, own.observer, GpuProbe(timing=host.timing)),)
