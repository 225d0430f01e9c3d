from __future__ import annotations

import copy
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable as Fn
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from bench import Bench
from simulation import Copy

from mqtune.backends.base import Offer
from mqtune.core.callback import Callback
from mqtune.core.codec import encode_value, pack_metrics, segment_bytes
from mqtune.core.errors import BrokerUnavailable, DriverFenced, MetricMissing, TrainableNotFound, UserCodeFailed
from mqtune.core.events import (
    AttemptEnded,
    AttemptStarted,
    Cursor,
    DecisionTaken,
    DriverStarted,
    ExperimentCreated,
    ExperimentEnded,
    Reports,
    TrialStaged,
    decode_event,
    events_in_order,
)
from mqtune.core.experiment import Experiment
from mqtune.core.resources import Resources
from mqtune.core.trial import (
    CONTINUE,
    Action,
    Attempt,
    AttemptEnd,
    Config,
    Decision,
    Intent,
    Report,
    Trial,
    TrialId,
    TrialStatus,
)
from mqtune.driver.actions import Decide
from mqtune.driver.checkpoints import CheckpointGC
from mqtune.driver.loop import Driver
from mqtune.driver.publishing import GATHER_S
from mqtune.driver.retention import Retention
from mqtune.driver.settings import Limits
from mqtune.driver.slots import Addition
from mqtune.driver.timers import LEASE_GRACE_S, LOOK_AT_LEASES_S, REFRESH_S, STALL_S, UNCLAIMED_S
from mqtune.journal.base import FENCED, Claim, Entry, Grant, Segment, Unclaimed
from mqtune.journal.copy import JournalFile
from mqtune.journal.lock import KEEP_LOCK_S, LOCK_S
from mqtune.journal.memory import MemoryJournal, MemoryServer
from mqtune.journal.room import Room
from mqtune.results.callbacks import CallbackDispatcher
from mqtune.schedulers.asha import ASHA
from mqtune.schedulers.base import FIFO
from mqtune.schedulers.timed import Progress
from mqtune.search.base import Searcher
from mqtune.search.domains import uniform
from mqtune.search.random import RandomSearcher
from mqtune.search.space import Space

T = TypeVar("T")

NAME: Final = "x"
SPACE: Final = Space({"lr": uniform(0, 1)})
MAX_T: Final = 9
#: Longer than anything here takes: leases run out when a worker lets them.
LEASE_S: Final = 1e9


class Clock:
    """Time that passes when a test says so; what is written down is always the same moment."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.7e9


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Killed(BaseException):
    """The driver's process is gone."""


class DriversJournal(MemoryJournal):
    """A driver's hand on the journal: it may die, and others may act, just before or after any write."""

    def __init__(
        self,
        server: MemoryServer,
        *,
        kill_at: int = 0,
        is_done: bool = False,
        meanwhile: Fn[[], None] = lambda: None,
    ) -> None:
        super().__init__(server, NAME)
        self.kill_at = kill_at
        self.is_done = is_done
        self.meanwhile = meanwhile
        self.writes = 0

    def _mortal(self, write: Fn[[], T]) -> T:
        self.writes += 1
        self.meanwhile()
        if self.writes == self.kill_at and not self.is_done:
            raise Killed
        result = write()
        if self.writes == self.kill_at:
            raise Killed
        self.meanwhile()
        return result

    def record(self, event: bytes, *, definition: bytes | None = None) -> None:
        self._mortal(lambda: MemoryJournal.record(self, event, definition=definition))

    def stage(self, *args: Any) -> bool:
        return self._mortal(lambda: MemoryJournal.stage(self, *args))

    def intend(self, *args: Any) -> Any:
        return self._mortal(lambda: MemoryJournal.intend(self, *args))

    def lose(self, *args: Any) -> bool:
        return self._mortal(lambda: MemoryJournal.lose(self, *args))


@dataclass
class Run:
    """One attempt on the pretended worker."""

    claim: Claim
    config: Config
    plan: AttemptEnd
    length: int
    sequence: int = 0
    intent: str = ""


