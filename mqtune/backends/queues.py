"""A driver's session with workers over a Redis: where each attempt is published, and what the workers offer.

``CeleryBackend`` sends it by Celery, ``LocalBackend`` to the one worker that the driver has started.
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
from mqtune.backends.seating import Rows, SeatRoom, not_offered, seated
from mqtune.backends.shared import Pool
from mqtune.core.clock import Clock
from mqtune.core.crews import Crew, Register, register_of
from mqtune.core.errors import AccessDenied, ConfigurationError
from mqtune.core.events import busy_as
from mqtune.core.resources import Resources, patterned, queue_name
from mqtune.core.seats import is_seat, seat_in, seat_names
from mqtune.core.trial import Attempt, Config, TrialId
from mqtune.core.version import UPGRADE, __version__
from mqtune.journal.base import Journal
from mqtune.journal.connection import RedisClient
from mqtune.journal.fleet import Fleet
from mqtune.journal.local_queue import Task
from mqtune.journal.logs import LogChunk, LogExchange, LogStream
from mqtune.trainable.bundle import ACCEPTS_TAG

logger = logging.getLogger(__name__)

#: An attempt, or a seat of it, by its name and the attempt's number.
_Key = tuple[TrialId, int]


@dataclass(frozen=True, slots=True)
class Shape:
    """All slots that offer the same and serve the same experiments, by the name of their queue.

    ``target`` is the queue to which this experiment publishes for them: slots that several teams share have one for each team.
    """

    queue: str
    target: str
    offer: Resources
    slots: int
    #: How many GPUs they are on, where trials share these by memory, and 0 elsewhere.
    gpus: int = 0
    #: The workers that have them.
    crews: Sequence[Crew] = ()

    def room(self, needs: Resources) -> int:
        """Return how many seats that need this there are at once; 0 where it does not fit."""
        if not needs.fits(self.offer):
            return 0
        shared = needs.shared_bytes
        return min(self.slots, self.gpus * (self.offer.shared_bytes // shared)) if shared else self.slots

    def seats(self, needs: Resources, most: int) -> SeatRoom:
        """Return the room for seats that need this, of which no more than *most* are to be had; see ``room``."""
        shared = needs.shared_bytes
        each_gpu = self.offer.shared_bytes // shared if shared else 0
        rows = [
            Rows(min(crew.slots, crew.shared_gpus * each_gpu) if shared else crew.slots, crew.workers)
            for crew in self.crews
        ]
        return SeatRoom(rows, most)

    @property
    def workers(self) -> int:
        """How many workers have them."""
        return sum(crew.workers for crew in self.crews)

    @property
    def size(self) -> tuple[object, ...]:
        """A sort key that puts scarce slots last: by tags, then GPU memory, then cores."""
        tags = sorted(self.offer.tags)
        return len(tags), self.offer.gpu_memory_gb, self.offer.cpus, tags


@dataclass(slots=True)
class _Load:
    """The queue that each seat of this experiment's attempts was published to, until the attempt ends."""

    queues: dict[_Key, str] = field(default_factory=dict)
    busy: Counter[str] = field(default_factory=Counter)

    def put(self, key: _Key, queue: str) -> None:
        """Count a seat on a queue, instead of any other."""
        self.drop(key)
        self.queues[key] = queue
        self.busy[queue] += 1

    def drop(self, key: _Key) -> None:
        """Stop counting a seat; one that isn't counted is ignored."""
        if (queue := self.queues.pop(key, None)) is not None:
            self.busy[queue] -= 1

    def free(self, shape: Shape) -> int:
        """Return the number of a shape's slots without a seat of this experiment; negative if seats wait."""
        return shape.slots - self.busy[shape.queue]

    def choose(self, shapes: Collection[Shape]) -> Shape:
        """Return the smallest shape with a free slot, which leaves large slots to trials that need them.

        If none is free, return the shape with the fewest attempts per slot.
        """
        free = [shape for shape in shapes if self.free(shape) > 0]
        if free:
            return min(free, key=lambda shape: shape.size)
        return min(shapes, key=lambda shape: (Fraction(self.busy[shape.queue], shape.slots), shape.size))


