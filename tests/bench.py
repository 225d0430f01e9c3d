"""A driver, the hand that a user has on it, and a worker that does what a test has it do, one thing at a time."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import mqtune
from mqtune.checkpoints import CheckpointStore
from mqtune.core.callback import Callback
from mqtune.core.codec import encode_value, pack_metrics, segment_bytes
from mqtune.core.errors import LogUnavailable
from mqtune.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event, decode_event
from mqtune.core.experiment import Experiment
from mqtune.core.owner import NOBODY
from mqtune.core.resources import Resources
from mqtune.core.tasks import task_in
from mqtune.core.trial import (
    CONTINUE,
    Attempt,
    AttemptEnd,
    CheckpointId,
    Config,
    Decision,
    Report,
    Trial,
    TrialId,
    checkpoint_id,
)
from mqtune.driver import (
    Checkpoints,
    DefinitionWriter,
    Deletes,
    Driver,
    DriverContext,
    Failures,
    Process,
    Retention,
    RunOptions,
    Settings,
)
from mqtune.driver.ports import MakeServices
from mqtune.journal import (
    CHUNK_BYTES,
    JOURNAL_FILE,
    Claim,
    Entry,
    Grant,
    Journal,
    JournalFile,
    LogChunk,
    LogStream,
    MemoryJournal,
    MemoryServer,
    Segment,
)
from mqtune.schedulers.base import START, Choice, Scheduler
from mqtune.search.base import Searcher
from mqtune.search.domains import uniform
from mqtune.search.random import RandomSearcher
from mqtune.search.space import Space
from mqtune.services.driver import driver_services, project_maker

NAME: Final = "x"
#: Behind it are all entries.
START_ENTRY: Final = "0-0"
SPACE: Final = Space({"lr": uniform(0, 1), "depth": 3})
#: Longer than any test, by the test's clock.
LEASE_S: Final = 1e9

_ENDS: Final = {
    "stop": AttemptEnd.STOPPED,
    "abandon": AttemptEnd.STOPPED,
    "pause": AttemptEnd.PAUSED,
    "complete": AttemptEnd.STOPPED,
    "hand_back": AttemptEnd.HANDED_BACK,
    "give_way": AttemptEnd.HANDED_BACK,
}


def trainable(config: Config) -> None:
    """It is named, and never called."""


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


class Copy(JournalFile):
    """A copy of the journal that is closed between two writes: drivers here are left without a word."""

    def begin(self, entries: Iterable[Entry]) -> None:
        super().begin(entries)
        self.close()

    def go_on(self) -> Iterator[Entry]:
        yield from super().go_on()
        self.close()

    def append(self, entries: Iterable[Entry]) -> None:
        with self.path.open("ab") as file:
            file.writelines(encode_value([entry.id, entry.data]) for entry in entries)


class Obedient(Scheduler):
    """Decides what a test has put down for a report, and chooses what it has put down for a free slot."""

    takes_several = True

    def __init__(self) -> None:
        self.decisions: dict[tuple[str, int], Decision] = {}
        self.choices: list[Choice] = []
        self.heard: list[tuple[str, str]] = []

    def on_queue(self, trial: Trial) -> None:
        self._came_true(trial)
        self.heard.append(("stage", trial.id))

    def on_report(self, trial: Trial, report: Report) -> Decision:
        return self.decisions.get((trial.id, report.sequence), CONTINUE)

    def choose(self, *, can_start: bool) -> Choice:
        return self.choices[0] if self.choices else START

    def on_trial_pause(self, trial: Trial) -> None:
        self.heard.append(("pause", trial.id))

    def on_trial_end(self, trial: Trial) -> None:
        self._came_true(trial)
        self.heard.append(("end", trial.id))

    def _came_true(self, trial: Trial) -> None:
        if self.choices and trial.history[-1].by == "scheduler":
            self.choices.pop(0)

    def describe(self) -> dict[str, Any]:
        return {}


class Slots:
    """A backend with a number of slots. The test is its one worker."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.published: list[tuple[str, int]] = []
        self.live: set[tuple[TrialId, int]] = set()
        #: The output of its trials, or None where it can't be asked, and the output that was asked for.
        self.printed: bytes | None = None
        self.asked: list[tuple[str, str, int, str, int]] = []

    def refresh(self) -> None: ...

    def why_no_slot(self) -> str:
        return "there is no worker"

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        self.published.append((trial, attempt))
        self.live.add((trial, attempt))

    def started(self, trial: TrialId, attempt: int, queue: str) -> None: ...

    def lost(self, trial: TrialId, attempt: Attempt) -> None: ...

    def ended(self, trial: TrialId, attempt: int) -> None:
        self.live.discard((trial, attempt))

    def offered(self, resources: Resources) -> int:
        return self.slots if resources.gpus == 0 else 0

    def free(self, resources: Resources) -> int:
        return max(0, self.offered(resources) - len(self.live))

    def resource_string(self) -> str:
        return f"1 worker: {self.slots} slots"

    def has_gpus(self) -> bool:
        return False

    def queued(self) -> None: ...

    def read_log(self, worker: str, trial: TrialId, attempt: int, stream: LogStream, offset: int) -> LogChunk:
        self.asked.append((worker, trial, attempt, stream, offset))
        if self.printed is None:
            raise LogUnavailable(f"worker {worker} is not connected")
        begin = max(0, len(self.printed) + offset) if offset < 0 else offset
        return LogChunk(self.printed[begin : begin + CHUNK_BYTES], begin, len(self.printed), is_open=True)

    def close(self) -> None: ...


