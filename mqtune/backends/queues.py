"""A driver's session with workers on a Redis server: it publishes attempts and counts slots.

``CeleryBackend`` publishes with Celery, and ``LocalBackend`` to the driver's own worker.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import lru_cache
from operator import itemgetter
from typing import Final

from mqtune.backends.base import Offer
from mqtune.backends.placement import EqualWorkers, Placement, SlotRoom
from mqtune.backends.shared import Pool
from mqtune.core.clock import Clock
from mqtune.core.crews import Crew, Register, register_of
from mqtune.core.errors import AccessDenied, ConfigurationError
from mqtune.core.resources import Resources, patterned, queue_name
from mqtune.core.trial import Attempt, Config, TrialId
from mqtune.core.version import UPGRADE, __version__
from mqtune.core.worker_info import busy_as
from mqtune.journal.base import Journal
from mqtune.journal.exchange.fleet import Fleet
from mqtune.journal.exchange.local_queue import Task
from mqtune.journal.exchange.logs import LogChunk, LogExchange, LogStream
from mqtune.journal.server.connection import RedisClient
from mqtune.trainable.bundle import ACCEPTS_TAG

logger = logging.getLogger(__name__)

#: A task: its name (a trial or a further task), and the number of the attempt. With the trial's name, also an attempt.
_Key = tuple[TrialId, int]


@dataclass(frozen=True, slots=True)
class Shape:
    """All slots with the same resources that serve the same experiments. ``queue`` names them.

    ``target`` is the queue to which this experiment publishes tasks for them. If several teams share the slots, each
    team has a queue of its own.
    """

    queue: str
    target: str
    offer: Resources
    slots: int
    #: The number of their GPUs, if trials share these by memory; else 0.
    gpus: int = 0
    #: The workers with these slots.
    crews: Sequence[Crew] = ()

    def room(self, needs: Resources) -> int:
        """Return how many tasks that need these resources fit into the slots at the same time."""
        if not needs.fits(self.offer):
            return 0
        shared = needs.shared_bytes
        return min(self.slots, self.gpus * (self.offer.shared_bytes // shared)) if shared else self.slots

    def at_workers(self, needs: Resources, most: int) -> SlotRoom:
        """Return the slots by groups of workers. At most *most* of them may be taken."""
        shared = needs.shared_bytes
        each_gpu = self.offer.shared_bytes // shared if shared else 0
        groups = (
            EqualWorkers(min(crew.slots, crew.shared_gpus * each_gpu) if shared else crew.slots, crew.workers)
            for crew in self.crews
        )
        return SlotRoom([*groups], most)

    @property
    def workers(self) -> int:
        """The number of workers with these slots."""
        return sum(crew.workers for crew in self.crews)

    @property
    def size(self) -> tuple[object, ...]:
        """A sort key: slots with many tags, much GPU memory or many cores come last."""
        tags = sorted(self.offer.tags)
        return len(tags), self.offer.gpu_memory_gb, self.offer.cpus, tags


@dataclass(slots=True)
class _Load:
    """The queue to which each task of this experiment was published, until its attempt ends."""

    queues: dict[_Key, str] = field(default_factory=dict)
    busy: Counter[str] = field(default_factory=Counter)

    def put(self, key: _Key, queue: str) -> None:
        """Count a task for this queue, and no longer for another one."""
        self.drop(key)
        self.queues[key] = queue
        self.busy[queue] += 1

    def drop(self, key: _Key) -> None:
        """Stop counting a task. Unknown tasks are ignored."""
        if (queue := self.queues.pop(key, None)) is not None:
            self.busy[queue] -= 1

    def free(self, shape: Shape) -> int:
        """Return a shape's slots minus its tasks of this experiment. Negative if tasks wait."""
        return shape.slots - self.busy[shape.queue]

    def choose(self, shapes: Collection[Shape]) -> Shape:
        """Return the smallest shape with a free slot, so that large slots stay free.

        If no slot is free, return the shape with the fewest tasks per slot.
        """
        free = [shape for shape in shapes if self.free(shape) > 0]
        if free:
            return min(free, key=lambda shape: shape.size)
        return min(shapes, key=lambda shape: (Fraction(self.busy[shape.queue], shape.slots), shape.size))


