"""The Celery backend: publishes attempts to the queues of slots that fit, and looks up what the workers offer.

This is the only module on the driver's side that imports celery.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any, Final

from celery import Celery
from kombu.exceptions import OperationalError
from kombu.transport import redis as redis_transport

from mqtune.core.clock import Clock
from mqtune.core.errors import AccessDenied, ConfigurationError
from mqtune.core.events import WorkerInfo, busy_as
from mqtune.core.keys import EVENT_EXCHANGE, TASK_NAME
from mqtune.core.resources import Resources, queue_name
from mqtune.core.text import in_words
from mqtune.core.trial import Attempt, AttemptEnd, Config, TrialId
from mqtune.core.version import __version__
from mqtune.journal.base import Journal
from mqtune.journal.connection import OneClient, RedisClient, celery_url
from mqtune.journal.fleet import Fleet
from mqtune.journal.logs import LogChunk, LogExchange, LogStream
from mqtune.journal.redis import retrying

logger = logging.getLogger(__name__)

_Key = tuple[TrialId, int]


@dataclass(frozen=True, slots=True)
class _Shape:
    """All slots that offer the same, and their queue."""

    queue: str
    offer: Resources
    slots: int

    @property
    def size(self) -> tuple[Any, ...]:
        """A sort key that puts scarce slots last: by tags, then GPU memory, then cores."""
        tags = sorted(self.offer.tags)
        return len(tags), self.offer.gpu_memory_gb, self.offer.cpus, tags


@dataclass(slots=True)
class _Load:
    """The queue that each attempt of this experiment was published to, until it ends."""

    queues: dict[_Key, str] = field(default_factory=dict)
    busy: Counter[str] = field(default_factory=Counter)

    def put(self, key: _Key, queue: str) -> None:
        """Count an attempt on a queue, instead of any other."""
        self.drop(key)
        self.queues[key] = queue
        self.busy[queue] += 1

    def drop(self, key: _Key) -> None:
        """Stop counting an attempt; one that isn't counted is ignored."""
        if (queue := self.queues.pop(key, None)) is not None:
            self.busy[queue] -= 1

    def free(self, shape: _Shape) -> int:
        """Return the number of a shape's slots without an attempt of this experiment; negative if attempts wait."""
        return shape.slots - self.busy[shape.queue]

    def choose(self, shapes: Collection[_Shape]) -> _Shape:
        """Return the smallest shape with a free slot, which leaves large slots to trials that need them.

        If none is free, return the shape with the fewest attempts per slot.
        """
        free = [shape for shape in shapes if self.free(shape) > 0]
        if free:
            return min(free, key=lambda shape: shape.size)
        return min(shapes, key=lambda shape: (Fraction(self.busy[shape.queue], shape.slots), shape.size))


class _Channel(OneClient, redis_transport.Channel):
    """kombu's channel, with a single client."""


