"""The tuner: what a driver script builds and runs."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mqtune.backends.celery import CeleryBackend
from mqtune.backends.local import EmbeddedServer, ExternalServer, LocalWorker, find_server
from mqtune.callback import Callback
from mqtune.driver import Driver
from mqtune.errors import BrokerUnavailable, ConfigurationError, MqtuneError, WorkerStartError
from mqtune.experiment import Mode
from mqtune.home import mqtune_home
from mqtune.interrupts import Interrupts
from mqtune.journal.connection import connect
from mqtune.journal.file import JOURNAL_FILE, JournalFile
from mqtune.journal.redis import RedisJournal
from mqtune.journal.takeover import take_lock
from mqtune.messages import encode_value
from mqtune.plan import Plan, at_least
from mqtune.resources import Resources
from mqtune.results import Results
from mqtune.schedulers import Scheduler
from mqtune.searchers import Searcher
from mqtune.space import Space
from mqtune.trainable.spec import Trainable
from mqtune.trial import Config, Trial

__all__ = ["Tuner"]

logger = logging.getLogger(__name__)

#: The longest that a step blocks when nothing happens; events and timers end it sooner.
_STEP_S: Final = 4.0
#: After Ctrl-C, how long trials have to end: the worker's stop ladder takes 15 s.
_INTERRUPT_S: Final = 20.0
#: How long the driver waits for a Redis that is away; its trials run on meanwhile, and after.
_PATIENCE_S: Final = 300.0


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
        broker: URL of the Redis that the workers use; by default ``$MQTUNE_BROKER``. Without either, a server and a worker
            are started on this machine, and end with the run; ``$MQTUNE_REDIS_URL`` names a server to take instead.
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
        self._plan = Plan(
            trainable,
            space,
            metric=metric,
            mode=mode,
            searcher=searcher,
            scheduler=scheduler,
            max_trials=max_trials,
            points_to_evaluate=points_to_evaluate,
            resources=resources,
            name=name,
            seed=seed,
            max_failures=max_failures,
            start_method=start_method,
        )
        self._broker = broker or os.environ.get("MQTUNE_BROKER") or None
        self._local_slots = at_least("local_slots", local_slots, 1)
        self._max_concurrent = at_least("max_concurrent", max_concurrent, 1)
        if local_slots is not None and broker is not None:
            raise ConfigurationError(
                "local_slots is for a run without a broker; with one, each worker says how many slots it has"
            )
        self.name = self._plan.name
        self.folder = mqtune_home() / self.name
        self._experiment = self._plan.experiment
        self._callbacks = [*_progress(self._plan.max_trials), *callbacks] if progress else list(callbacks)
        self._interrupts = Interrupts()
        self._driver: Driver | None = None
        self._worker: LocalWorker | None = None
        self._opened = contextlib.ExitStack()

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
        with self._interrupts.handled():
            try:
                self._open()
                while not self.is_finished and not self._interrupts.count:
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
        driver.step(block_s)
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
        self._open().add(self._plan.space.complete(config, random.Random(f"{self._plan.seed}:{number}")))

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
        self._driver = None
        self._opened.close()

    # Opening.

    def _open(self) -> Driver:
        """Connect, take the lock, create or replay the experiment; only once."""
        if self._driver is None:
            try:
                self._driver = self._connect()
            except BaseException:
                self.close()
                raise
        return self._driver

    def _connect(self) -> Driver:
        plan, opened = self._plan, self._opened
        broker, is_local, is_private = self._find_broker()
        client = connect(broker, role="driver")
        opened.callback(client.close)
        journal = RedisJournal(client, self.name, patience_s=_PATIENCE_S)
        owner = secrets.token_hex(8)
        take_lock(journal, owner)
        opened.callback(_unless_away, journal.unlock, owner)
        kept = journal.definition()
        definition = plan.definition(kept)
        self.folder.mkdir(parents=True, exist_ok=True)
        backend = CeleryBackend(
            client,
            broker,
            experiment=self.name,
            title=f"{self.name}/{plan.spec.name}",
            digest=hashlib.sha256(encode_value(definition)).hexdigest()[:16],
            resources=plan.resources,
            patience_s=_PATIENCE_S,
        )
        opened.callback(backend.close)
        opened.callback(self._end_worker)
        driver = Driver(
            journal=journal,
            backend=backend,
            experiment=self._experiment,
            scheduler=plan.scheduler,
            searcher=plan.searcher(),
            max_trials=plan.max_trials,
            max_concurrent=self._max_concurrent,
            copy=JournalFile(self.folder / JOURNAL_FILE),
            callbacks=self._callbacks,
            owner=owner,
            interrupts=self._interrupts,
        )
        opened.callback(_unless_away, driver.close)
        for callback in self._callbacks:
            opened.callback(callback.on_end)
        driver.begin(self.name, definition, is_new=kept is None)
        if is_private:
            # Whatever worker an earlier run had ended with its server.
            driver.forfeit_leases()
        if is_local and not driver.is_finished:
            self._worker = LocalWorker(
                broker,
                folder=self.folder,
                code_root=plan.code_root,
                slots=self._local_slots,
                gpus="auto" if plan.resources.gpus else "0",
            )
        return driver

    def _find_broker(self) -> tuple[str, bool, bool]:
        """Return the broker's URL, whether a worker is to be started here, and whether the server is this run's own."""
        if self._broker is not None:
            return self._broker, False, False
        found = find_server()
        if isinstance(found, ExternalServer):
            return found.url, True, False
        self.folder.mkdir(parents=True, exist_ok=True)
        server = EmbeddedServer.start(self.folder, binary=found)
        self._opened.callback(server.stop)
        return server.url, True, True

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.stop() if self._interrupts.count <= 1 else self._worker.kill()
            self._worker = None

    # Ending.

    def _finish(self) -> Results:
        driver = self._open()
        interrupted = bool(self._interrupts.count)
        if interrupted:
            self._hand_back(driver, "the driver was interrupted")
        driver.end("interrupted" if interrupted else "finished", "Ctrl-C" if interrupted else "")
        results = self.results()
        results.save()
        if interrupted:
            print(
                f"\nInterrupted. Everything is kept in {self.folder}; run the same script with name={self.name!r} to go on."
            )
        return results

    def _hand_back(self, driver: Driver, reason: str) -> None:
        driver.hand_back_all(reason)
        deadline = time.monotonic() + _INTERRUPT_S
        while not driver.is_finished and time.monotonic() < deadline and self._interrupts.count <= 1:
            driver.step(max(0.0, deadline - time.monotonic()))

    def _abort(self) -> None:
        """After an error: hand running trials back as far as possible, and keep what there is."""
        if self._driver is None or self._interrupts.count > 1:
            return
        try:
            self._hand_back(self._driver, "the driver failed")
            self._driver.end("failed", str(self._driver.failure or "an error in the driver"))
            self.results().save()
        except (MqtuneError, OSError) as error:
            logger.warning("the experiment %s could not be closed in good order: %s", self.name, error)


def _progress(total: int | None) -> list[Callback]:
    from mqtune.callbacks.progress import Progress  # noqa: PLC0415 - rich takes longer to import than all else here

    return [Progress(total=total)]


def _unless_away(action: Callable[..., None], *arguments: Any) -> None:
    with contextlib.suppress(BrokerUnavailable):
        action(*arguments)