class QueueBackend(ABC):
    """A driver's session with the workers of a Redis server: it publishes attempts to their queues.

    Publishing is idempotent: the task's id is the attempt's, and only one claim of it is ever granted. A message that is
    lost is published again by the driver.

    Slots of several shapes may fit. An attempt is published to the queue of the smallest shape with a slot that no other
    attempt of this experiment uses. If another experiment takes that slot, or its worker leaves, while another shape has a
    free slot, ``queued`` leaves the attempt out; the driver then publishes it to that queue too. The first worker to claim
    it runs it. Of an attempt with several seats, each seat is published so, by a name of its own.

    Args:
        client: a checked connection.
        broker: the same server, as a URL.
        journal: the experiment's journal on that server.
        clock: the server's clock.
        title: the task's name in Flower.
        digest: a digest of the experiment's definition.
        resources: the resources that each trial asks for, unless ``asks`` says otherwise of an attempt.
        patience_s: how long a call retries while the server is away.
        takes_code: whether slots must take the code that the driver brings.
    """

    takes_gangs = True

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
        self._beside = frozenset({ACCEPTS_TAG} if takes_code else ())
        self._resources = self._needed(resources)
        #: By attempt, what it needs, where that need not be what all do; and what any has needed so far, in order.
        self._needs: dict[_Key, Resources] = {}
        self._known_needs: dict[Resources, None] = {self._resources: None}
        #: The register as of the last refresh, and of it the workers that take this experiment's attempts, with what they offer.
        self.register = Register()
        self._crews: list[tuple[Crew, Resources]] = []
        #: All slots that this driver can use, and those of them that offer what any trial asks for.
        self._shapes: list[Shape] = []
        self._fitting: list[Shape] = []
        #: By worker, why not all of its slots take trials, as of the last refresh.
        self._notes: dict[str, str] = {}
        self._load = _Load()
        #: By queue, whether this account may use it.
        self._usable: dict[str, bool] = {}
        #: A worker whose queue this account may not use, or empty.
        self._barred = ""
        #: By seat, the queues in which its message was seen last.
        self._waits_in: dict[_Key, set[str]] = {}
        self._open()

    @property
    def client(self) -> RedisClient:
        """The connection to the server."""
        return self._client

    @abstractmethod
    def _open(self) -> None:
        """Make what sends messages; nothing is sent yet."""

    def _needed(self, resources: Resources) -> Resources:
        """Return what a slot must offer to an attempt that asks for these."""
        return replace(resources, tags=self._beside.union(resources.tags)) if self._beside else resources

    def expect(self, resources: Resources) -> None:
        self._note_need(self._needed(resources))

    def asks(self, trial: TrialId, attempt: int, resources: Resources) -> None:
        self._needs[trial, attempt] = needs = self._needed(resources)
        self._note_need(needs)

    def _note_need(self, needs: Resources) -> None:
        if needs not in self._known_needs:
            self._known_needs[needs] = None
            self._fitting = self._that_fit(*self._known_needs)

    def _that_fit(self, *needs: Resources) -> list[Shape]:
        """Return the shapes with slots that offer what any of these asks for, each with as many slots as there is room for."""
        fitting = (replace(shape, slots=max(map(shape.room, needs))) for shape in self._shapes)
        return [shape for shape in fitting if shape.slots > 0]

    def _fitting_for(self, key: _Key) -> list[Shape]:
        """Return the shapes with slots for an attempt."""
        return self._that_fit(self._needs[key]) if key in self._needs else self._fitting

    def _needs_of(self, key: _Key) -> Resources:
        """Return what an attempt needs."""
        return self._needs.get(key, self._resources)

    def refresh(self) -> None:
        self._take(self._read_register())

    def _read_register(self) -> Register:
        """Return the register of the workers that this driver may use, and of others whose slots it counts."""
        return register_of(self._fleet.workers())

    def _take(self, register: Register) -> None:
        """Take in which workers there are."""
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
        self._fitting = self._that_fit(*self._known_needs)
        self._log_notes()

    def _targets(self, crew: Crew) -> list[str]:
        """Return the queues of workers to which this experiment may publish, if this account may.

        Their own name says for whom they are: nobody can have an experiment publish where others read.
        """
        return [queue for pattern, queue in patterned(crew.queue) if fnmatchcase(self._experiment, pattern)]

    def pool(self) -> Pool:
        """Return the slots of all workers, as of the last refresh."""
        fitting = sorted(self._fitting, key=lambda shape: shape.size)
        # Of slots on GPUs that are shared by memory there may be more than it can have.
        slots = self.register.slots | {shape.queue: shape.slots for shape in fitting if shape.gpus}
        seats = self._resources.seats
        return Pool(
            slots, list(dict.fromkeys(shape.queue for shape in fitting)), self.slots * seats if seats > 1 else None
        )

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
        """Log, once for each reason, why a worker takes fewer trials than it has slots, or none."""
        notes = {name: str(note) for crew, _ in self._crews for name, note in crew.notes.items()}
        notes |= {
            name: f"it is mqtune {crew.version}, and takes no trial of this driver, which is {__version__}; {UPGRADE}"
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
        if self._resources.seats == 1:
            return sum(shape.slots for shape in self._fitting)
        # Of what trials ask for by their configs each may lack workers that another one has.
        alone = sum(map(self.offered, self._known_needs))
        least = min(self._known_needs, key=lambda needs: needs.machines)
        return min(alone, seated(least, [shape.seats(least, shape.slots) for shape in self._fitting]))

    def offered(self, resources: Resources) -> int:
        return seated(resources, self._rooms(resources))

    def _rooms(self, needs: Resources) -> list[SeatRoom]:
        """Return the slots that fit the seats of an attempt that needs this."""
        return [shape.seats(needs, room) for shape in self._shapes if (room := shape.room(needs)) > 0]

    def free(self, resources: Resources) -> int:
        """Return the number of those without an attempt: of this experiment as of now, of others as of the last refresh.

        Of attempts with seats on different workers it is the most that there can be: which workers have the free slots is not known.
        """
        fitting = self._that_fit(resources)
        others = [queues for experiment, queues in self._busy().items() if experiment != self.token]
        taken = {shape.queue: sum(queues.get(shape.queue, 0) for queues in others) for shape in fitting}
        left = [(shape, max(0, self._load.free(shape) - taken[shape.queue])) for shape in fitting]
        return seated(resources, [shape.seats(resources, free) for shape, free in left])

    def _busy(self) -> Mapping[str, Mapping[str, int]]:
        """Return by experiment in how many slots of each queue it runs, as of the last refresh."""
        return self.register.busy

    def has_gpus(self) -> bool | None:
        return any(shape.offer.has_gpu for shape in self._shapes) if self._shapes else None

    def resource_string(self) -> str:
        """Return what all slots offer, such as ``3 workers: 4 × 1 GPU (24 GB), 4 CPUs; 2 × 8 CPUs``."""
        workers = sum(crew.workers for crew, _ in self._crews if crew.is_usable)
        if not workers:
            return "no worker"
        slots: Counter[Resources] = Counter()
        for shape in self._shapes:
            slots[shape.offer] += shape.slots
        offers = sorted(slots, key=lambda offer: (-offer.gpus, -offer.gpu_memory_gb, -offer.cpus, sorted(offer.tags)))
        return f"{workers} worker{'s' * (workers > 1)}: {'; '.join(f'{slots[offer]} × {offer}' for offer in offers)}"

    def why_no_slot(self) -> str:
        asked = self._not_offered()
        if all(each.is_shared_by_memory for each in self._known_needs):
            asked += " (a worker shares its GPUs by memory with `--pack-gpus 8`)"
        brings = " --accept-code" if ACCEPTS_TAG in frozenset(self._resources.tags) else ""
        if not self._crews and self._barred:
            return (
                f"{asked}: worker {self._barred} serves all experiments, and this account is for one team; start workers that "
                "serve the account's too: `mqtune worker --experiments '*,team-a-*'`"
            )
        if not self._crews:
            return f"{asked}: no worker is connected; start one with `mqtune worker{brings} --broker …`"
        named = sorted(((name, crew, offer) for crew, offer in self._crews for name in crew.names), key=itemgetter(0))
        offers = "; ".join(
            f"{name}: {crew.slots} × {offer}, mqtune {crew.version}{f', {note}' if (note := crew.notes.get(name)) else ''}"
            for name, crew, offer in named[:_SHOWN_WORKERS]
        )
        more = sum(crew.workers for crew, _ in self._crews) - _SHOWN_WORKERS
        version = (
            ""
            if all(crew.version == __version__ for crew, _ in self._crews)
            else f" This driver is mqtune {__version__}."
        )
        if brings and not any(ACCEPTS_TAG in frozenset(offer.tags) for _, offer in self._crews):
            version += " A worker takes the code that this driver brings if it is started with --accept-code."
        return f"{asked}; connected: {offers}{f' and {more} more' if more > 0 else ''}.{version}"

    def _not_offered(self) -> str:
        """Return that nobody offers what trials need, as the begin of a sentence."""
        first, *others = self._known_needs
        if first.seats > 1:
            return " or ".join(not_offered(each, self._rooms(each)) for each in self._known_needs)
        return " or ".join([not_offered(first), *map(str, others)])

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        """Put an attempt's id on a queue, or those of its seats; the config is sent only as text, for people.

        One that was seen waiting in a queue is published to another one with a free slot, or not at all.
        """
        for seat, shape in self._placed(Offer(trial, attempt, config)):
            self._send(seat.trial, attempt, config, shape.target)
            self._load.put((seat.trial, attempt), shape.queue)

    def _placed(self, offer: Offer) -> Iterator[tuple[Offer, Shape]]:
        """Yield the seats of an attempt that are to be published, each with the slots for it; the caller counts it there before the next."""
        needs = self._needs_of((offer.trial, offer.attempt))
        beside: Counter[str] = Counter()
        for name in seat_names(offer.trial, needs.seats):
            if (shape := self._place(name, offer.attempt, beside if needs.machines > 1 else {})) is not None:
                yield offer._replace(trial=name), shape
            beside[self._load.queues.get((name, offer.attempt), "")] += 1

    def _place(self, name: TrialId, attempt: int, beside: Mapping[str, int]) -> Shape | None:
        """Return the slots that a seat is to be published for; None where it is not to be.

        Args:
            name: the seat's.
            attempt: the attempt's number.
            beside: by queue, how many seats of the attempt are there that are to be on other workers.
        """
        key = (name, attempt)
        of_attempt = _attempt_of(key)
        waits_in = self._waits_in.get(key, set())
        elsewhere = [shape for shape in self._fitting_for(of_attempt) if shape.queue not in waits_in]
        if waits_in and not self._has_room(elsewhere):
            return None
        if beside:
            # All of its workers may have one; where there is no other, it waits there for another worker.
            elsewhere = [shape for shape in elsewhere if beside.get(shape.queue, 0) < shape.workers] or elsewhere
        # It no longer counts on the queue that lost it.
        self._load.drop(key)
        shape = self._shape_of(elsewhere, self._needs_of(of_attempt))
        # A team's account can only use its workers' queues: the attempt is published again when one of them joins.
        return shape if elsewhere or self._may_use(shape.target) else None

    def _shape_of(self, shapes: Collection[Shape], needs: Resources) -> Shape:
        """Return the best of these for another attempt; without one, slots that offer just what it needs, of which there are none."""
        return self._load.choose(shapes) if shapes else self._no_slots(needs)

    def _task(self, name: TrialId, attempt: int) -> Task:
        """Return what a worker is told of a seat."""
        task = self._experiment, name, attempt, self._digest
        needs = self._needs.get(_attempt_of((name, attempt)))
        return (*task, needs.shared_bytes) if needs is not None and needs.is_shared_by_memory else task

    def _no_slots(self, needs: Resources) -> Shape:
        queue = queue_name(needs)
        return Shape(queue, queue, needs, 0)

    def started(self, trial: TrialId, attempt: int, queue: str) -> None:
        """Note the queue that an attempt was taken from: perhaps not the last one, or one that an earlier driver chose."""
        self._load.put((trial, attempt), queue)

    def ended(self, trial: TrialId, attempt: int) -> None:
        for name in seat_names(trial, self._needs_of((trial, attempt)).seats):
            self._load.drop((name, attempt))
        self._needs.pop((trial, attempt), None)

    def lost(self, trial: TrialId, attempt: Attempt) -> None:
        """Show whoever watches the queues that an attempt was lost, in place of its worker; failures are only logged."""

    def _has_room(self, shapes: Collection[Shape]) -> bool:
        return any(self._load.free(shape) > 0 for shape in shapes)

    @abstractmethod
    def _send(self, trial: TrialId, attempt: int, config: Config, queue: str) -> None:
        """Put a message on a queue.

        Raises:
            BrokerUnavailable: no server answers.
        """

    def queued(self) -> set[tuple[TrialId, int]] | None:
        """Return the seats that wait in a fitting queue; None when one of these is too long to search.

        One that waits while a slot of another shape is free is left out: published again, it goes there.
        """
        found: dict[_Key, set[str]] = {}
        for shape in self._fitting:
            messages = self._fleet.queued(shape.target)
            if messages is None:
                return None
            for headers in messages:
                experiment, _, rest = str(headers.get("id")).partition("/")
                trial, _, attempt = rest.partition("/")
                if experiment == self._experiment and attempt.isdecimal() and is_seat(trial):
                    found.setdefault((TrialId(trial), int(attempt)), set()).add(shape.queue)
        self._waits_in = found
        return {
            key
            for key, queues in found.items()
            if not self._has_room([shape for shape in self._fitting_for(_attempt_of(key)) if shape.queue not in queues])
        }

    def read_log(self, worker: str, trial: TrialId, attempt: int, stream: LogStream, offset: int) -> LogChunk:
        return self._logs.ask(worker, trial, attempt, stream, offset)

    def close(self) -> None:
        """Close what it has opened itself."""


def _attempt_of(key: _Key) -> _Key:
    name, attempt = key
    return seat_in(name)[0], attempt


#: The most workers that an error names.
_SHOWN_WORKERS: Final = 5


@lru_cache
def _offer(gpus: float, cpus: int, gpu_memory_gb: float, tags: tuple[str, ...]) -> Resources:
    """Return what slots offer; those of most workers of a fleet offer the same."""
    return Resources(gpus=gpus, cpus=cpus, gpu_memory_gb=gpu_memory_gb, tags=tags)