class CeleryBackend:
    """A driver's session with the workers of a broker: it publishes attempts to Celery queues.

    Publishing is idempotent: the task's id is the attempt's, and only one claim of it is ever granted. A message that is
    lost is published again by the driver.

    Slots of several shapes may fit. An attempt is published to the queue of the smallest shape with a slot that no other
    attempt of this experiment uses. If another experiment takes that slot, or its worker leaves, while another shape has a
    free slot, ``queued`` leaves the attempt out; the driver then publishes it to that queue too. The first worker to claim
    it runs it.

    Args:
        client: a checked connection.
        broker: the same server, as a URL.
        journal: the experiment's journal on that server.
        clock: the server's clock.
        title: the task's name in Flower.
        digest: a digest of the experiment's definition.
        resources: the resources that each trial asks for.
        patience_s: how long a call retries while the server is away.
        is_local: whether the driver starts the only worker itself.
    """

    def __init__(
        self,
        client: RedisClient,
        broker: str,
        *,
        journal: Journal,
        clock: Clock,
        title: str,
        digest: str,
        resources: Resources,
        patience_s: float,
        is_local: bool = False,
    ) -> None:
        self.journal = journal
        self.clock = clock
        self._is_local = is_local
        self._fleet = Fleet(client, patience_s=patience_s)
        self._logs = LogExchange(client, journal.experiment)
        self._patience_s = patience_s
        self._experiment = journal.experiment
        self._busy_as = busy_as(journal.experiment)
        self._title = title
        self._digest = digest
        self._resources = resources
        self._workers: list[tuple[WorkerInfo, Resources]] = []
        #: All slots that this driver can use, and those of them that offer what a trial asks for.
        self._shapes: list[_Shape] = []
        self._fitting: list[_Shape] = []
        #: By queue, the number of slots in which attempts of other experiments run.
        self._taken: Counter[str] = Counter()
        #: By worker, why not all of its slots take trials, as of the last refresh.
        self._notes: dict[str, str] = {}
        self._load = _Load()
        #: By queue, whether this account may use it.
        self._usable: dict[str, bool] = {}
        #: A worker whose queue this account may not use, or empty.
        self._barred = ""
        #: By attempt, the queues in which its message was seen last.
        self._waits_in: dict[_Key, set[str]] = {}
        self._app = Celery("mqtune-driver", set_as_current=False)
        self._app.conf.update(
            broker_url=celery_url(broker),
            broker_transport_options={"socket_keepalive": True, "socket_connect_timeout": 5, "socket_timeout": 30},
            result_backend=None,
            task_ignore_result=True,
            task_serializer="json",
            accept_content=["json"],
            event_exchange=EVENT_EXCHANGE,
            # The sent event would make a row in Flower without the attempt's name and config.
            task_send_sent_event=False,
        )
        self._connection: Any = None
        self._producer: Any = None

    def refresh(self) -> None:
        self._workers, self._barred = [], ""
        self._taken = Counter()
        slots: Counter[tuple[str, Resources]] = Counter()
        for info in self._fleet.workers():
            if not fnmatchcase(self._experiment, info.experiments):
                continue
            if not self._may_use(info.queue):
                self._barred = info.name
                continue
            try:
                offer = Resources(gpus=info.gpus, cpus=info.cpus, gpu_memory_gb=info.gpu_memory_gb, tags=info.tags)
            except ConfigurationError as error:
                logger.warning("worker %s is ignored: %s", info.name, error)
                continue
            self._workers.append((info, offer))
            self._taken[info.queue] += sum(
                count for name, count in info.busy.items() if name != self._busy_as and type(count) is int
            )
            if _is_usable(info):
                slots[info.queue, offer] += info.slots
        self._shapes = [_Shape(queue, offer, count) for (queue, offer), count in slots.items()]
        self._fitting = [shape for shape in self._shapes if shape.slots > 0 and self._resources.fits(shape.offer)]
        self._log_notes()

    def _may_use(self, queue: str) -> bool:
        """Return whether this account may publish to a queue and read it; a team's account may use those of its workers."""
        if queue not in self._usable:
            try:
                self._fleet.waiting(queue)
                self._usable[queue] = True
            except AccessDenied:
                self._usable[queue] = False
        return self._usable[queue]

    def _log_notes(self) -> None:
        """Log, once for each reason, why a worker takes fewer trials than it has slots."""
        notes = {info.name: info.note for info, _ in self._workers if info.note}
        for name, note in notes.items():
            if note != self._notes.get(name):
                logger.warning("worker %s: %s", name, note)
        self._notes = notes

    @property
    def slots(self) -> int:
        return sum(shape.slots for shape in self._fitting)

    def offered(self, resources: Resources) -> int:
        return sum(shape.slots for shape in self._shapes if resources.fits(shape.offer))

    def free(self, resources: Resources) -> int:
        """Return the number of those without an attempt: of this experiment as of now, of others as of the last refresh."""
        fitting = [shape for shape in self._shapes if resources.fits(shape.offer)]
        return sum(max(0, self._load.free(shape) - self._taken[shape.queue]) for shape in fitting)

    def has_gpus(self) -> bool | None:
        return any(shape.offer.gpus > 0 for shape in self._shapes) if self._shapes else None

    def resource_string(self) -> str:
        """Return what all slots offer, such as ``3 workers: 4 × 1 GPU (24 GB), 4 CPUs; 2 × 8 CPUs``."""
        workers = sum(_is_usable(info) for info, _ in self._workers)
        if not workers:
            return "no worker"
        slots: Counter[Resources] = Counter()
        for shape in self._shapes:
            slots[shape.offer] += shape.slots
        offers = sorted(slots, key=lambda offer: (-offer.gpus, -offer.gpu_memory_gb, -offer.cpus, sorted(offer.tags)))
        return f"{workers} worker{'s' * (workers > 1)}: {'; '.join(f'{slots[offer]} × {offer}' for offer in offers)}"

    def why_no_slot(self) -> str:
        if self._is_local and not self._workers:
            return "starting the local worker"
        asked = f"no worker offers a slot with {self._resources}"
        if not self._workers and self._barred:
            return (
                f"{asked}: worker {self._barred} serves all experiments, and this account is for one team; start workers with "
                "the account's `mqtune worker --experiments …`"
            )
        if not self._workers:
            return f"{asked}: no worker is connected; start one with `mqtune worker --broker …`"
        offers = "; ".join(
            f"{info.name}: {info.slots} × {offer}, mqtune {info.version}{f', {info.note}' if info.note else ''}"
            for info, offer in self._workers[:_SHOWN_WORKERS]
        )
        more = len(self._workers) - _SHOWN_WORKERS
        version = (
            ""
            if all(info.version == __version__ for info, _ in self._workers)
            else f" This driver is mqtune {__version__}."
        )
        return f"{asked}; connected: {offers}{f' and {more} more' if more > 0 else ''}.{version}"

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        """Put an attempt's id on a queue; the config is sent only as text, for people.

        One that was seen waiting in a queue is published to another one with a free slot, or not at all.
        """
        key = (trial, attempt)
        waits_in = self._waits_in.get(key, set())
        elsewhere = [shape for shape in self._fitting if shape.queue not in waits_in]
        if waits_in and not self._has_room(elsewhere):
            return
        # It no longer counts on the queue that lost it.
        self._load.drop(key)
        queue = self._load.choose(elsewhere).queue if elsewhere else queue_name(self._resources)
        if not elsewhere and not self._may_use(queue):
            # A team's account can only use its workers' queues: the attempt is published again when one of them joins.
            return
        self._send(trial, attempt, config, queue)
        self._load.put(key, queue)

    def started(self, trial: TrialId, attempt: int, queue: str) -> None:
        """Note the queue that an attempt was taken from: perhaps not the last one, or one that an earlier driver chose."""
        self._load.put((trial, attempt), queue)

    def ended(self, trial: TrialId, attempt: int) -> None:
        self._load.drop((trial, attempt))

    def lost(self, trial: TrialId, attempt: Attempt) -> None:
        """Send the Celery event of a lost attempt in place of its worker, for Flower; failures are only logged."""
        fields: dict[str, Any] = {
            "uuid": f"{self._experiment}/{trial}/{attempt.number}",
            "name": self._title,
            "args": "",
            "kwargs": in_words(attempt.config),
        }
        if attempt.started_at is not None and attempt.ended_at is not None:
            fields["runtime"] = attempt.ended_at - attempt.started_at
        try:
            self._connect()
            # Sent as the worker, so that its row is updated.
            with self._app.events.Dispatcher(self._connection, hostname=attempt.worker) as dispatcher:
                dispatcher.send(f"task-{AttemptEnd.LOST.value}", **fields)
        except Exception as error:  # noqa: BLE001 - monitoring must not disturb the run
            logger.info("no event for Flower that an attempt of trial %s was lost: %s", trial, error)
            self._disconnect()

    def _has_room(self, shapes: Collection[_Shape]) -> bool:
        return any(self._load.free(shape) > 0 for shape in shapes)

    def _send(self, trial: TrialId, attempt: int, config: Config, queue: str) -> None:
        task_id = f"{self._experiment}/{trial}/{attempt}"
        text = in_words(config)

        def send() -> None:
            self._connect()
            try:
                self._app.send_task(
                    TASK_NAME,
                    args=(self._experiment, trial, attempt, self._digest),
                    task_id=task_id,
                    queue=queue,
                    producer=self._producer,
                    ignore_result=True,
                    retry=False,
                    shadow=self._title,
                    argsrepr="",
                    kwargsrepr=text,
                )
            except BaseException:
                self._disconnect()
                raise

        retrying(send, patience_s=self._patience_s, also=(OperationalError, OSError))

    def queued(self) -> set[tuple[TrialId, int]] | None:
        """Return the attempts that wait in a fitting queue; None when one of these is too long to search.

        An attempt that waits while a slot of another shape is free is left out: published again, it goes there.
        """
        found: dict[_Key, set[str]] = {}
        for shape in self._fitting:
            messages = self._fleet.queued(shape.queue)
            if messages is None:
                return None
            for headers in messages:
                experiment, _, rest = str(headers.get("id")).partition("/")
                trial, _, attempt = rest.partition("/")
                if experiment == self._experiment and attempt.isdecimal():
                    found.setdefault((TrialId(trial), int(attempt)), set()).add(shape.queue)
        self._waits_in = found
        return {
            key
            for key, queues in found.items()
            if not self._has_room([shape for shape in self._fitting if shape.queue not in queues])
        }

    def read_log(self, worker: str, trial: TrialId, attempt: int, stream: LogStream, offset: int) -> LogChunk:
        return self._logs.ask(worker, trial, attempt, stream, offset)

    def close(self) -> None:
        self._disconnect()
        self._app.close()

    def _connect(self) -> None:
        if self._producer is None:
            self._connection = self._app.connection_for_write()
            self._connection.transport.Channel = _Channel
            self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.release()
            self._connection = self._producer = None


#: The most workers that an error names.
_SHOWN_WORKERS: Final = 5


def _is_usable(info: WorkerInfo) -> bool:
    """Return whether a worker has the same minor version as this driver."""
    return info.version.split(".")[:2] == __version__.split(".")[:2]