class QueueBackend(ABC):
    """A driver's session with the workers of a Redis server.

    It publishes attempts to their queues. Publishing is idempotent, because only one claim of an attempt is ever
    granted. If a message is lost, the driver publishes the attempt again.

    Slots of several shapes may fit. A task is published to the queue of the smallest shape with a slot that no other
    task of this experiment uses. If another experiment takes that slot, or its worker leaves, while another shape has a
    free slot, ``queued`` leaves the task out. Then the driver publishes it to that shape's queue, too, and the first
    worker to claim it runs it. ``placement`` defines the tasks of an attempt.

    Args:
        broker: the same server, as a URL.
        journal: the experiment's journal on that server.
        title: the task's name in Flower.
        digest: a digest of the experiment's definition.
        resources: the resources of each trial. ``asks`` sets others for an attempt.
        patience_s: how long calls are retried while the server is missing.
        takes_code: whether the driver sends code. Only workers that accept code are used then.
    """

    takes_several_tasks = True

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
        takes_code: bool = False,
    ) -> None:
        self.journal = journal
        self.clock = clock
        self._client = client
        self._broker = broker
        self._fleet = Fleet(client, patience_s=patience_s)
        self._logs = LogExchange(client, journal.experiment)
        self._patience_s = patience_s
        self._experiment = journal.experiment
        self.token = busy_as(journal.experiment)
        self._title = title
        self._digest = digest
        self._required_tags = frozenset({ACCEPTS_TAG} if takes_code else ())
        self._resources = self._add_tags(resources)
        #: The resources of each attempt for which ``asks`` was called.
        self._needs: dict[_Key, Resources] = {}
        #: All different resources of attempts so far, in order.
        self._known_needs: dict[Resources, None] = {self._resources: None}
        #: The register as of the last refresh.
        self.register = Register()
        #: The workers in the register that take this experiment's attempts, with the resources of their slots.
        self._crews: list[tuple[Crew, Resources]] = []
        #: All slots that this driver can use.
        self._shapes: list[Shape] = []
        #: The slots among them that fit one of the known needs.
        self._fitting: list[Shape] = []
        #: Why some slots of a worker take no trials, by worker, as of the last refresh.
        self._notes: dict[str, str] = {}
        self._load = _Load()
        self.placement = Placement()
        #: Whether this account may use a queue, by queue.
        self._usable: dict[str, bool] = {}
        #: The name of a worker whose queue this account may not use, or empty.
        self._barred = ""
        #: The queues in which a task's message was seen by the last call of ``queued``, by task.
        self._waits_in: dict[_Key, set[str]] = {}
        self._open()

    @property
    def client(self) -> RedisClient:
        """The connection to the server."""
        return self._client

    @abstractmethod
    def _open(self) -> None:
        """Prepare to send messages. Nothing is sent yet."""

    def _add_tags(self, resources: Resources) -> Resources:
        """Return the resources with the tags that each slot must have for this driver."""
        return replace(resources, tags=self._required_tags.union(resources.tags)) if self._required_tags else resources

    def expect(self, resources: Resources) -> None:
        self._note_need(self._add_tags(resources))

    def asks(self, trial: TrialId, attempt: int, resources: Resources) -> None:
        self._needs[trial, attempt] = needs = self._add_tags(resources)
        self._note_need(needs)

    def _note_need(self, needs: Resources) -> None:
        if needs not in self._known_needs:
            self._known_needs[needs] = None
            self._fitting = self._select_fitting(*self._known_needs)

    def _select_fitting(self, *needs: Resources) -> list[Shape]:
        """Return the shapes that fit one of these needs, reduced to the number of slots that fit."""
        fitting = (replace(shape, slots=max(map(shape.room, needs))) for shape in self._shapes)
        return [shape for shape in fitting if shape.slots > 0]

    def _fitting_for(self, key: _Key) -> list[Shape]:
        """Return the shapes with slots that fit an attempt."""
        return self._select_fitting(self._needs[key]) if key in self._needs else self._fitting

    def _attempt_of(self, key: _Key) -> _Key:
        """Return the attempt that a task belongs to."""
        return self.placement.trial_of(key[0]) or key[0], key[1]

    def _needs_of(self, key: _Key) -> Resources:
        """Return the resources that an attempt needs."""
        return self._needs.get(key, self._resources)

    def refresh(self) -> None:
        self._apply_register(self._read_register())

    def _read_register(self) -> Register:
        """Return the register of workers. It may have workers that this driver can't use."""
        return register_of(self._fleet.workers())

    def _apply_register(self, register: Register) -> None:
        """Set the workers and slots that this driver can use."""
        self.register, self._crews, self._barred = register, [], ""
        slots: Counter[tuple[str, str, Resources]] = Counter()
        gpus: Counter[str] = Counter()
        usable: defaultdict[str, list[Crew]] = defaultdict(list)
        for crew in register.crews:
            if not (targets := self._targets(crew)):
                continue
            if not (target := next(filter(self._may_use, targets), "")):
                self._barred = crew.names[0]
                continue
            try:
                offer = _offer(crew.gpus, crew.cpus, crew.gpu_memory_gb, tuple(crew.tags))
            except ConfigurationError as error:
                logger.warning("worker %s is ignored: %s", ", ".join(crew.names), error)
                continue
            self._crews.append((crew, offer))
            if crew.is_usable:
                slots[crew.queue, target, offer] += crew.slots * crew.workers
                gpus[crew.queue] += crew.shared_gpus * crew.workers
                usable[crew.queue].append(crew)
        self._shapes = [Shape(*kind, count, gpus[kind[0]], usable[kind[0]]) for kind, count in slots.items()]
        self._fitting = self._select_fitting(*self._known_needs)
        self._log_notes()

    def _targets(self, crew: Crew) -> list[str]:
        """Return the queues of workers that serve this experiment, even without permissions."""
        return [queue for pattern, queue in patterned(crew.queue) if fnmatchcase(self._experiment, pattern)]

    def pool(self) -> Pool:
        """Return the slots of all workers, as of the last refresh."""
        fitting = sorted(self._fitting, key=lambda shape: shape.size)
        # If trials share GPUs by memory, fewer trials may fit than a worker has slots.
        slots = self.register.slots | {shape.queue: shape.slots for shape in fitting if shape.gpus}
        slots_each = self.placement.slots_each(self._resources)
        return Pool(
            slots,
            list(dict.fromkeys(shape.queue for shape in fitting)),
            self.slots * slots_each if slots_each > 1 else None,
        )

    def _may_use(self, queue: str) -> bool:
        """Whether this account may publish to a queue and read it. A team's account may use its own."""
        if queue not in self._usable:
            try:
                self._fleet.waiting(queue)
                self._usable[queue] = True
            except AccessDenied:
                self._usable[queue] = False
        return self._usable[queue]

    def _log_notes(self) -> None:
        """Log why slots of workers take no trials, once for each worker and reason."""
        notes = {name: str(note) for crew, _ in self._crews for name, note in crew.notes.items()}
        notes |= {
            name: f"it has mqtune {crew.version} and takes no trial of this driver, which has {__version__}; {UPGRADE}"
            for crew, _ in self._crews
            if not crew.is_usable
            for name in crew.names[:1]
        }
        for name, note in notes.items():
            if note != self._notes.get(name):
                logger.warning("worker %s: %s", name, note)
        self._notes = notes

    @property
    def slots(self) -> int:
        if self.placement.slots_each(self._resources) == 1:
            return sum(shape.slots for shape in self._fitting)
        # Attempts with different needs share workers, so there are at most as many as of the easiest needs.
        least = min(self._known_needs, key=self.placement.is_apart)
        together = self.placement.count(least, [shape.at_workers(least, shape.slots) for shape in self._fitting])
        return min(together, sum(map(self.offered, self._known_needs)))

    def offered(self, resources: Resources) -> int:
        return self.placement.count(resources, self._rooms(resources))

    def _rooms(self, needs: Resources) -> list[SlotRoom]:
        """Return the slots that fit a task with these needs."""
        return [shape.at_workers(needs, room) for shape in self._shapes if (room := shape.room(needs)) > 0]

    def free(self, resources: Resources) -> int:
        """Return the number of free slots that fit.

        If attempts have several tasks, return the number of attempts that fit. The slots of other experiments were
        counted at the last refresh. If an attempt needs several workers, the result is an upper bound, because it is
        unknown which workers have the free slots.
        """
        fitting = self._select_fitting(resources)
        others = [queues for experiment, queues in self._count_busy().items() if experiment != self.token]
        taken = {shape.queue: sum(queues.get(shape.queue, 0) for queues in others) for shape in fitting}
        left = [(shape, max(0, self._load.free(shape) - taken[shape.queue])) for shape in fitting]
        return self.placement.count(resources, [shape.at_workers(resources, free) for shape, free in left])

    def _count_busy(self) -> Mapping[str, Mapping[str, int]]:
        """Return the number of busy slots by experiment and queue, as of the last refresh."""
        return self.register.busy

    def has_gpus(self) -> bool | None:
        return any(shape.offer.has_gpu for shape in self._shapes) if self._shapes else None

    def resource_string(self) -> str:
        """Return the resources of all slots as text: ``3 workers: 4 × 1 GPU, 4 CPUs; 2 × 8 CPUs``."""
        workers = sum(crew.workers for crew, _ in self._crews if crew.is_usable)
        if not workers:
            return "no worker"
        slots: Counter[Resources] = Counter()
        for shape in self._shapes:
            slots[shape.offer] += shape.slots
        offers = sorted(slots, key=lambda offer: (-offer.gpus, -offer.gpu_memory_gb, -offer.cpus, sorted(offer.tags)))
        return f"{workers} worker{'s' * (workers > 1)}: {'; '.join(f'{slots[offer]} × {offer}' for offer in offers)}"

    def why_no_slot(self) -> str:
        asked = self._describe_lacking()
        if all(needs.is_shared_by_memory for needs in self._known_needs):
            asked += " (a worker shares its GPUs by memory with `--pack-gpus 8`)"
        brings = " --accept-code" if ACCEPTS_TAG in frozenset(self._resources.tags) else ""
        if not self._crews and self._barred:
            return (
                f"{asked}: worker {self._barred} serves all experiments, but this account belongs to one team; start "
                "workers that also serve the team's experiments: `mqtune worker --experiments '*,team-a-*'`"
            )
        if not self._crews:
            return f"{asked}: no worker is connected; start one with `mqtune worker{brings} --broker …`"
        named = sorted(((name, crew, offer) for crew, offer in self._crews for name in crew.names), key=itemgetter(0))
        offers = "; ".join(
            f"{name}: {crew.slots} × {offer}, mqtune "
            f"{crew.version}{f', {note}' if (note := crew.notes.get(name)) else ''}"
            for name, crew, offer in named[:_SHOWN_WORKERS]
        )
        more = sum(crew.workers for crew, _ in self._crews) - _SHOWN_WORKERS
        version = (
            ""
            if all(crew.version == __version__ for crew, _ in self._crews)
            else f" This driver is mqtune {__version__}."
        )
        if brings and not any(ACCEPTS_TAG in frozenset(offer.tags) for _, offer in self._crews):
            version += " This driver sends code. Only workers started with --accept-code take it."
        return f"{asked}; connected: {offers}{f' and {more} more' if more > 0 else ''}.{version}"

    def _describe_lacking(self) -> str:
        """Return the words "no worker offers …" with all known needs, to begin a sentence."""
        first, *others = self._known_needs
        if self.placement.slots_each(first) > 1:
            return " or ".join(self.placement.not_offered(needs, self._rooms(needs)) for needs in self._known_needs)
        return " or ".join([first.not_offered, *map(str, others)])

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        """Put an attempt's tasks on queues. The config is sent only as text, for people.

        If a task already waits in a queue, it is published only to another queue with a free slot.
        """
        for task, shape in self._tasks_to_publish(Offer(trial, attempt, config)):
            self._send(task.trial, attempt, config, shape.target)
            self._load.put((task.trial, attempt), shape.queue)

    def _tasks_to_publish(self, offer: Offer) -> Iterator[tuple[Offer, Shape]]:
        """Yield the tasks to publish for an attempt, with the shape for each.

        The caller must count each task in ``_load`` before it asks for the next one.
        """
        needs = self._needs_of((offer.trial, offer.attempt))
        is_apart = self.placement.is_apart(needs)
        beside: Counter[str] = Counter()
        for name in self.placement.tasks(offer.trial, needs):
            if (shape := self._shape_to_publish(name, offer.attempt, beside)) is not None:
                yield offer._replace(trial=name), shape
            if is_apart:
                beside[self._load.queues.get((name, offer.attempt), "")] += 1

    def _shape_to_publish(self, name: TrialId, attempt: int, beside: Mapping[str, int]) -> Shape | None:
        """Return the shape to which a task should be published. None if it should not be published.

        If each task of the attempt needs its own worker, *beside* has the number of its other tasks by queue.
        """
        key = (name, attempt)
        of_attempt = self._attempt_of(key)
        waits_in = self._waits_in.get(key, set())
        elsewhere = [shape for shape in self._fitting_for(of_attempt) if shape.queue not in waits_in]
        if waits_in and not self._has_room(elsewhere):
            return None
        if beside:
            # Prefer queues with a worker that has no task of this attempt. If none is left, the task waits in a queue.
            elsewhere = [shape for shape in elsewhere if beside.get(shape.queue, 0) < shape.workers] or elsewhere
        # The task no longer counts for the queue to which it was published before.
        self._load.drop(key)
        shape = self._shape_of(elsewhere, self._needs_of(of_attempt))
        # Without a fitting worker, a team's account may not publish. The driver tries again when a worker joins.
        return shape if elsewhere or self._may_use(shape.target) else None

    def _shape_of(self, shapes: Collection[Shape], needs: Resources) -> Shape:
        """Return the best of the shapes for a task. Without shapes, return an empty one."""
        return self._load.choose(shapes) if shapes else self._make_empty_shape(needs)

    def _task(self, name: TrialId, attempt: int) -> Task:
        """Return a task as it is sent to a worker."""
        task = self._experiment, name, attempt, self._digest
        needs = self._needs.get(self._attempt_of((name, attempt)))
        return (*task, needs.shared_bytes) if needs is not None and needs.is_shared_by_memory else task

    def _make_empty_shape(self, needs: Resources) -> Shape:
        queue = queue_name(needs)
        return Shape(queue, queue, needs, 0)

    def started(self, trial: TrialId, attempt: int, queue: str) -> None:
        """Note the queue from which a worker took a task. It may differ from the last published one."""
        self._load.put((trial, attempt), queue)

    def ended(self, trial: TrialId, attempt: int) -> None:
        for name in self.placement.tasks(trial, self._needs_of((trial, attempt))):
            self._load.drop((name, attempt))
        self._needs.pop((trial, attempt), None)

    def lost(self, trial: TrialId, attempt: Attempt) -> None:
        """Inform monitors that an attempt was lost. Errors are only logged."""

    def _has_room(self, shapes: Collection[Shape]) -> bool:
        return any(self._load.free(shape) > 0 for shape in shapes)

    @abstractmethod
    def _send(self, trial: TrialId, attempt: int, config: Config, queue: str) -> None:
        """Put a message on a queue.

        Raises:
            BrokerUnavailable: no server answers.
        """

    def queued(self) -> set[tuple[TrialId, int]] | None:
        """Return the tasks that wait in fitting queues. None if a queue is too long to search.

        If a slot of another fitting shape is free, the task is left out, so that the driver publishes it there, too.
        """
        queues: dict[_Key, set[str]] = {}
        for shape in self._fitting:
            messages = self._fleet.queued(shape.target)
            if messages is None:
                return None
            for headers in messages:
                experiment, _, rest = str(headers.get("id")).partition("/")
                name, _, attempt = rest.partition("/")
                if experiment == self._experiment and attempt.isdecimal() and self.placement.trial_of(name):
                    queues.setdefault((TrialId(name), int(attempt)), set()).add(shape.queue)
        self._waits_in = queues

        def others(key: _Key) -> list[Shape]:
            return [shape for shape in self._fitting_for(self._attempt_of(key)) if shape.queue not in queues[key]]

        return {key for key in queues if not self._has_room(others(key))}

    def read_log(self, worker: str, trial: TrialId, attempt: int, stream: LogStream, offset: int) -> LogChunk:
        return self._logs.ask(worker, trial, attempt, stream, offset)

    def close(self) -> None:
        """Close the connections that this session has opened."""


#: How many workers an error lists.
_SHOWN_WORKERS: Final = 5


@lru_cache
def _offer(gpus: float, cpus: int, gpu_memory_gb: float, tags: tuple[str, ...]) -> Resources:
    """Return the resources that slots offer, cached because most workers are equal."""
    return Resources(gpus=gpus, cpus=cpus, gpu_memory_gb=gpu_memory_gb, tags=tags)