class Fleet:
    """A backend with a worker of a few slots that act one step at a time, by a script or by chance."""

    def __init__(self, server: MemoryServer, clock: Clock, slots: int = 3) -> None:
        self.server = server
        self.clock = clock
        self.slots = slots
        self.queue: list[tuple[TrialId, int]] = []
        self.running: dict[TrialId, Run] = {}
        self.published: list[tuple[TrialId, int]] = []
        self.gone: list[tuple[TrialId, int]] = []
        self.refreshed = 0
        self.plans: Fn[[TrialId, int], tuple[AttemptEnd, int]] = lambda _trial, _attempt: (AttemptEnd.COMPLETED, MAX_T)
        self.curve: Fn[[TrialId, Config, int], Any] = lambda _trial, config, step: config["lr"] / step

    @property
    def journal(self) -> MemoryJournal:
        return MemoryJournal(self.server, NAME)

    # The driver's side.

    def refresh(self) -> None:
        self.refreshed += 1

    def why_no_slot(self) -> str:
        return "there is no worker"

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        staged = [e for e in events(self.server) if isinstance(e, TrialStaged) and e.trial == trial]
        assert staged[-1].attempt == attempt, "published before it was journaled"
        assert staged[-1].config == config
        self.queue.append((trial, attempt))
        self.published.append((trial, attempt))

    def started(self, trial: TrialId, attempt: int, queue: str) -> None:
        pass

    def lost(self, trial: TrialId, attempt: Attempt) -> None:
        pass

    def ended(self, trial: TrialId, attempt: int) -> None:
        self.gone.append((trial, attempt))

    def offered(self, resources: Resources) -> int:
        return self.slots

    def free(self, resources: Resources) -> int:
        return self.slots - len(self.running)

    def resource_string(self) -> str:
        return f"{self.slots} slots"

    def has_gpus(self) -> bool:
        return False

    def queued(self) -> set[tuple[TrialId, int]]:
        return set(self.queue)

    def close(self) -> None:
        pass

    # The worker's side.

    def unclaimed(self) -> list[TrialId]:
        """Return the trials whose attempts no worker has."""
        return [each.trial for each in self.journal.unclaimed() if not each.worker]

    def act(self) -> None:
        """Do the next thing that a worker in lockstep with its driver would do."""
        self.listen()
        told = [run for run in self.running.values() if run.intent]
        if told:
            self.end(told[0])
        elif self.journal.expired():
            self.clock.now += LOOK_AT_LEASES_S
        elif len(self.running) < self.slots and (unclaimed := self.unclaimed()):
            trial = min(unclaimed)
            waiting = [item for item in self.queue if item[0] == trial]
            if waiting and waiting[-1][1] == self.attempt_of(trial):
                self.claim(waiting[-1])
            else:
                self.clock.now += UNCLAIMED_S / 2
        elif over := [run for run in self.running.values() if run.sequence >= run.length]:
            self.end(over[0])
        else:
            # One more report from each, and now and then several at once.
            self.report([(run, 1 + (run.sequence + int(run.claim.trial)) % 3 // 2) for run in self.running.values()])

    def act_by_chance(self, rng: random.Random) -> None:
        """Do anything that a worker might do at any time."""
        if rng.random() < 0.5:
            self.listen()
        runs = list(self.running.values())
        over = [run for run in runs if run.intent or run.sequence >= run.length]
        choice = rng.random()
        if self.queue and len(self.running) < self.slots and choice < 0.4:
            self.claim(self.queue[0])
        elif over and choice < 0.7:
            self.end(rng.choice(over))
        elif runs:
            some = rng.sample(runs, rng.randint(1, len(runs)))
            self.report([(run, rng.randint(1, 4)) for run in some if run.sequence < run.length])

    def attempt_of(self, trial: TrialId) -> int:
        return self.server.experiments[NAME].trials[trial].attempt

    def listen(self) -> None:
        """Hear with the heartbeat what the driver wants."""
        runs = list(self.running.values())
        for run, answer in zip(runs, self.journal.renew([run.claim for run in runs], LEASE_S), strict=True):
            self.hear(run, answer)

    def hear(self, run: Run, answer: str) -> None:
        if answer == FENCED:
            self.running.pop(run.claim.trial, None)
        elif answer:
            run.intent = answer

    def claim(self, item: tuple[TrialId, int]) -> None:
        self.queue.remove(item)
        trial, attempt = item
        claim = Claim(trial, attempt, f"token-{trial}-{attempt}")
        event = AttemptStarted(trial=trial, attempt=attempt, worker="w", host="h", devices=[], at=1.0)
        grant = self.journal.claim(claim, "w", LEASE_S, event.encode())
        if isinstance(grant, Grant):
            self.running[trial] = Run(claim, grant.assignment.config, *self.plans(trial, attempt))

    def report(self, parts: list[tuple[Run, int]]) -> None:
        batch = []
        for run, count in parts:
            trial, attempt, _ = run.claim
            numbers = range(run.sequence + 1, min(run.sequence + count, run.length) + 1)
            packed = [pack_metrics(2.0, {"loss": self.curve(trial, run.config, n)}) for n in numbers]
            data = segment_bytes(trial, attempt, numbers.start, packed)
            batch.append(Segment(run.claim, numbers.start, len(numbers), 2.0, data))
            run.sequence += len(numbers)
        for (run, _), answer in zip(parts, self.journal.report(batch), strict=True):
            self.hear(run, answer)

    def end(self, run: Run) -> None:
        del self.running[run.claim.trial]
        told = {
            "stop": AttemptEnd.STOPPED,
            "abandon": AttemptEnd.STOPPED,
            "pause": AttemptEnd.PAUSED,
            "hand_back": AttemptEnd.HANDED_BACK,
            "give_way": AttemptEnd.HANDED_BACK,
        }
        end = told.get(run.intent, run.plan)
        if end is AttemptEnd.LOST:
            self.journal.renew([run.claim], 0.0)
            return
        failed = {"error_type": "ValueError", "error": "ValueError: no"} if end is AttemptEnd.FAILED else {}
        event = AttemptEnded(
            trial=run.claim.trial, attempt=run.claim.attempt, end=end, at=3.0, pid=7, exit_code=0, **failed
        )
        self.journal.end(run.claim, event.encode())


def events(server: MemoryServer) -> list[Any]:
    return [decode_event(entry.data) for entry in entries(server)]


def entries(server: MemoryServer) -> list[Entry]:
    return MemoryJournal(server, NAME).read("0-0", count=10**6)


def story(server: MemoryServer) -> list[str]:
    """What happened, whoever drove: the events without those that name a driver, with cursors that don't count those."""
    told: list[Any] = []
    places = {"0-0": "start"}
    for entry in entries(server):
        event = decode_event(entry.data)
        if not isinstance(event, DriverStarted):
            told.append(event)
            places[entry.id] = f"event {len(told)}"
    # As texts: NaN is not itself.
    return [
        repr(replace(event, cursor=Cursor(places[event.cursor.entry], event.cursor.reports)))
        if getattr(event, "cursor", None) is not None
        else repr(event)
        for event in told
    ]


class Told(Callback):
    """Keeps what it is told."""

    in_loop = True

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.ends: list[TrialId] = []
        self.steps: list[str] = []
        self.starts = 0

    def on_start(self, experiment: Experiment) -> None:
        self.starts += 1

    def on_step(self, waiting_for: str) -> None:
        self.steps.append(waiting_for)

    def on_report(self, trial: Trial, report: Report) -> None:
        self.reports.append(report)

    def on_trial_end(self, trial: Trial) -> None:
        self.ends.append(trial.id)


class WatchedASHA(ASHA):
    """Keeps the reports that it was shown."""

    def __init__(self) -> None:
        super().__init__(max_t=MAX_T, grace_period=1, reduction_factor=3)
        self.shown: list[Report] = []

    def on_report(self, trial: Trial, report: Report) -> Decision:
        self.shown.append(report)
        return super().on_report(trial, report)


class Climber(Searcher):
    """Goes on from the best value that was reported: what it suggests depends on every report and end."""

    adaptive = True

    def __init__(self) -> None:
        self._best = 1.0
        self._count = 0

    def suggest(self, trial: TrialId) -> Config:
        self._count += 1
        return {"lr": (self._best + 1 / (self._count + 1)) / 2, "seen": self._count}

    def on_report(self, trial: Trial, report: Report) -> None:
        self._best = self._best * 0.9 + report.metrics["loss"] * 0.1
        self._count += 1

    def on_trial_end(self, trial: Trial) -> None:
        self._count += 100

    def describe(self) -> dict[str, Any]:
        return {}


@dataclass
class World:
    """An experiment, its server and its fleet; drivers come and go."""

    clock: Clock
    copy: JournalFile | None = None
    max_trials: int | None = 12
    max_concurrent: int | None = None
    make_scheduler: Fn[[], Any] = WatchedASHA
    make_searcher: Fn[[], Searcher] = lambda: RandomSearcher(SPACE, 7)
    max_failures: int = 1
    definition: dict[str, Any] = field(default_factory=lambda: {"metric": "loss"})
    drivers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.server = MemoryServer(self.clock.monotonic)
        self.fleet = Fleet(self.server, self.clock)

    def driver(self, journal: MemoryJournal | None = None, owner: str = "", told: Callback | None = None) -> Driver:
        """Return a driver that has taken the lock and read the journal."""
        journal = journal or DriversJournal(self.server)
        owner = owner or f"driver-{next(self.drivers)}"
        scheduler = self.make_scheduler()
        scheduler.bind("loss", "min")
        experiment = Experiment(NAME, metric="loss", mode="min", max_failures=self.max_failures)
        journal.lock(owner, "", LOCK_S)
        driver = Driver(
            journal=journal,
            backend=self.fleet,
            experiment=experiment,
            scheduler=scheduler,
            searcher=self.make_searcher(),
            space=SPACE,
            limits=Limits(max_trials=self.max_trials, max_concurrent=self.max_concurrent),
            checkpoints=CheckpointGC(experiment, Retention(), None, delete_checkpoints=False),
            is_lockstep=False,
            copy=self.copy or Copy(),
            callbacks=CallbackDispatcher([] if told is None else [told]),
            owner=owner,
            clock=self.clock,
        )
        driver.begin(NAME, self.definition, is_new=journal.definition() is None, driver=owner)
        return driver

    def finish(self, driver: Driver) -> None:
        """Run in lockstep to the end: the worker acts once, then the driver takes in all of it."""
        if not driver.is_finished:
            driver.step(0)
        for _ in range(5000):
            if driver.is_finished:
                break
            self.fleet.act()
            driver.step(0)
        assert driver.is_finished, driver.experiment.counts
        driver.end("finished", "")
        driver.close()

    def replayed(self, owner: str) -> Driver:
        """Return another process's view: a fresh driver that has read a copy of the journal."""
        server = MemoryServer(self.clock.monotonic)
        server.experiments = copy.deepcopy(self.server.experiments)
        for trial in server.experiments[NAME].trials.values():
            # It only looks: what has run out by now is for the living driver to find.
            trial.lease_until = math.inf
        return self.driver(MemoryJournal(server, NAME), owner)

    def pass_the_lock(self) -> None:
        """Let the lock of a driver that died run out."""
        self.clock.now += LOCK_S


@pytest.fixture
def world(clock: Clock) -> World:
    return World(clock)


@pytest.fixture
def eventful(world: World) -> World:
    """A world in which everything happens that can happen to a trial."""
    plans = {
        (2, 1): (AttemptEnd.FAILED, 2),
        (3, 1): (AttemptEnd.LOST, 0),
        (4, 1): (AttemptEnd.HANDED_BACK, 2),
        (5, 1): (AttemptEnd.FAILED, 0),
        (5, 2): (AttemptEnd.FAILED, 0),
        (6, 1): (AttemptEnd.COMPLETED, 2),
        (7, 1): (AttemptEnd.COMPLETED, 0),
        (7, 2): (AttemptEnd.LOST, 2),
        (8, 1): (AttemptEnd.STOPPED, 0),
    }
    world.fleet.plans = lambda trial, attempt: plans.get((int(trial), attempt), (AttemptEnd.COMPLETED, MAX_T))
    #: Trials that the scheduler leaves alone, so that their plans come true.
    good = (2, 4, 6, 7)

    def curve(trial: TrialId, config: Config, step: int) -> Any:
        odd = {(9, 1): math.nan, (10, 1): math.inf, (1, 2): None}
        return odd.get((int(trial), step), -int(trial) if int(trial) in good else config["lr"] + 1 / step)

    world.fleet.curve = curve
    return world


def state_of(driver: Driver) -> dict[str, Any]:
    """All that a driver knows, as text, in which NaN is equal to NaN."""
    experiment, scheduler = driver.experiment, driver._deciders.scheduler
    known = {name: value for name, value in vars(experiment).items() if name not in ("best", "trials")}
    state = {name: repr(value) for name, value in known.items()}
    state |= {trial.id: repr(trial) for trial in experiment.trials.values()}
    state["best"] = repr(experiment.best and experiment.best.id)
    state["cursor"] = repr(driver.cursor)
    state["suggested"] = repr(driver._slots._suggested)
    if isinstance(scheduler, WatchedASHA):
        state["rungs"] = repr(scheduler.rung_sizes)
        state["scores"] = repr([(rung._best, rung._rest) for rung in scheduler._all_brackets[0].rungs])
        progress = scheduler._progress.items()
        slots = [name for name in Progress.__slots__ if name != "counted"]
        state["progress"] = repr({trial: [getattr(p, name) for name in slots] for trial, p in progress})
        state["counted"] = repr({trial: [score for _, score in p.counted] for trial, p in progress})
        state["shown"] = repr(scheduler.shown)
    return state


def suggestions(world: World, count: int) -> list[Config | None]:
    searcher = world.make_searcher()
    return [searcher.suggest(TrialId("0001")) for _ in range(count)]


# The undisturbed run.


def test_an_experiment_runs_to_its_end(world: World) -> None:
    driver = world.driver()

    world.finish(driver)

    statuses = Counter(trial.status for trial in driver.experiment.trials.values())
    assert sum(statuses.values()) == 12
    assert set(statuses) == {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}
    assert statuses[TrialStatus.EARLY_STOPPED] >= 5
    assert [t.config for t in driver.experiment.trials.values()] == suggestions(world, 12)
    assert driver.experiment.outcome == "finished"
    assert world.fleet.running == {}


def test_everything_that_can_happen_to_a_trial_happens_in_the_eventful_world(eventful: World) -> None:
    driver = eventful.driver()

    eventful.finish(driver)

    trials = driver.experiment.trials.values()
    assert {trial.status for trial in trials} >= {
        TrialStatus.COMPLETED,
        TrialStatus.EARLY_STOPPED,
        TrialStatus.FAILED,
        TrialStatus.ABANDONED,
    }
    ends = {attempt.end for trial in trials for attempt in trial.attempts}
    assert ends == set(AttemptEnd) - {AttemptEnd.PAUSED}
    assert max(len(trial.attempts) for trial in trials) >= 3
    batches = [list(event) for event in events(eventful.server) if isinstance(event, Reports)]
    assert max(map(len, batches)) >= 3


def test_the_same_seed_and_the_same_order_of_reports_give_the_same_journal(eventful: World, clock: Clock) -> None:
    eventful.finish(eventful.driver())
    again = World(clock)
    again.fleet.plans, again.fleet.curve = eventful.fleet.plans, eventful.fleet.curve

    again.finish(again.driver())

    assert entries(again.server) == entries(eventful.server)


def test_the_copy_is_the_journal(eventful: World, tmp_path: Path) -> None:
    eventful.copy = JournalFile(tmp_path / "journal.msgpack")
    with pytest.raises(Killed):
        eventful.finish(eventful.driver(DriversJournal(eventful.server, kill_at=20)))
    eventful.pass_the_lock()

    eventful.finish(eventful.driver())

    assert list(eventful.copy.read()) == entries(eventful.server)


def test_the_scheduler_sees_each_report_once_in_the_journals_order_and_none_after_its_decision(
    eventful: World,
) -> None:
    driver = eventful.driver()

    eventful.finish(driver)

    shown = driver._deciders.scheduler.shown  # type: ignore[attr-defined]
    assert repr(shown) == repr(accepted(entries(eventful.server)))
    for trial in driver.experiment.trials.values():
        assert trial.reports == sum(report.trial == trial.id for report in shown)


def accepted(journal: list[Entry]) -> list[Report]:
    """The reports of a journal that came before their attempt was decided on or ended, by hand."""
    over: set[tuple[TrialId, int]] = set()
    found = []
    for event in events_in_order([(entry.id, entry.data) for entry in journal]):
        if isinstance(event, Report):
            if (event.trial, event.attempt) not in over:
                found.append(event)
        elif isinstance(event, AttemptEnded) or (
            isinstance(event, DecisionTaken) and event.intent is not Intent.HAND_BACK
        ):
            over.add((event.trial, event.attempt))
    return found


def test_each_decision_names_its_report_and_carries_the_cursor_of_it(world: World) -> None:
    driver = world.driver()
    world.finish(driver)

    by_id = {entry.id: decode_event(entry.data) for entry in entries(world.server)}
    decisions = [event for event in by_id.values() if isinstance(event, DecisionTaken)]
    assert len(decisions) >= 6
    for decision in decisions:
        batch = by_id[decision.cursor.entry]
        assert isinstance(batch, Reports)
        report = list(batch)[decision.cursor.reports - 1]
        assert (report.trial, report.attempt, report.sequence) == (
            decision.trial,
            decision.attempt,
            decision.sequence,
        )


# A driver that dies. Promises 6 and 12.


def test_at_every_moment_a_fresh_driver_comes_to_the_state_of_the_living_one(eventful: World) -> None:
    driver = eventful.driver(owner="driver")
    expected = suggestions(eventful, 20)

    def check() -> None:
        fresh = eventful.replayed("driver")
        assert state_of(fresh) == state_of(driver)
        assert fresh._deciders.searcher.suggest(TrialId("0001")) == expected[driver._slots._suggested]

    check()
    driver.step(0)
    checks = 0
    while not driver.is_finished:
        check()
        eventful.fleet.act()
        driver.step(0)
        checks += 1
    driver.end("finished", "")
    check()
    assert checks > 40


def test_a_driver_killed_at_any_write_has_an_heir_that_writes_the_same_journal(eventful: World, clock: Clock) -> None:
    eventful.finish(eventful.driver())
    expected = story(eventful.server)
    writes = sum(
        getattr(event, "cursor", None) is not None or isinstance(event, ExperimentCreated)
        for event in events(eventful.server)
    )
    killed = 0

    for kill_at, is_done in itertools.product(range(1, writes + 2), (False, True)):
        world = World(clock)
        world.fleet.plans, world.fleet.curve = eventful.fleet.plans, eventful.fleet.curve
        try:
            world.finish(world.driver(DriversJournal(world.server, kill_at=kill_at, is_done=is_done)))
        except Killed:
            killed += 1
            world.pass_the_lock()
            world.finish(world.driver())

        assert story(world.server) == expected, f"killed at write {kill_at}, {'after' if is_done else 'before'} it"
    assert killed >= 2 * 30


def test_drivers_that_are_killed_again_and_again_write_the_same_journal(eventful: World, clock: Clock) -> None:
    eventful.finish(eventful.driver())
    expected = story(eventful.server)

    for life in (1, 2, 3):
        world = World(clock)
        world.fleet.plans, world.fleet.curve = eventful.fleet.plans, eventful.fleet.curve
        for _ in range(1000):
            try:
                world.finish(world.driver(DriversJournal(world.server, kill_at=life + 1, is_done=True)))
                break
            except Killed:
                world.pass_the_lock()

        assert story(world.server) == expected


def test_what_a_driver_staged_and_died_before_it_published_its_heir_publishes_at_once(world: World) -> None:
    with pytest.raises(Killed):
        world.driver(DriversJournal(world.server, kill_at=4, is_done=True)).step(0)
    assert [e.trial for e in events(world.server) if isinstance(e, TrialStaged)] == ["0001", "0002"]
    assert world.fleet.published == [(TrialId("0001"), 1)]
    world.pass_the_lock()

    world.driver()

    assert world.fleet.published == [(TrialId("0001"), 1), (TrialId("0002"), 1)]


class Crowd(Fleet):
    """A fleet to which many attempts can be published at once."""

    def __init__(self, server: MemoryServer, clock: Clock, *, dies_at: int = 0) -> None:
        super().__init__(server, clock)
        self.batches: list[list[str]] = []
        #: The publication before which the driver is killed.
        self.dies_at = dies_at

    def publish_all(self, offers: Sequence[Offer]) -> None:
        if not offers:
            return
        self.batches.append([offer.trial for offer in offers])
        if len(self.batches) == self.dies_at:
            raise Killed
        for offer in offers:
            self.publish(*offer)


@pytest.fixture
def crowd(world: World, clock: Clock) -> Crowd:
    world.fleet = crowd = Crowd(world.server, clock)
    return crowd


def test_what_a_filling_stages_behind_its_first_attempt_is_published_together(world: World, crowd: Crowd) -> None:
    world.driver().step(0)

    assert crowd.batches == [["0001"], ["0002", "0003", "0004", "0005", "0006"]]


def test_no_staged_attempt_waits_long_for_others(world: World, crowd: Crowd, clock: Clock) -> None:
    class Slow(RandomSearcher):
        def suggest(self, trial: TrialId) -> Any:
            clock.now += 0.4 * GATHER_S
            return super().suggest(trial)

    world.make_searcher = lambda: Slow(SPACE, 7)

    world.driver().step(0)

    assert crowd.batches == [["0001"], ["0002", "0003", "0004"], ["0005", "0006"]]


def test_an_attempt_that_was_stopped_before_it_was_published_is_not_published(world: World, crowd: Crowd) -> None:
    class Stopping(Callback):
        in_loop = True

        def on_stage(self, trial: Trial) -> None:
            if trial.id == "0004":
                driver.steer("stop", "0002", {})

    driver = world.driver(told=Stopping())
    driver.step(0)

    assert crowd.batches[:2] == [["0001"], ["0003", "0004", "0005", "0006", "0007"]]
    assert driver.experiment.trials[TrialId("0002")].status is TrialStatus.EARLY_STOPPED
    assert crowd.gone == [("0002", 1)]


def test_what_was_staged_before_a_searcher_failed_is_published(world: World, crowd: Crowd) -> None:
    class Failing(RandomSearcher):
        def suggest(self, trial: TrialId) -> Any:
            if trial == "0004":
                raise ValueError("no more")
            return super().suggest(trial)

    world.make_searcher = lambda: Failing(SPACE, 7)

    with pytest.raises(UserCodeFailed):
        world.driver().step(0)

    assert crowd.batches == [["0001"], ["0002", "0003"]]


def test_a_server_that_is_away_is_waited_for_once_and_what_was_staged_is_published_by_the_next_driver(
    world: World, crowd: Crowd
) -> None:
    class Away(DriversJournal):
        def stage(self, *args: Any) -> bool:
            if args[0] == "0004":
                raise BrokerUnavailable("it is away")
            return super().stage(*args)

    with pytest.raises(BrokerUnavailable):
        world.driver(Away(world.server)).step(0)
    assert crowd.batches == [["0001"]]
    world.pass_the_lock()

    world.driver()

    assert crowd.batches == [["0001"], ["0002", "0003"]]


def test_an_attempt_that_is_staged_by_hand_is_published_at_once(world: World, crowd: Crowd) -> None:
    driver = world.driver()

    driver.requests.start({"config": {"lr": 0.5}})
    driver.requests.start({"config": {"lr": 0.6}})

    assert crowd.batches == [["0001"], ["0002"]]


def test_a_driver_killed_before_any_publication_has_an_heir_that_writes_the_same_journal(
    eventful: World, clock: Clock
) -> None:
    def lead(world: World, dies_at: int) -> Crowd:
        crowd = Crowd(world.server, clock, dies_at=dies_at)
        crowd.plans, crowd.curve = eventful.fleet.plans, eventful.fleet.curve
        world.fleet = crowd
        return crowd

    crowd = lead(eventful, 0)
    eventful.finish(eventful.driver())
    expected, most = story(eventful.server), len(crowd.batches)
    assert max(map(len, crowd.batches)) > 1

    for dies_at in range(1, most + 1):
        world = World(clock)
        lead(world, dies_at)
        with pytest.raises(Killed):
            world.finish(world.driver())
        world.pass_the_lock()
        world.finish(world.driver())

        assert story(world.server) == expected, f"killed before publication {dies_at}"


def test_an_heir_that_goes_on_otherwise_writes_that_down_and_one_that_does_not_does_not(world: World) -> None:
    first = world.driver()
    first.step(0)
    first.close()
    written: list[bytes | None] = []

    class Watched(DriversJournal):
        def record(self, event: bytes, *, definition: bytes | None = None) -> None:
            written.append(definition)
            super().record(event, definition=definition)

    world.driver(Watched(world.server)).close()
    world.definition = {"metric": "loss", "max_trials": 20}
    world.driver(Watched(world.server)).close()

    assert written == [None, encode_value(world.definition)]
    assert MemoryJournal(world.server, NAME).definition() == encode_value(world.definition)


def test_a_driver_that_catches_up_for_long_keeps_its_lock(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqtune.driver.plain._LOOK_EVERY", 1)
    world.finish(world.driver())

    class Slow(WatchedASHA):
        def on_report(self, trial: Trial, report: Report) -> Decision:
            clock.now += LOCK_S / 4
            return super().on_report(trial, report)

    world.make_scheduler = Slow
    began = clock.now

    world.driver()

    assert clock.now > began + 5 * LOCK_S
    assert world.server.experiments[NAME].driver_until > clock.now


def test_an_adaptive_searcher_comes_back_to_where_it_was(clock: Clock) -> None:
    """It must hear of the reports that were journaled before, or it would suggest something else."""
    undisturbed = World(clock, make_searcher=Climber)
    undisturbed.finish(undisturbed.driver())
    expected = story(undisturbed.server)

    for kill_at in (10, 20, 25):
        world = World(clock, make_searcher=Climber)
        with pytest.raises(Killed):
            world.finish(world.driver(DriversJournal(world.server, kill_at=kill_at)))
        world.pass_the_lock()
        world.finish(world.driver())

        assert story(world.server) == expected


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_in_whatever_order_the_journal_tells_it_all(eventful: World, seed: int) -> None:
    """Workers act between any two steps of the driver; drivers are killed, interrupted, and stop trials by hand."""
    rng = random.Random(seed)
    world, fleet = eventful, eventful.fleet
    limit = 4000

    def meanwhile() -> None:
        while rng.random() < 0.3:
            fleet.act_by_chance(rng)

    def drive(driver: Driver) -> None:
        for _ in range(limit):
            if driver.is_finished:
                return
            busy = [t for t in driver.experiment.trials.values() if t.is_busy and t.attempt.intent is Intent.RUN]
            chance = rng.random()
            if chance < 0.01 and busy:
                driver.carry_out(Decide(trial=rng.choice(busy), action=Action.STOP, by="user", reason="by hand"))
            elif chance < 0.02:
                driver.requests.add(Addition({"lr": rng.random()}))
            elif chance < 0.03:
                driver.requeue_all("Ctrl-C")
            elif chance < 0.1:
                world.clock.now += UNCLAIMED_S / 2
            fleet.act_by_chance(rng)
            if not driver.is_finished:
                driver.step(0)
            if chance > 0.9 and not driver._journal.read(driver.reader.last, count=1):  # type: ignore[attr-defined]
                assert state_of(world.replayed(driver._owner)) == state_of(driver)
        raise AssertionError(f"not finished: {driver.experiment.counts}")

    for _ in range(limit):
        journal = DriversJournal(
            world.server, kill_at=rng.choice([0, *range(1, 40)]), is_done=rng.random() < 0.5, meanwhile=meanwhile
        )
        try:
            driver = world.driver(journal)
            drive(driver)
            journal.meanwhile = lambda: None
            driver.end("interrupted" if driver._draining else "finished", "")
            driver.close()
            if not driver._draining:
                break
        except Killed:
            world.pass_the_lock()

    check_history(world, driver)


def check_history(world: World, driver: Driver) -> None:
    """What must be true of every experiment that came to its end."""
    journal = entries(world.server)
    fresh = world.replayed("heir")
    assert {**state_of(fresh), "suggested": ""} == {**state_of(driver), "suggested": ""}
    assert entries(world.server) == journal

    folded = Experiment(NAME, metric="loss", mode="min", max_failures=world.max_failures)
    for event in events_in_order([(entry.id, entry.data) for entry in journal]):
        folded.apply_report(event) if isinstance(event, Report) else folded.apply(event)
    assert repr(folded.trials) == repr(driver.experiment.trials)

    assert repr(driver._deciders.scheduler.shown) == repr(accepted(journal))  # type: ignore[attr-defined]
    every = [decode_event(entry.data) for entry in journal]
    for kind in (TrialStaged, AttemptStarted, AttemptEnded):
        told = Counter((event.trial, event.attempt) for event in every if isinstance(event, kind))
        assert set(told.values()) == {1}
    decided = Counter((e.trial, e.attempt, e.action) for e in every if isinstance(e, DecisionTaken))
    assert set(decided.values()) <= {1}
    sequences: dict[tuple[str, int], int] = Counter()
    for report in itertools.chain.from_iterable(event for event in every if isinstance(event, Reports)):
        sequences[report.trial, report.attempt] += 1
        assert report.sequence == sequences[report.trial, report.attempt]
    trials = driver.experiment.trials.values()
    assert all(trial.status.is_terminal for trial in trials)
    assert sum(event.suggested and event.attempt == 1 for event in every if isinstance(event, TrialStaged)) == 12
    assert [t.config for t in trials if t.config in suggestions(world, 12)] == suggestions(world, 12)


def test_a_driver_that_was_replaced_stops_writing(world: World, clock: Clock) -> None:
    old = world.driver()
    old.step(0)
    world.pass_the_lock()
    new = world.driver()
    before = entries(world.server)

    with pytest.raises(DriverFenced):
        old.carry_out(
            Decide(trial=old.experiment.trials[TrialId("0001")], action=Action.STOP, by="user", reason="by hand")
        )
    clock.now += KEEP_LOCK_S
    with pytest.raises(DriverFenced):
        old.step(0)

    assert entries(world.server) == before
    world.finish(new)


def test_a_driver_keeps_its_lock_for_as_long_as_it_steps(world: World, clock: Clock) -> None:
    driver = world.driver()

    for _ in range(20):
        clock.now += KEEP_LOCK_S
        driver.step(0)

    assert world.server.experiments[NAME].driver_until == clock.now + LOCK_S


def test_a_driver_that_closes_lets_the_next_one_in_at_once(world: World) -> None:
    driver = world.driver()
    driver.step(0)
    driver.close()

    world.finish(world.driver())


# What is told again, and what is not.


def test_callbacks_hear_of_each_report_and_end_once(eventful: World) -> None:
    told = Told()
    driver = eventful.driver(told=told)

    eventful.finish(driver)

    assert repr(told.reports) == repr(driver._deciders.scheduler.shown)  # type: ignore[attr-defined]
    assert sorted(told.ends) == sorted(driver.experiment.trials)
    assert told.starts == 1


def test_callbacks_do_not_hear_again_of_what_happened_before_the_driver_resumed(eventful: World) -> None:
    first, second = Told(), Told()
    with pytest.raises(Killed):
        eventful.finish(eventful.driver(DriversJournal(eventful.server, kill_at=30), told=first))
    eventful.pass_the_lock()
    assert first.ends

    eventful.finish(driver := eventful.driver(told=second))

    assert sorted(first.ends + second.ends) == sorted(driver.experiment.trials)
    assert repr(first.reports + second.reports) == repr(driver._deciders.scheduler.shown)  # type: ignore[attr-defined]


# Room.


def test_a_searcher_that_does_not_mind_is_asked_ahead(world: World) -> None:
    driver = world.driver()

    driver.step(0)

    assert driver.experiment.live == 2 * world.fleet.slots


def test_an_adaptive_searcher_is_asked_when_a_slot_is_free(clock: Clock) -> None:
    world = World(clock, make_searcher=Climber)
    driver = world.driver()

    driver.step(0)

    assert driver.experiment.live == world.fleet.slots


def test_no_more_attempts_live_than_were_asked_for(clock: Clock) -> None:
    world = World(clock, max_concurrent=2)
    driver = world.driver()
    driver.step(0)
    most = 0

    while not driver.is_finished:
        most = max(most, driver.experiment.live)
        world.fleet.act()
        driver.step(0)

    assert most == 2
    assert len(driver.experiment.trials) == 12


def test_the_searcher_decides_how_many_trials_there_are_when_nobody_else_does(clock: Clock) -> None:
    class Three(RandomSearcher):
        left = 3

        def suggest(self, trial: TrialId) -> Config | None:  # type: ignore[override]
            self.left -= 1
            return super().suggest(TrialId("0001")) if self.left >= 0 else None

    world = World(clock, max_trials=None, make_searcher=lambda: Three(SPACE, 1))
    driver = world.driver()

    world.finish(driver)

    assert len(driver.experiment.trials) == 3
    assert driver._slots.exhausted


def test_retries_come_before_new_trials(eventful: World) -> None:
    driver = eventful.driver()
    eventful.finish(driver)

    staged = [(event.trial, event.attempt) for event in events(eventful.server) if isinstance(event, TrialStaged)]
    assert staged.index((TrialId("0002"), 2)) < staged.index((TrialId("0012"), 1))


def test_an_added_config_is_tried_next_and_not_counted_as_the_searchers(world: World) -> None:
    driver = world.driver()
    driver.requests.add(Addition({"lr": 42.0}))

    world.finish(driver)

    assert [t.config for t in driver.experiment.trials.values()] == [{"lr": 42.0}, *suggestions(world, 12)]
    staged = [event for event in events(world.server) if isinstance(event, TrialStaged)]
    assert [event.suggested for event in staged] == [False] + [True] * 12


def test_without_a_slot_nothing_is_staged_and_the_reason_is_told(world: World, clock: Clock) -> None:
    world.fleet.slots = 0
    told = Told()
    driver = world.driver(told=told)

    driver.step(0)
    assert (driver.experiment.trials, driver.waiting_for, told.steps) == (
        {},
        "there is no worker",
        ["there is no worker"],
    )

    world.fleet.slots = 1
    clock.now += REFRESH_S
    driver.step(0)
    assert driver.waiting_for == ""
    assert len(driver.experiment.trials) == 2


def test_the_fleet_is_looked_at_when_it_says_that_it_changed(world: World) -> None:
    driver = world.driver()
    before = world.fleet.refreshed

    driver._journal.fleet_changed = True
    driver.step(0)
    driver.step(0)

    assert world.fleet.refreshed == before + 1


def test_a_message_that_was_lost_is_published_again_and_one_that_waits_is_not(world: World, clock: Clock) -> None:
    driver = world.driver()
    driver.step(0)
    lost = world.fleet.queue.pop(2)
    world.fleet.published.clear()

    clock.now += UNCLAIMED_S - 1
    driver.step(0)
    assert world.fleet.published == []

    clock.now += UNCLAIMED_S
    driver.step(0)
    assert world.fleet.published == [lost]


def test_what_a_full_server_has_not_taken_is_published_when_there_is_room_and_nobody_is_blamed(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = [Room(used=2, most=1)]
    driver = world.driver()
    monkeypatch.setattr(driver._journal, "room", lambda: room[0])
    driver.step(0)
    refused = world.fleet.queue.pop(2)
    world.fleet.published.clear()
    for _ in range(3):
        clock.now += UNCLAIMED_S
        driver.step(0)
    assert world.fleet.published == []

    room[0] = Room(used=0, most=0)
    for _ in range(2):
        clock.now += UNCLAIMED_S
        driver.step(0)

    assert world.fleet.published == [refused]
    assert "nobody has taken it" not in caplog.text
    world.fleet.queue.remove(refused)
    clock.now += UNCLAIMED_S
    driver.step(0)
    assert "nobody has taken it" in caplog.text


def test_an_attempt_that_a_worker_holds_is_not_published_again_until_that_runs_out(world: World, clock: Clock) -> None:
    driver = world.driver()
    driver.step(0)
    taken = world.fleet.queue.pop(2)
    world.fleet.published.clear()
    for _ in range(3):
        # As with each heartbeat of a worker whose slot imports for a while.
        world.fleet.journal.hold([Unclaimed(*taken, "w", 1.0)], 2 * UNCLAIMED_S)
        clock.now += UNCLAIMED_S
        driver.step(0)
    assert world.fleet.published == []

    clock.now += 2 * UNCLAIMED_S
    driver.step(0)

    assert world.fleet.published == [taken]


def test_while_workers_import_it_is_told_that_they_do_and_for_how_long(world: World, clock: Clock) -> None:
    driver = world.driver()
    driver.step(0)
    one, two = world.fleet.queue[:2]
    world.fleet.journal.hold([Unclaimed(*one, "w1", 12.0)], 100)
    assert driver.waiting_for == "importing your code (12 s)"

    world.fleet.journal.hold([Unclaimed(*two, "w2", 20.0)], 100)
    clock.now += 1
    assert driver.waiting_for == "importing your code on 2 workers (21 s)"

    world.fleet.act()
    driver.step(0)
    assert driver.waiting_for == ""


def test_what_a_worker_holds_without_importing_is_no_reason_to_tell(world: World, clock: Clock) -> None:
    driver = world.driver()
    driver.step(0)
    world.fleet.journal.hold([Unclaimed(*world.fleet.queue[0], "w1")], 100)

    assert driver.waiting_for == ""


def test_a_lost_worker_is_noticed_and_its_trial_goes_on_elsewhere(world: World, clock: Clock) -> None:
    driver = world.driver()
    driver.step(0)
    world.fleet.act()
    driver.step(0)
    (run,) = world.fleet.running.values()
    world.fleet.journal.renew([run.claim], 0.0)

    clock.now += LEASE_GRACE_S
    driver.step(0)

    trial = driver.experiment.trials[TrialId("0001")]
    assert [attempt.end for attempt in trial.attempts] == [AttemptEnd.LOST, None]
    assert trial.attempts[0].error == "worker w has not renewed its lease: it is gone, frozen or cut off"
    assert (trial.status, world.fleet.published[-1]) == (TrialStatus.STAGED, (TrialId("0001"), 2))


def test_after_an_outage_of_redis_workers_have_their_turn_before_their_leases_are_reaped(
    world: World, clock: Clock
) -> None:
    driver = world.driver()
    driver.step(0)
    world.fleet.act()
    clock.now += LEASE_GRACE_S
    driver.step(0)
    (run,) = world.fleet.running.values()
    trial = driver.experiment.trials[TrialId("0001")]

    world.fleet.journal.renew([run.claim], 0.0)
    driver._journal.outages += 1
    clock.now += LOOK_AT_LEASES_S
    driver.step(0)
    assert [attempt.end for attempt in trial.attempts] == [None]

    world.fleet.journal.renew([run.claim], 100.0)
    clock.now += LEASE_GRACE_S + LOOK_AT_LEASES_S
    driver.step(0)
    assert [attempt.end for attempt in trial.attempts] == [None]


def test_no_lease_is_reaped_that_ran_out_while_redis_was_full_and_took_no_renewal(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = world.driver()
    driver.step(0)
    world.fleet.act()
    for _ in range(2):
        clock.now += STALL_S - LOOK_AT_LEASES_S
        driver.step(0)
    (run,) = world.fleet.running.values()
    journal = driver._journal
    lock = journal.lock

    def lock_when_there_is_room(*arguments: Any, **options: Any) -> None:
        journal.outages += 1
        lock(*arguments, **options)

    monkeypatch.setattr(journal, "lock", lock_when_there_is_room)
    world.fleet.journal.renew([run.claim], 0.0)
    clock.now += LOOK_AT_LEASES_S
    driver.step(0)

    assert [attempt.end for attempt in driver.experiment.trials[TrialId("0001")].attempts] == [None]


# The end.


def test_handing_back_ends_everything_and_starts_nothing_and_a_later_driver_goes_on(world: World) -> None:
    driver = world.driver()
    driver.step(0)
    for _ in range(8):
        world.fleet.act()
        driver.step(0)
    staged = len(driver.experiment.trials)

    driver.requeue_all("Ctrl-C")
    while not driver.is_finished:
        world.fleet.act()
        driver.step(0)
    driver.end("interrupted", "Ctrl-C")
    driver.close()

    assert (driver.experiment.live, len(driver.experiment.trials)) == (0, staged)
    assert driver.experiment.outcome == "interrupted"
    heir = world.driver()
    assert heir.experiment.outcome == "interrupted"
    world.finish(heir)
    assert heir.experiment.outcome == "finished"
    assert len(heir.experiment.trials) == 12
    assert {trial.status for trial in heir.experiment.trials.values()} == {
        TrialStatus.COMPLETED,
        TrialStatus.EARLY_STOPPED,
    }


def test_a_finished_experiment_is_only_read(world: World) -> None:
    world.finish(world.driver())
    before = entries(world.server)

    driver = world.driver()
    assert driver.is_finished
    world.finish(driver)

    assert entries(world.server) == before


def test_a_finished_experiment_goes_on_when_more_trials_are_asked_for(world: World) -> None:
    world.finish(world.driver())
    world.max_trials = 15

    world.finish(driver := world.driver())

    assert [t.config for t in driver.experiment.trials.values()] == suggestions(world, 15)
    outcomes = [event.outcome for event in events(world.server) if isinstance(event, ExperimentEnded)]
    assert outcomes == ["finished", "finished"]


def test_a_trainable_that_can_not_be_started_ends_the_run_at_the_first_trial(world: World) -> None:
    driver = fail_to_start(world)

    assert isinstance(driver.failure, TrainableNotFound)
    assert "trial 0001 could not be started: no module named train" in str(driver.failure)
    staged = len(driver.experiment.trials)
    driver.step(0)
    assert len(driver.experiment.trials) == staged


def fail_to_start(world: World) -> Driver:
    driver = world.driver()
    driver.step(0)
    world.fleet.act()
    driver.step(0)
    run = world.fleet.running.pop(TrialId("0001"))
    ended = AttemptEnded(
        trial=TrialId("0001"),
        attempt=1,
        end=AttemptEnd.HANDED_BACK,
        at=3.0,
        error_type="ImportError",
        error="no module named train",
    )
    world.fleet.journal.end(run.claim, ended.encode())
    driver.step(0)
    return driver


@pytest.mark.parametrize("scheduler", [FIFO, WatchedASHA])
def test_a_trial_that_never_reports_the_metric_ends_the_run_when_it_is_the_first_to_end(
    clock: Clock, scheduler: Fn[[], Any]
) -> None:
    """Also one that reaches the scheduler's last rung so: a misspelt metric must not cost the whole experiment."""
    driver = miss_the_metric(World(clock, make_scheduler=scheduler))

    assert isinstance(driver.failure, MetricMissing)
    assert "none of its" in str(driver.failure)


def miss_the_metric(world: World) -> Driver:
    curve, world.fleet.curve = world.fleet.curve, lambda *_: None
    driver = world.driver()
    driver.step(0)
    while driver.failure is None and not driver.is_finished:
        world.fleet.act()
        driver.step(0)
    world.fleet.curve = curve
    return driver


@pytest.mark.parametrize("problem", [fail_to_start, miss_the_metric])
def test_an_error_that_ended_an_earlier_driver_does_not_end_the_next_one(
    clock: Clock, problem: Fn[[World], Driver]
) -> None:
    """The person has seen it, repaired the code, and run the same script again."""
    world = World(clock, make_scheduler=FIFO)
    driver = problem(world)
    driver.requeue_all("the driver failed")
    while not driver.is_finished:
        world.fleet.act()
        driver.step(0)
    driver.end("failed", str(driver.failure))
    driver.close()

    heir = world.driver()

    assert heir.failure is None
    world.finish(heir)
    assert TrialStatus.COMPLETED in {trial.status for trial in heir.experiment.trials.values()}


def test_a_suggestion_that_differs_from_the_journals_is_a_warning_and_the_journal_counts(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    driver = world.driver()
    driver.step(0)
    driver.close()
    configs = [trial.config for trial in driver.experiment.trials.values()]
    world.make_searcher = Climber

    heir = world.driver()

    assert [trial.config for trial in heir.experiment.trials.values()] == configs
    assert len(caplog.records) == 6
    assert "the searcher now suggests" in caplog.text


def test_a_scheduler_that_lets_all_go_on_decides_nothing(clock: Clock) -> None:
    world = World(clock, make_scheduler=FIFO)
    driver = world.driver()

    world.finish(driver)

    assert not any(isinstance(event, DecisionTaken) for event in events(world.server))
    assert FIFO().on_report(driver.experiment.trials[TrialId("0001")], accepted(entries(world.server))[0]) == CONTINUE


def test_a_spawned_trial_whose_trainable_can_not_be_imported_ends_the_experiment(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.step().start()

    bench.fail(error="TrainableNotFound: train.py runs an experiment when it is imported")

    assert isinstance(bench.driver.failure, TrainableNotFound)
    assert "trial 0001 could not be started: TrainableNotFound: train.py runs" in str(bench.driver.failure)


def test_a_step_in_real_time_waits_once_also_when_what_came_leaves_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, slots=1).step(2).start()
    # From here on there is room for nothing, and a report leaves the round steady.
    bench.report("0001", 0.5)
    journal, waits = bench.driver._journal, []
    read = journal.read
    monkeypatch.setattr(journal, "read", lambda *args, **how: waits.append(how) or read(*args, **how))

    bench.report("0001", 0.4)

    assert bench.driver._pace.is_steady
    assert len(waits) == 1
