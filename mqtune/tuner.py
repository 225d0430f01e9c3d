"""The tuner: what a driver script builds and runs."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import random
import re
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

from mqtune.backends.celery import CeleryBackend
from mqtune.backends.local import EmbeddedServer, LocalWorker
from mqtune.callback import Callback
from mqtune.driver import KEEP_LOCK_S, LOCK_S, Driver
from mqtune.errors import BrokerUnavailable, ConfigurationError, MqtuneError, NameTaken, WorkerStartError
from mqtune.experiment import Experiment, Mode
from mqtune.home import mqtune_home
from mqtune.journal.base import Journal
from mqtune.journal.connection import Client, connect
from mqtune.journal.file import JOURNAL_FILE, JournalFile
from mqtune.journal.redis import RedisJournal
from mqtune.messages import decode_value, encode_value
from mqtune.resources import Resources
from mqtune.results import Results
from mqtune.schedulers import FIFO, Scheduler
from mqtune.searchers import PointsFirst, RandomSearcher, Searcher
from mqtune.space import Space
from mqtune.trainable.spec import Trainable, TrainableSpec
from mqtune.trial import Config, Trial
from mqtune.version import __version__

__all__ = ["Tuner"]

logger = logging.getLogger(__name__)

#: Names become keys, file names and parts of task ids.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: The longest that a step blocks when nothing happens; events and timers end it sooner.
_STEP_S: Final = 4.0
#: After Ctrl-C, how long trials have to end: the worker's stop ladder takes 15 s.
_INTERRUPT_S: Final = 20.0
#: How long the driver waits for a Redis that is away; its trials run on meanwhile, and after.
_PATIENCE_S: Final = 300.0
#: By how much a look at another driver's lock comes after the time at which it should have been kept.
_LOCK_MARGIN_S: Final = 0.5
#: What may differ when an experiment goes on: how far it goes, and which mqtune does it.
_MAY_CHANGE: Final = frozenset({"max_trials", "version"})


class Tuner:
    """Tunes a trainable's config over the workers of a broker, or over this machine's cores and GPUs.

    The experiment is kept in the broker and in a folder (``~/mqtune/<name>``, or below ``$MQTUNE_HOME``). A run that
    was interrupted, by Ctrl-C, a crash or a power cut, goes on where it was when the same script runs again with the
    same name. One driver at a time.

    Args:
        trainable: a function of the config, at the top level of a module or script, that calls ``mqtune.report``.
        space: the search space: a dict of domains such as ``mqtune.uniform(0, 1)``, constants, and dicts of them.
        metric: the key, in the reports, of what is optimised.
        mode: "min" or "max".
        searcher: what proposes configs; by default a random one over the space, grid entries included.
        scheduler: what stops trials early; by default none is.
        max_trials: number of trials; by default the size of the grid, or 1 without one.
        points_to_evaluate: configs to try first; what they leave out is sampled.
        resources: what each trial gets.
        broker: URL of the Redis that the workers use; by default ``$MQTUNE_REDIS_URL`` is not a fleet's but a local
            worker's, and without it a server is started for this experiment alone.
        name: the experiment's name; by default the trainable's with the time.
        seed: for everything that is random; drawn and kept with the experiment if left out.
        max_concurrent: the most trials at once; by default as many as there are slots.
        max_failures: how often a trial that fails is run again; -1: always.
        local_slots: without a broker, the number of trials at once on this machine; by default one for each core, or GPU.
        start_method: "fork" starts a trial in a millisecond from a process that has imported the trainable's module;
            "spawn" imports it anew for each trial, for libraries that can't be forked.
        callbacks: who is told what happens.
        progress: whether to show how it goes: a table in a terminal, else a line now and then.

    Raises:
        ConfigurationError: an argument makes no sense. Nothing was started.
    """

    def __init__(
        self,
        trainable: Trainable,
        space: Mapping[str, Any] | Space,
        *,
        metric: str,
        mode: Mode,
        searcher: Searcher | None = None,
        scheduler: Scheduler | None = None,
        max_trials: int | None = None,
        points_to_evaluate: Sequence[Config] = (),
        resources: Resources | None = None,
        broker: str | None = None,
        name: str | None = None,
        seed: int | None = None,
        max_concurrent: int | None = None,
        max_failures: int = 0,
        local_slots: int | None = None,
        start_method: str | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> None:
        self._spec, self._code_root = TrainableSpec.of(trainable)
        self._space = space if isinstance(space, Space) else Space(space)
        self._searcher = searcher
        self._scheduler = scheduler if scheduler is not None else FIFO()
        self._points = list(points_to_evaluate)
        self._resources = resources if resources is not None else Resources()
        self._broker = broker
        self._local_slots = _at_least("local_slots", local_slots, 1)
        self._max_concurrent = _at_least("max_concurrent", max_concurrent, 1)
        self._seed = _at_least("seed", seed, 0)
        self._start_method = start_method or ("spawn" if sys.platform == "darwin" else "fork")
        self._callbacks = list(callbacks)
        self._progress = progress
        self.name = name if name is not None else _new_name(self._spec)
        self.max_trials = _at_least("max_trials", max_trials, 1)
        self._check(searcher, scheduler, max_failures)
        if self.max_trials is None and searcher is None:
            self.max_trials = max(self._space.grid_size, len(self._points), 1)
        self._scheduler.bind(metric, mode)
        self._experiment = Experiment(self.name, metric=metric, mode=mode, max_failures=max_failures)
        self.folder = mqtune_home() / self.name
        self._driver: Driver | None = None
        self._server: EmbeddedServer | None = None
        self._worker: LocalWorker | None = None
        self._backend: CeleryBackend | None = None
        self._client: Client | None = None
        self._interrupts = 0
        self._reading = False

    def _check(self, searcher: object, scheduler: object, max_failures: object) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"name={self.name!r} can't name an experiment; use up to 100 letters, digits, dots, dashes and underscores"
            )
        if scheduler is not None and not isinstance(scheduler, Scheduler):
            raise ConfigurationError(f"scheduler={scheduler!r} is not a scheduler; give mqtune.ASHA(…) or leave it out")
        if searcher is not None and not isinstance(searcher, Searcher):
            raise ConfigurationError(f"searcher={searcher!r} is not a searcher; leave it out for random search")
        if not isinstance(self._resources, Resources):
            raise ConfigurationError(f"resources={self._resources!r}: give mqtune.Resources(gpus=…, cpus=…)")
        if isinstance(max_failures, bool) or not isinstance(max_failures, int) or max_failures < -1:
            raise ConfigurationError(f"max_failures={max_failures!r} makes no sense; give 0, a number, or -1 for any number")
        if self._start_method not in ("fork", "spawn"):
            raise ConfigurationError(f"start_method={self._start_method!r} is neither 'fork' nor 'spawn'")
        if searcher is not None and self._points:
            raise ConfigurationError("points_to_evaluate goes with the default searcher; yours is wrapped with mqtune.PointsFirst")
        if self._local_slots is not None and self._broker is not None:
            raise ConfigurationError("local_slots is for a run without a broker; with one, each worker says how many slots it has")
        for index, point in enumerate(self._points):
            try:
                self._space.check(point)
            except ConfigurationError as error:
                raise ConfigurationError(f"points_to_evaluate[{index}]: {error}") from None

    # Running.

    def run(self) -> Results:
        """Run to the end, or until Ctrl-C, and return the results; an experiment that is complete is only read.

        The first Ctrl-C (or SIGTERM) hands running trials back, saves everything and says how to go on; the second ends at
        once. Either way nothing that was reported is lost.

        Raises:
            BrokerUnavailable: there is no Redis, it refuses the password, or is too old.
            NameTaken: a living driver, or an experiment with another definition, has the name.
            TrainableNotFound: the first trial could not be started on its worker.
            MetricMissing: the first trial that ended had never reported the metric.
            KeyboardInterrupt: Ctrl-C was pressed twice.
        """
        with self._interruptible():
            try:
                self._open()
                while not self.is_finished and not self._interrupts:
                    self.step()
                return self._finish()
            except BaseException:
                self._abort()
                raise
            finally:
                self.close()

    def step(self, block_s: float = _STEP_S) -> None:
        """Start what there is room for, wait up to *block_s* seconds for something to happen, and act on it.

        Raises:
            as ``run``.
        """
        driver = self._open()
        try:
            self._reading = True
            driver.step(block_s)
        except _Interrupt:
            pass
        finally:
            self._reading = False
        if driver.failure is not None:
            raise driver.failure
        problem = self._worker.problem() if self._worker is not None else None
        if problem is not None:
            driver.forfeit_leases()
            raise WorkerStartError(problem)

    @property
    def is_finished(self) -> bool:
        """Whether every trial has ended and there will be no other."""
        return self._open().is_finished

    def add_trial(self, config: Config) -> None:
        """Have a config tried next, before the searcher's; what it leaves out is sampled.

        Raises:
            SpaceError: it does not fit the space.
        """
        number = len(self._experiment.trials) + 1
        self._open().add(self._space.complete(config, random.Random(f"{self._seed}:{number}")))

    def stop_all(self, reason: str) -> None:
        """Stop every trial that is staged or running; they end as EARLY_STOPPED within the next steps."""
        driver = self._open()
        for trial in self.get_trials():
            if trial.is_busy:
                driver.stop(trial, reason)

    def get_trials(self) -> list[Trial]:
        """Return all trials so far, in the order in which they were staged; they may be read only."""
        return list(self._experiment.trials.values())

    def debug_string(self) -> str:
        """Return a few lines on how it stands, and why nothing runs if nothing does."""
        counts = ", ".join(f"{number} {status.name}" for status, number in self._experiment.counts.items() if number)
        best = self._experiment.best
        lines = [f"{self.name}: {counts or 'no trials'}; {self._experiment.reports} reports"]
        if best is not None:
            lines.append(f"best {self._experiment.metric}={best.best_value:.6g} in trial {best.id}: {best.config}")
        if self._driver is not None and self._driver.waiting_for:
            lines.append(self._driver.waiting_for)
        return "\n".join(lines)

    def results(self) -> Results:
        """Return the results so far."""
        return Results(self._experiment, self.folder)

    def close(self) -> None:
        """Let go of everything; a local worker and server end. Running trials on a broker's workers go on."""
        if self._driver is not None:
            for callback in self._callbacks:
                callback.on_end()
            with contextlib.suppress(BrokerUnavailable):
                self._driver.close()
            self._driver = None
        if self._worker is not None:
            self._worker.stop() if self._interrupts <= 1 else self._worker.kill()
            self._worker = None
        if self._backend is not None:
            self._backend.close()
            self._backend = None
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._server is not None:
            self._server.stop()
            self._server = None

    # Opening.

    def _open(self) -> Driver:
        """Connect, take the lock, create or replay the experiment; only once."""
        if self._driver is not None:
            return self._driver
        broker = self._find_broker()
        client = self._client = connect(broker, role="driver")
        journal = RedisJournal(client, self.name, patience_s=_PATIENCE_S)
        owner = secrets.token_hex(8)
        _take_lock(journal, owner)
        try:
            definition, is_new = self._definition(journal.definition())
            self.folder.mkdir(parents=True, exist_ok=True)
            self._backend = CeleryBackend(
                client,
                broker,
                experiment=self.name,
                title=f"{self.name}/{self._spec.name}",
                digest=hashlib.sha256(encode_value(definition)).hexdigest()[:16],
                resources=self._resources,
                patience_s=_PATIENCE_S,
            )
            driver = Driver(
                journal=journal,
                backend=self._backend,
                experiment=self._experiment,
                scheduler=self._scheduler,
                searcher=self._build_searcher(),
                max_trials=self.max_trials,
                max_concurrent=self._max_concurrent,
                copy=JournalFile(self.folder / JOURNAL_FILE),
                callbacks=self._watchers(),
                owner=owner,
            )
            driver.begin(self.name, definition, is_new=is_new)
            if self._server is not None:
                # Whatever worker an earlier run had ended with its server.
                driver.forfeit_leases()
        except BaseException:
            journal.unlock(owner)
            raise
        self._driver = driver
        if self._server is not None and not driver.is_finished:
            self._start_worker()
        return driver

    def _find_broker(self) -> str:
        if self._broker is not None:
            return self._broker
        self.folder.mkdir(parents=True, exist_ok=True)
        self._server = EmbeddedServer.start(self.folder)
        return self._server.url

    def _start_worker(self) -> None:
        assert self._server is not None  # noqa: S101 - a local worker goes with an embedded server
        self._worker = LocalWorker(
            self._server.url,
            folder=self.folder,
            code_root=self._code_root,
            slots=self._local_slots,
            gpus="auto" if self._resources.gpus else "0",
        )

    def _build_searcher(self) -> Searcher:
        if self._searcher is not None:
            return self._searcher
        searcher = RandomSearcher(self._space, self._seed or 0)
        return PointsFirst(searcher, self._space, self._points, self._seed or 0) if self._points else searcher

    def _watchers(self) -> list[Callback]:
        if self._progress:
            from mqtune.callbacks.progress import Progress  # noqa: PLC0415 - a view on top of this layer, and optional

            self._callbacks.insert(0, Progress())
        return self._callbacks

    def _definition(self, kept: bytes | None) -> tuple[dict[str, Any], bool]:
        """Return the experiment's definition, and whether it is new.

        Raises:
            NameTaken: an experiment with another definition has the name.
        """
        before: dict[str, Any] | None = None if kept is None else decode_value(kept)
        if self._seed is None:
            self._seed = before["seed"] if before is not None else secrets.randbits(32)
        experiment = self._experiment
        definition = {
            "trainable": self._spec.encode(),
            "space": self._space.describe(),
            "metric": experiment.metric,
            "mode": experiment.mode,
            "searcher": self._build_searcher().describe(),
            "scheduler": self._scheduler.describe(),
            "resources": self._resources.encode(),
            "max_failures": experiment.max_failures,
            "seed": self._seed,
            "start_method": self._start_method,
            "max_trials": self.max_trials,
            "version": __version__,
        }
        if before is None:
            return definition, True
        now = cast("dict[str, Any]", decode_value(encode_value(definition)))
        differing = [key for key in now if key not in _MAY_CHANGE and now[key] != before.get(key)]
        if differing:
            shown = "; ".join(f"{key} was {before.get(key)!r} and is {now[key]!r}" for key in differing)
            raise NameTaken(f"experiment {self.name!r} exists with another definition ({shown}); choose another name")
        return before, False

    # Ending.

    def _finish(self) -> Results:
        driver = self._open()
        if self._interrupts:
            self._hand_back(driver, "the driver was interrupted")
            driver.end("interrupted", "Ctrl-C")
        else:
            driver.end("finished", "")
        results = self.results()
        results.save()
        if self._interrupts:
            print(f"\nInterrupted. Everything is kept in {self.folder}; run the same script with name={self.name!r} to go on.")
        return results

    def _hand_back(self, driver: Driver, reason: str) -> None:
        driver.hand_back_all(reason)
        deadline = time.monotonic() + _INTERRUPT_S
        while not driver.is_finished and time.monotonic() < deadline and self._interrupts <= 1:
            driver.step(max(0.0, deadline - time.monotonic()))

    def _abort(self) -> None:
        """After an error: hand running trials back as far as possible, and keep what there is."""
        if self._driver is None or self._interrupts > 1:
            return
        try:
            self._hand_back(self._driver, "the driver failed")
            self._driver.end("failed", str(self._driver.failure or "an error in the driver"))
            self.results().save()
        except (MqtuneError, OSError) as error:
            logger.warning("the experiment %s could not be closed in good order: %s", self.name, error)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Have Ctrl-C and SIGTERM end the run in good order; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, *_: object) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt
        print("\nStopping: running trials are handed back. Ctrl-C again ends at once.", file=sys.stderr)
        if self._reading:
            raise _Interrupt


class _Interrupt(BaseException):
    """Ends a blocking read."""


def _at_least(name: str, value: int | None, least: int) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ConfigurationError(f"{name}={value!r} makes no sense; give a whole number of at least {least}")
    return value


def _take_lock(journal: Journal, owner: str) -> None:
    """Become the experiment's driver; a driver that died has its lock for some seconds, a living one keeps it.

    Raises:
        NameTaken: a living driver has it.
    """
    here = socket.gethostname()
    dead, before_s = "", math.inf
    while True:
        try:
            journal.lock(owner, f"process {os.getpid()} on {here}", LOCK_S, dead=dead)
        except NameTaken as taken:
            _, pid, _, host = taken.holder.split(" ", 3)
            if host == here:
                if dead or _lives(int(pid)):
                    raise
                dead = taken.holder
                continue
            if taken.left_s > before_s:
                # It was kept in between, so its driver lives.
                raise
            logger.warning("%s; if it is dead, its lock runs out in %.0f s", taken, taken.left_s)
            before_s = taken.left_s
            time.sleep(min(taken.left_s, KEEP_LOCK_S) + _LOCK_MARGIN_S)
        else:
            return


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _new_name(spec: TrainableSpec) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", spec.name)[:60]
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
