"""Simulated workers: the user's settings, the driver's session, and the driver's journal."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from mqtune.backends.simulated.fleet import Conditions, Draw, SimulatedFleet
from mqtune.backends.simulated.reports import Reports, checked_seconds, make_source
from mqtune.core.checks import whole_number
from mqtune.core.codec import decode_value
from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import Resources
from mqtune.core.trial import Attempt, Config, Intent, TrialId
from mqtune.journal.base import (
    Assignment,
    AttemptCheck,
    DriverState,
    Entry,
    Guard,
    Intended,
    Order,
    ServerState,
    Unclaimed,
)
from mqtune.journal.exchange.logs import LogChunk, LogStream
from mqtune.journal.memory import MemoryJournal

#: A duration in seconds: a number, or a function that draws one.
Delay = float | Callable[[random.Random], float]


class Simulated:
    """Runs an experiment in virtual time: only the decisions on reports take real time.

    The driver, schedulers and searchers are the same as with a broker, and write the same journal. Only the workers and
    the clock are simulated, and the trainable is not called. Nothing sleeps. Without delays, the driver decides on a
    report before anything later happens. The same arguments and the same experiment give the same journal, byte for
    byte.

    ``reports`` defines the reports of each trial and their times. It is one of these:

    - a function of the config. It returns or yields a pair ``(seconds, metrics)`` for each report: its duration and its
      metrics. The attempt fails where there is an exception instead of the metrics or of the pair, or if the function
      raises one.
    - a table: a list of rows (dicts), a dict of columns (lists), a data frame of pandas or polars, or the path of a CSV
      or Parquet file. Its columns are the names in the config (``net.width`` for a nested one), "seconds" (the duration
      of the report) and the metrics. A trial reports the rows with its config's values, in order. Missing values are
      left out.

    An attempt that starts from a checkpoint continues after the report of that checkpoint. If another trial saved the
    checkpoint, the attempt continues at the same position with the reports of its own config.

    Each delay is a number of seconds, or a function that draws one with the given ``random.Random``.

    Args:
        reports: the function, table, or file.
        slots: number of workers, each with one slot.
        checkpoints: whether each report has a checkpoint. If not, a resumed attempt starts from scratch.
        start_delay_s: the time between a worker's claim of an attempt and the start of its trainable.
        report_delay_s: the time until the driver can read a report. Reports of one attempt never overtake one another.
        decision_delay_s: the time until a decision reaches its trial. Until then the trial continues, and its reports
            are late.
        stop_delay_s: the time between the arrival of a stop or pause and the end of the process, which frees the slot.
        life_s: the time until a worker dies without notice, so that its attempt is lost; None for never.
        away_s: the time between a worker's death and its return.
        seed: the seed of the random numbers for delays.
        offer: the resources that each slot offers; by default those that trials ask for.
        keep_journal: whether the whole journal stays in memory, so that another driver in this process can continue the
            experiment. By default, entries are deleted after they were read.

    Raises:
        ConfigurationError: an argument is invalid, or a file can't be read.
        MqtuneError: the file is a Parquet file, and no library for it is installed.
    """

    def __init__(
        self,
        reports: Reports,
        *,
        slots: int = 4,
        checkpoints: bool = True,
        start_delay_s: Delay = 0.0,
        report_delay_s: Delay = 0.0,
        decision_delay_s: Delay = 0.0,
        stop_delay_s: Delay = 0.0,
        life_s: Delay | None = None,
        away_s: Delay = 0.0,
        seed: int = 0,
        offer: Resources | None = None,
        keep_journal: bool = False,
    ) -> None:
        slots = whole_number("Simulated", "slots", slots, 1)
        seed = whole_number("Simulated", "seed", seed)
        if offer is not None and not isinstance(offer, Resources):
            raise ConfigurationError(f"Simulated: offer={offer!r}: give mqtune.Resources(gpus=…, cpus=…)")
        rng = random.Random(seed)
        self._source = make_source(reports)
        self._offer = offer
        self._keep_journal = keep_journal
        self._conditions = Conditions(
            slots=slots,
            checkpoints=checkpoints,
            start_delay=_make_draw("start_delay_s", start_delay_s, rng),
            report_delay=_make_draw("report_delay_s", report_delay_s, rng),
            decision_delay=_make_draw("decision_delay_s", decision_delay_s, rng),
            stop_delay=_make_draw("stop_delay_s", stop_delay_s, rng),
            life=None if life_s is None else _make_draw("life_s", life_s, rng),
            away=_make_draw("away_s", away_s, rng),
        )
        self._fleet: SimulatedFleet | None = None

    def open(self, experiment: str, resources: Resources | None = None) -> SimulatedBackend:
        """Return a session with the simulated workers. A later driver gets the same workers.

        Raises:
            ConfigurationError: the workers belong to another experiment, or the journal was not kept.
        """
        if self._fleet is None:
            self._fleet = SimulatedFleet(experiment, self._source, self._conditions, keeps_journal=self._keep_journal)
        if self._fleet.experiment != experiment:
            raise ConfigurationError(
                f"this Simulated belongs to the experiment {self._fleet.experiment!r}; make another one for "
                f"{experiment!r}"
            )
        if self._fleet.has_begun and not self._keep_journal:
            raise ConfigurationError(
                f"this Simulated has run the experiment {experiment!r} and has not kept its journal: make another one "
                "to start over, or give keep_journal=True to continue it"
            )
        return SimulatedBackend(self._fleet, self._conditions.slots, self._offer, resources or Resources())


class SimulatedBackend:
    """A driver's session with simulated workers. Each task of an attempt takes a worker.

    Args:
        workers: the number of workers, dead ones included.
        offer: the resources that each slot offers; None for the resources that trials ask for.
        resources: the resources of each trial. ``asks`` sets others for an attempt.
    """

    takes_several_tasks = True

    def __init__(self, fleet: SimulatedFleet, workers: int, offer: Resources | None, resources: Resources) -> None:
        self.clock = fleet.clock
        self.journal = SimulatedJournal(fleet)
        self.fleet = fleet
        self._workers = workers
        self._offer = offer
        #: All different resources that attempts have asked for so far, in order.
        self._asked: dict[Resources, None] = {resources: None}
        self._slots = 0
        #: The attempts that are queued or running.
        self._live: set[tuple[TrialId, int]] = set()

    @property
    def slots(self) -> int:
        return self._slots

    def refresh(self) -> None:
        self._slots = max(map(self.offered, self._asked))

    def expect(self, resources: Resources) -> None:
        self._asked[resources] = None

    def asks(self, trial: TrialId, attempt: int, resources: Resources) -> None:
        self.expect(resources)

    def why_no_slot(self) -> str:
        first, *others = self._asked
        asked = " or ".join([first.not_offered, *map(str, others)])
        return f"{asked}: " + ("all simulated workers are dead" if not self.fleet.alive else self.resource_string())

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        """Count a staged attempt, and offer it to the workers, as ``stage`` has already done.

        An earlier driver may have staged it.
        """
        self._live.add((trial, attempt))
        self.fleet.publish(trial, attempt)

    def started(self, trial: TrialId, attempt: int, queue: str) -> None:
        """Note that an attempt runs. An earlier driver may have published it."""
        self._live.add((trial, attempt))

    def lost(self, trial: TrialId, attempt: Attempt) -> None:
        """Do nothing, because a simulation has no monitors."""

    def ended(self, trial: TrialId, attempt: int) -> None:
        self._live.discard((trial, attempt))
        self.fleet.queue.pop((trial, attempt), None)

    def offered(self, resources: Resources) -> int:
        return self.fleet.alive // resources.slots if any(map(resources.fits, self._offers)) else 0

    def free(self, resources: Resources) -> int:
        return max(0, self.offered(resources) - len(self._live))

    @property
    def _offers(self) -> Iterable[Resources]:
        """The resources that each slot offers: the configured ones, or those of any attempt so far."""
        return self._asked if self._offer is None else [self._offer]

    def resource_string(self) -> str:
        offer = " or ".join(map(str, self._offers))
        return f"{self.fleet.alive} of {self._workers} simulated workers: each {offer}"

    def has_gpus(self) -> bool | None:
        return any(offer.has_gpu for offer in self._offers) if self.fleet.alive else None

    def queued(self) -> set[tuple[TrialId, int]]:
        return set(self.fleet.queue)

    def read_log(self, worker: str, trial: TrialId, attempt: int, stream: LogStream, offset: int) -> LogChunk:
        return LogChunk(b"", 0, 0, is_open=False)

    def close(self) -> None:
        """Do nothing, because a simulation has no connections."""


def _make_draw(name: str, delay: Delay, rng: random.Random) -> Draw:
    if callable(delay):
        return lambda: checked_seconds(name, delay(rng))
    seconds = checked_seconds(name, delay)
    return lambda: seconds


class SimulatedJournal(MemoryJournal):
    """The driver's journal in a simulation.

    Virtual time passes, and workers act, only inside ``read``. So locks never expire. The work for one call does not
    grow with the number of trials.
    """

    is_live = False

    def __init__(self, fleet: SimulatedFleet) -> None:
        super().__init__(fleet.server, fleet.experiment)
        self.loses_attempts = fleet.workers_die
        self._fleet = fleet

    def read(self, after: str, *, count: int, block_s: float = 0) -> list[Entry]:
        """Return new entries. Without new entries, advance virtual time by up to *block_s* seconds.

        Workers act in chronological order. Time stops when a worker writes an entry, so the driver decides on that
        entry before anything else happens. The driver's own entries don't stop time.
        """
        if block_s > 0 and self._fleet.written_to <= int(after.partition("-")[0]):
            self._fleet.advance(block_s)
            self.fleet_changed = self.fleet_changed or self._fleet.changed
            self._fleet.changed = False
        return super().read(after, count=count)

    def heartbeat(self, holder: str, hold_s: float, state: DriverState) -> ServerState:
        server = super().heartbeat(holder, hold_s, state)
        if not 0 < state.most_bytes <= server.journal_bytes:
            self._fleet.release_held()
        return server

    def record(self, *events: bytes, definition: bytes | None = None) -> None:
        super().record(*events, definition=definition)
        if definition is not None:
            self._fleet.is_lockstep = decode_value(definition).get("sync") == "lockstep"

    def stage(self, trial: TrialId, attempt: int, assignment: Assignment, event: bytes) -> bool:
        """Let workers claim an attempt, and offer it to them in the same step.

        In the journal, an attempt has only one task, because one claim takes all of its workers.
        """
        is_staged = super().stage(trial, attempt, assignment._replace(task_plan=""), event)
        if is_staged:
            self._fleet.tasks = assignment.tasks
            self._fleet.publish(trial, attempt)
        return is_staged

    def intend(self, trial: TrialId, attempt: int, intent: Intent, event: bytes, ended: bytes) -> Intended:
        answer = super().intend(trial, attempt, intent, event, ended)
        if answer == "running":
            self._fleet.tell(trial, attempt, intent)
        return answer

    def order(self, orders: Sequence[Order]) -> list[bool]:
        running = super().order(orders)
        for order, runs in zip(orders, running, strict=True):
            if runs and order.kind == "save":
                self._fleet.ask_to_save(order.trial, order.attempt)
            elif runs:
                self._fleet.let_go_on(order.trial, order.attempt, order.number)
        return running

    def expired(self) -> list[TrialId]:
        return self._fleet.expired()

    def look(self, attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> AttemptCheck:
        """Return that all attempts run or wait, because a simulation loses none."""
        return AttemptCheck("", [True] * len(attempts))

    def lose(
        self, trial: TrialId, attempt: int, guard: Guard, event: bytes, timestamp: float = 0.0, read: str = ""
    ) -> bool:
        is_lost = super().lose(trial, attempt, guard, event, timestamp, read)
        if is_lost:
            self._fleet.lose(trial, attempt)
        return is_lost

    def unclaimed(self, *, older_than_s: float = 0.0, count: int | None = None) -> list[Unclaimed]:
        """Return nothing, because a simulation never loses a published attempt."""
        return []
