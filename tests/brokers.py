"""A broker that is pretended, with a register of workers, and a driver's session with it."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any, Final

import pytest

from mqtune.backends import CeleryBackend, SimulatedClock, celery, queues
from mqtune.core.errors import AccessDenied
from mqtune.core.resources import EVERY, Resources, queue_name
from mqtune.core.trial import TrialId
from mqtune.core.version import __version__
from mqtune.core.worker_info import WorkerInfo
from mqtune.journal import MemoryJournal, MemoryServer

SMALL: Final = Resources(cpus=2)
LARGE: Final = Resources(cpus=8)


class World:
    """A register of workers and the queues of a broker."""

    def __init__(self) -> None:
        self.workers: list[WorkerInfo] = []
        self.queues: dict[str, deque[str]] = {}
        self.too_long = ""
        #: Queues that this account may not use.
        self.barred: set[str] = set()
        self.sent: list[dict[str, Any]] = []
        #: A trial that can't be sent.
        self.fails_at = ""

    @classmethod
    def for_backends(cls, monkeypatch: pytest.MonkeyPatch) -> World:
        """Make a world that all backends of a test use."""
        world = cls()
        monkeypatch.setattr(queues, "Fleet", world.fleet)
        monkeypatch.setattr(celery, "Celery", world.celery)
        return world

    def join(
        self,
        offer: Resources,
        slots: int,
        name: str = "",
        version: str = __version__,
        busy: dict[str, Any] | None = None,
        experiments: str = EVERY,
        devices: list[str] | None = None,
    ) -> WorkerInfo:
        info = WorkerInfo(
            name=name or f"w{len(self.workers)}@h",
            host="h",
            pid=1,
            version=version,
            queue=queue_name(offer, experiments),
            gpus=offer.gpus,
            cpus=offer.cpus,
            slots=slots,
            devices=devices or [""] * slots,
            code_root="/",
            joined_at=0,
            gpu_memory_gb=offer.gpu_memory_gb,
            tags=sorted(offer.tags),
            busy=busy or {},
            experiments=experiments,
        )
        self.workers.append(info)
        return info

    def take(self, offer: Resources) -> TrialId:
        """Take the oldest message of a queue, as a worker does."""
        return TrialId(self.queues[queue_name(offer)].popleft().split("/")[1])

    def waiting(self, offer: Resources) -> list[str]:
        return [id_.split("/")[1] for id_ in self.queues.get(queue_name(offer), ())]

    # The register and Celery, as the backend sees them.

    def fleet(self, *_: Any, **__: Any) -> Any:
        return _Fleet(self)

    def celery(self, *_: Any, **__: Any) -> Any:
        return _Celery(self)


class _Fleet:
    def __init__(self, world: World) -> None:
        self._world = world

    def workers(self) -> list[WorkerInfo]:
        return list(self._world.workers)

    def waiting(self, queue: str) -> int:
        if queue in self._world.barred:
            raise AccessDenied(queue)
        return 0

    def queued(self, queue: str) -> list[dict[str, Any]] | None:
        if queue == self._world.too_long:
            return None
        return [{"id": id_} for id_ in self._world.queues.get(queue, ())]


class _Celery:
    def __init__(self, world: World) -> None:
        self._world = world
        self.conf: dict[str, Any] = {}
        self.amqp = self
        self.transport = self
        self.channel = self

    def connection_for_write(self, url: str) -> Any:
        return self

    def together(self) -> Any:
        return contextlib.nullcontext()

    def Producer(self, *_: Any, **__: Any) -> Any:
        return self

    def send_task(self, _task: str, *, task_id: str, queue: str, **options: Any) -> None:
        if task_id.split("/")[1] == self._world.fails_at:
            raise ValueError(task_id)
        self._world.queues.setdefault(queue, deque()).append(task_id)
        self._world.sent.append({"task_id": task_id, "queue": queue, **options})

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass


def backend_of(resources: Resources, *, takes_code: bool = False) -> CeleryBackend:
    client: Any = None
    backend = CeleryBackend(
        client,
        "redis://h:1/0",
        journal=MemoryJournal(MemoryServer(), "x"),
        clock=SimulatedClock(),
        title="x/f",
        digest="d",
        resources=resources,
        patience_s=1.0,
        takes_code=takes_code,
    )
    backend.refresh()
    return backend


def publish(backend: CeleryBackend, *trials: int) -> None:
    for trial in trials:
        backend.publish(TrialId(f"{trial:04d}"), 1, {"lr": 0.1})


def names(*trials: int) -> list[str]:
    return [f"{trial:04d}" for trial in trials]


def keys(*trials: int) -> set[tuple[TrialId, int]]:
    return {(TrialId(name), 1) for name in names(*trials)}