def settings_of(**options: Any) -> Settings:
    """Settings in which each option is put into the group that has it."""
    for name, group in {"failures": Failures, "process": Process, "run": RunOptions}.items():
        inside = {each.name: options.pop(each.name) for each in fields(group) if each.name in options}
        options.setdefault(name, group(**inside))
    return Settings.of(**options)


def writer_of(trainable: Any = trainable, space: Any = SPACE, **options: Any) -> DefinitionWriter:
    """Return the writer of the definition of an experiment, as a tuner with these arguments has it."""
    usual: dict[str, Any] = {
        "metric": "loss",
        "mode": "min",
        "name": NAME,
        "backend": SimpleNamespace(local_slots=None),
    }
    settings = settings_of(trainable=trainable, space=space, **{**usual, **options}, make_project=project_maker())
    return DefinitionWriter(settings)


class Hand(mqtune.Tuner):
    """The calls of a tuner for single trials, over a driver that a test steps itself."""

    def __init__(self, driver: Driver) -> None:
        self._settings, self._driver, self._is_closed = driver.settings, driver, False
        self._collected, self._returned_failures = None, set()


class Heir(NamedTuple):
    """The state with which another driver would continue."""

    experiment: Experiment
    scheduler: Any


class KillableDriver(Driver):
    """A driver whose process a test ends."""

    def end_threads(self) -> None:
        """Wait for the thread of callbacks, which would write files behind the successor's back."""
        # Closing the driver would also give up its lock.
        self._callbacks.close()


