"""A driver on simulated workers, for tests: run to its end, or killed at any point and followed by another."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import mqtune
from mqtune.backends import Simulated, SimulatedBackend, SimulatedJournal
from mqtune.core.events import Event, decode_event
from mqtune.core.objective import Metric
from mqtune.core.owner import NOBODY
from mqtune.core.resources import Resources
from mqtune.core.trial import Config
from mqtune.driver import Driver, DriverContext, Failures, KnownTrainable, Process, RunOptions, Settings
from mqtune.journal import JOURNAL_FILE, Entry, JournalFile
from mqtune.schedulers.base import FIFO, Scheduler
from mqtune.search.base import Searcher
from mqtune.search.domains import uniform
from mqtune.search.random import RandomSearcher
from mqtune.search.space import Space
from mqtune.trainable import TrainableSpec

T = TypeVar("T")

NAME: Final = "simulation"
SPACE: Final = Space({"lr": uniform(0, 1)})
#: Stands for the trainable: reports of simulated workers are made by other functions.
NOT_CALLED: Final = KnownTrainable(TrainableSpec("trainable", "module"), Path())
#: Virtual seconds; no experiment of a test takes as long.
FOR_EVER_S: Final = 1e7
#: Steps after which an experiment that is not finished hangs.
MOST_STEPS: Final = 200_000


class Killed(BaseException):
    """The driver's process is gone."""


class Copy(JournalFile):
    """A local copy in memory. Its folder, below the test's home, has the other files of the experiment."""

    def __init__(self) -> None:
        home = Path(os.environ["MQTUNE_HOME"])
        home.mkdir(parents=True, exist_ok=True)
        super().__init__(Path(tempfile.mkdtemp(dir=home)) / JOURNAL_FILE)
        self.entries: list[Entry] = []

    def begin(self, entries: Iterable[Entry]) -> None:
        self.entries = list(entries)

    def append(self, entries: Iterable[Entry]) -> None:
        self.entries += entries

    def read(self) -> Iterator[Entry]:
        yield from list(self.entries)


class Mortal:
    """A driver that is killed at the n-th call of its journal that waits or writes, just after it."""

    def __init__(self, journal: SimulatedJournal, kill_at: int) -> None:
        self.calls = 0
        self._kill_at = kill_at
        for name in ("record", "stage", "intend", "close_trial", "order", "drop_checkpoints", "lose"):
            setattr(journal, name, self._counted(getattr(journal, name)))
        journal.read = self._counted(journal.read, waits=True)  # type: ignore[method-assign]

    def _counted(self, call: Callable[..., T], *, waits: bool = False) -> Callable[..., T]:
        def counted(*args: Any, **options: Any) -> T:
            result = call(*args, **options)
            if not waits or options.get("block_s"):
                self.calls += 1
                if self.calls == self._kill_at:
                    raise Killed
            return result

        return counted


@dataclass
class Simulation:
    """One experiment on simulated workers; each ``run`` is a driver's."""

    simulated: Simulated
    scheduler: Callable[[], Scheduler] = FIFO
    searcher: Callable[[], Searcher] = lambda: RandomSearcher(SPACE, seed=0)
    metric: Metric = "loss"
    mode: Any = "min"
    max_failures: int = 0
    lockstep: bool = False
    resources: Resources | None = None
    max_trials: int | None = 4
    #: Whether nothing is searched: others add trials.
    is_open: bool = False
    stop: Callable[[], object] = lambda: None
    run_options: RunOptions = field(default_factory=RunOptions)
    failures: Failures = field(default_factory=Failures)
    drivers: int = 0
    copy: Copy = field(default_factory=Copy)

    def driver(self, *, kill_at: int = 0) -> Driver:
        """Return a driver that has begun, with everything else fresh."""
        self.drivers += 1
        self.backend: SimulatedBackend = self.simulated.open(NAME, self.resources)
        self.journal = self.backend.journal
        self.mortal = Mortal(self.journal, kill_at)
        holder = f"driver {self.drivers}"
        self.journal.lock(holder, holder, FOR_EVER_S, dead=f"driver {self.drivers - 1}")
        self.used_scheduler = self.scheduler()
        kept = self.journal.definition()
        place = DriverContext(
            journal=self.journal,
            backend=self.backend,
            clock=self.backend.clock,
            holder=holder,
            copy=self.copy,
            driver="simulated",
            owner=NOBODY,
            store=None,
            definition={"seed": 0, **({"sync": "lockstep"} if self.lockstep else {})},
            changed=[],
            is_new=kept is None,
            is_private=False,
            may_grow=True,
            start_worker=lambda: None,
            interrupts=None,
        )
        driver = Driver(self._settings(), place)
        self.experiment = driver.experiment
        driver.begin()
        return driver

    def _settings(self) -> Settings:
        searched: dict[str, Any] = {"searcher": self.searcher(), "max_trials": self.max_trials}
        return Settings.of(
            trainable=NOT_CALLED,
            space=None if self.is_open else SPACE,
            metric=self.metric,
            mode=self.mode,
            scheduler=self.used_scheduler,
            stop=self.stop(),
            resources=self.resources,
            backend=SimpleNamespace(local_slots=None),
            name=NAME,
            failures=replace(self.failures, max_failures=self.max_failures),
            process=Process(sync="lockstep" if self.lockstep else "stream"),
            run=replace(self.run_options, progress=False),
            **({} if self.is_open else searched),
        )

    def run(self, *, kill_at: int = 0) -> Simulation:
        """Drive to the end; raises Killed when the driver is."""
        driver = self.driver(kill_at=kill_at)
        steps = 0
        while not driver.is_finished and driver.failure is None:
            driver.step(FOR_EVER_S)
            steps += 1
            assert steps < MOST_STEPS, f"it never ends: {driver.waiting_for or self.experiment.counts}"
        if driver.failure is not None:
            raise driver.failure
        driver.end("finished", "")
        return self

    @property
    def seconds(self) -> float:
        """How much virtual time has passed."""
        return self.backend.clock.monotonic()

    def events(self) -> list[Event]:
        """Return the events that the last driver has read."""
        return [event for entry in self.copy.entries if (event := decode_event(entry.data)) is not None]


def simulate(reports: Any, *, scheduler: Callable[[], Scheduler] = FIFO, trials: int = 4, **options: Any) -> Simulation:
    """Run an experiment to its end on fresh workers, whose conditions are the *options*."""
    of_run = {name: options.pop(name) for name in list(options) if name in Simulation.__dataclass_fields__}
    simulation = Simulation(Simulated(reports, **options), scheduler=scheduler, max_trials=trials, **of_run)
    return simulation.run()


def curve(length: int, *, seconds: float = 1.0) -> Callable[[Config], Iterable[tuple[float, dict[str, Any]]]]:
    """Return a function whose loss falls from the config's lr as 1/step, with a report every *seconds*."""

    def reports(config: Config) -> Iterable[tuple[float, dict[str, Any]]]:
        for step in range(1, length + 1):
            yield seconds, {"loss": config["lr"] / step, "training_iteration": step}

    return reports


def tuner_on(backend: Any, trainable: Any, space: dict[str, Any], **options: Any) -> mqtune.Tuner:
    """A tuner whose metric is the loss, and that shows no progress."""
    run = replace(options.pop("run", mqtune.RunOptions()), progress=False)
    return mqtune.Tuner(trainable, space, backend=backend, run=run, **{"metric": "loss", "mode": "min", **options})
