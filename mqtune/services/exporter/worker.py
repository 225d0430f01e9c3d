"""The worker's part of the exporter: its figures, read on request."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from mqtune.core.errors import BrokerUnavailable
from mqtune.core.trial import ENDS
from mqtune.journal import Room, room_of
from mqtune.services.exporter.figures import ReadFigures, WorkerFigures
from mqtune.worker import RunResult, WorkerSettings
from mqtune.worker.ports import AttemptHere, WorkerHost, WorkerService, WorkerState


class Observer:
    """Serves a worker's figures, from before its start. It is the ``observe`` of its settings.

    Args:
        serve: gets a function that returns the figures, and starts to serve them. Any thread may call that function.
    """

    def __init__(self, serve: Callable[[ReadFigures], object]) -> None:
        self._serve = serve
        self._read: ReadFigures = _nothing

    def __call__(self) -> None:
        """Start to serve."""
        self._serve(self._figures)

    def follow(self, read: ReadFigures) -> None:
        """Serve the figures from *read* from now on."""
        self._read = read

    def _figures(self) -> WorkerFigures | None:
        return self._read()


def _nothing() -> None:
    return None


class WorkerExporter(WorkerService):
    """Counts ended attempts, and gives the worker's figures to its observer."""

    def __init__(self, host: WorkerHost, observer: Observer) -> None:
        self._host, self._observer = host, observer
        # A count that begins at 1 is no increase for Prometheus, so all counts begin at 0.
        slots = {",".join(devices) for devices in host.plan.devices}
        self._ended = Counter(dict.fromkeys(itertools.product(slots, ENDS), 0))

    def start(self) -> None:
        self._observer.follow(self.read)

    def ended(self, run: AttemptHere, result: RunResult) -> None:
        if result.end is not None:
            self._ended[",".join(run.devices), result.end.value] += 1

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
            **self._host.figures(),
        )

    def _room(self, state: WorkerState) -> Room | None:
        """Return the memory of the server, or None without a recent answer. Never waits for it."""
        if state.is_heard:
            with contextlib.suppress(BrokerUnavailable):
                return room_of(self._host.client, patience_s=0)
        return None


def for_worker(host: WorkerHost, settings: WorkerSettings) -> Sequence[WorkerService]:
    """Return the exporter of a worker with an observer."""
    observer = settings.observe
    return (WorkerExporter(host, observer),) if isinstance(observer, Observer) else ()