class Bench:
    """An experiment with a driver that has begun.

    Args:
        folder: for the copy of the journal.
        slots: the number of attempts that run at the same time.
        scheduler: makes the scheduler.
        searcher: makes the searcher.
        store: holds the checkpoints that are folders.
        trims: whether it gets the journal's oldest entries, too.
        retention: which are kept.
        delete_checkpoints: which trials lose theirs at their end.
        lockstep: whether trials wait for decisions.
        callbacks: the callbacks of the experiment.
        tuned: the trainable.
        journal: opens the journal on a server, as a process of its own would; in memory by default.
        drivers_journal: opens it for each driver, if that is to be another kind.
        services: makes the driver's services.
        options: of the tuner, those in its groups by their own names.
    """

    def __init__(
        self,
        folder: Path,
        *,
        slots: int = 2,
        scheduler: Callable[[], Scheduler] = Obedient,
        searcher: Callable[[], Searcher] = lambda: RandomSearcher(SPACE, 1),
        store: CheckpointStore | None = None,
        trims: bool = False,
        retention: Retention | None = None,
        delete_checkpoints: Deletes = False,
        lockstep: bool = False,
        callbacks: list[Callback] | None = None,
        tuned: Any = trainable,
        journal: Callable[[MemoryServer], Journal] = lambda server: MemoryJournal(server, NAME),
        drivers_journal: Callable[[MemoryServer], Journal] | None = None,
        services: MakeServices = driver_services,
        **options: Any,
    ) -> None:
        self.folder = folder
        self.tuned = tuned
        self.open_journal = journal
        self.open_drivers_journal = drivers_journal or journal
        self.services = services
        self.clock = Clock()
        self.server = MemoryServer(self.clock.monotonic)
        self.slots = slots
        self.make_scheduler = scheduler
        self.make_searcher = searcher
        self.store = store
        self.trims = trims
        self.retention = retention or Retention()
        self.delete_checkpoints = delete_checkpoints
        self.lockstep = lockstep
        self.callbacks = callbacks or []
        self.options = {"max_trials": 2, **options}
        self.claims: dict[str, Claim] = {}
        self.sequences: dict[str, int] = {}
        self.saved: dict[str, int] = {}
        self.backend = Slots(slots)
        #: Whether the driver reads nothing, as if its process were frozen.
        self.is_away = False
        self.begin()

    def begin(self) -> None:
        """Have a driver begin, or another one go on."""
        if hasattr(self, "driver"):
            self.close()
        self._opened = self._driver(self.server, self.backend, self.folder, self.callbacks)
        self.settings, self.scheduler, self.driver = self._opened
        self.experiment = self.driver.experiment
        self.hand = Hand(self.driver)

    def close(self) -> None:
        """Wait until nothing writes into the folder."""
        self.driver.end_threads()

    def _driver(
        self, server: MemoryServer, backend: Slots, folder: Path, callbacks: list[Callback]
    ) -> tuple[Settings, Any, KillableDriver]:
        scheduler = self.make_scheduler()
        options = {
            "checkpoints": Checkpoints(
                keep_last=self.retention.keep_last,
                keep_best=self.retention.keep_best,
                score=self.retention.score,
                mode=self.retention.mode,
                delete=self.delete_checkpoints,
            ),
            "sync": "lockstep" if self.lockstep else "stream",
            "callbacks": callbacks,
            "progress": False,
            **copy.deepcopy(self.options),
        }
        searcher = self.make_searcher()
        if options.get("space", SPACE) is not None:
            options["searcher"] = searcher
        settings = settings_of(
            trainable=self.tuned,
            name=NAME,
            seed=1,
            scheduler=scheduler,
            backend=SimpleNamespace(local_slots=None),
            **{"space": SPACE, "metric": "loss", "mode": "min", **options},
        )
        writer = DefinitionWriter(settings)
        writer.store = "" if self.store is None else self.store.url
        is_main = server is self.server
        journal = self.open_drivers_journal(server) if is_main else self.open_journal(server)
        journal.chapter_store = self.store if self.trims else None
        journal.lock("driver", "", LEASE_S)
        kept = journal.definition()
        place = DriverContext(
            journal=journal,
            backend=backend,  # type: ignore[arg-type] # it opens nothing
            clock=self.clock,
            holder="driver",
            copy=Copy(folder / JOURNAL_FILE),
            driver="driver",
            owner=NOBODY,
            store=self.store,
            definition=writer.definition(kept),
            changed=[],
            is_new=kept is None,
            is_private=False,
            may_grow=True,
            start_worker=lambda: None,
            interrupts=None,
        )
        driver = KillableDriver(settings, place, self.services)
        if is_main:
            self.searcher: Any = searcher
            #: The driver's hand on the journal, and on the checkpoints.
            self.journal, self.checkpoints = journal, driver.checkpoints
        else:
            # It only looks, and gives nothing up.
            driver.checkpoints.look_through = lambda *_: iter(())  # type: ignore[method-assign]
        try:
            driver.begin()
        except BaseException:
            driver.end_threads()
            raise
        return settings, scheduler, driver

    def step(self, times: int = 1) -> Bench:
        """Have the driver process all news, and act on it."""
        for _ in range(0 if self.is_away else times):
            self.driver.step(0)
        return self

    def trial(self, trial: str = "0001") -> Trial:
        return self.experiment.trials[TrialId(trial)]

    def entries(self) -> list[Entry]:
        """Return all that the journal holds."""
        return self.worker.read(START_ENTRY, count=10**6)

    def events(self) -> list[Event]:
        found = [decode_event(entry.data) for entry in self.entries()]
        return [event for event in found if event is not None]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events() if isinstance(event, kind)]

    def replayed(self) -> Experiment:
        """Return what a fresh driver makes of the journal as it is."""
        return self.heir().experiment

    def heir(self, server: MemoryServer | None = None) -> Heir:
        """Return what a fresh driver, and its scheduler, make of the journal as it is; *server* holds a copy of it."""
        if server is None:
            server = MemoryServer(self.clock.monotonic)
            server.experiments = copy.deepcopy(self.server.experiments)
        for state in server.experiments[NAME].trials.values():
            state.lease_until = math.inf
        folder = self.folder / "replayed"
        folder.mkdir(exist_ok=True)
        _, scheduler, driver = self._driver(server, Slots(0), folder, [])
        driver.end_threads()
        return Heir(driver.experiment, scheduler)

    # The worker.

    @property
    def worker(self) -> Journal:
        return self.open_journal(self.server)

    def start(self, trial: str = "0001", *, at: float | None = None, is_ready: bool = True) -> Bench:
        """Claim all seats of the trial's attempt, and step. The worker may not be ready to run its code."""
        staged = [each for each in self.worker.unclaimed() if task_in(each.trial)[0] == trial]
        for place in sorted(staged, key=lambda each: task_in(each.trial)):
            _, seat = task_in(place.trial)
            claim = Claim(place.trial, place.attempt, f"{place.trial}-{place.attempt}")
            started = AttemptStarted(
                trial=TrialId(trial),
                attempt=place.attempt,
                worker=f"w{seat or ''}@a",
                host="a",
                devices=["0"],
                at=self.clock.now if at is None else at,
                queue="mqtune.cpu",
                environment={"python": "3.11.9", "packages": {"numpy": "2.0"}, "code": "abc"} if is_ready else {},
                task=seat,
            )
            grant = self.worker.claim(claim, f"w{seat or ''}", LEASE_S, started.encode())
            self.claims[claim.trial], self.sequences[claim.trial] = claim, 0
        assert isinstance(grant, Grant), grant
        self.grant = grant
        return self.step()

    def report(
        self, trial: str = "0001", *losses: float, checkpoint: str = "", at: float | None = None, **others: float
    ) -> list[str]:
        """Report these losses, the last one with a checkpoint, and other metrics; return what the worker is answered."""
        claim, first = self.claims[trial], self.sequences[trial] + 1
        time = self.clock.now if at is None else at
        packed = [pack_metrics(time, {"loss": loss, **others}) for loss in losses[:-1]]
        packed.append(pack_metrics(time, {"loss": losses[-1], **others}, checkpoint))
        self.sequences[trial] += len(losses)
        data = segment_bytes(claim.trial, claim.attempt, first, packed)
        answers = self.worker.report([Segment(claim, first, len(losses), time, data)])
        if not self.driver.is_finished:
            self.step()
        return answers

    def save(self, trial: str = "0001", *, in_memory: bool = True) -> CheckpointId:
        """Save a checkpoint without a report, and return its id."""
        claim = self.claims[trial]
        name = self.new_checkpoint(trial, in_memory=in_memory)
        if in_memory:
            self.worker.put_checkpoint(claim, name, b"state")
        event = CheckpointSaved(trial=claim.trial, attempt=claim.attempt, checkpoint=name, at=self.clock.now)
        self.worker.saved(claim, {name: event.encode()})
        self.step()
        return name

    def new_checkpoint(self, trial: str = "0001", *, in_memory: bool = True) -> CheckpointId:
        """Return the id of the attempt's next checkpoint."""
        claim = self.claims[trial]
        key = f"{trial}-{claim.attempt}"
        self.saved[key] = self.saved.get(key, 0) + 1
        return checkpoint_id(trial, claim.attempt, self.saved[key], in_memory=in_memory)

    def told(self, trial: str = "0001") -> str:
        """Return what the worker hears with its heartbeat."""
        return self.worker.renew([self.claims[trial]], LEASE_S)[0]

    def end(self, trial: str = "0001", end: AttemptEnd | None = None, *, pid: int = 7, **fields: Any) -> Bench:
        """End the attempt, as it was told or as *end* says, and step."""
        claim = self.claims[trial]
        told = self.told(trial).split(" ")[0]
        how = end or _ENDS.get(told, AttemptEnd.COMPLETED)
        ended = AttemptEnded(trial=claim.trial, attempt=claim.attempt, end=how, at=self.clock.now, pid=pid, **fields)
        assert self.worker.end(claim, ended.encode())
        return self.step() if not self.driver.is_finished else self

    def fail(self, trial: str = "0001", error: str = "ValueError: no luck") -> Bench:
        """End the attempt with an error of user code."""
        return self.end(trial, AttemptEnd.FAILED, error_type=error.partition(":")[0], error=error, exit_code=1)

    def lose(self, trial: str = "0001") -> Bench:
        """Have the attempt's worker vanish, and the driver notice."""
        self.worker.renew([self.claims[trial]], 0.0)
        for _ in range(20):
            # In larger steps the driver might have been without a processor, or the server frozen.
            self.clock.now += 1.0
            self.step()
        return self
