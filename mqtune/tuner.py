"""The tuner: what a driver script builds and runs."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mqtune.backends.local import LocalWorker
from mqtune.callback import Callback
from mqtune.callbacks.dispatch import CallbackDispatcher
from mqtune.callbacks.error_log import ErrorLog
from mqtune.checkpoints import Retention
from mqtune.control import Control
from mqtune.driver import Driver
from mqtune.errors import ConfigurationError, MqtuneError, WorkerStartError
from mqtune.experiment import Mode
from mqtune.fetching import DICTS
from mqtune.home import mqtune_home
from mqtune.interrupts import Interrupts
from mqtune.journal.file import JOURNAL_FILE, JournalFile
from mqtune.keeping import Keeping
from mqtune.limits import FailFast, at_least
from mqtune.opening import place_of, unless_away
from mqtune.plan import Plan, Sync
from mqtune.resources import Resources
from mqtune.results import Results
from mqtune.schedulers import Scheduler
from mqtune.searchers import Searcher
from mqtune.space import Space
from mqtune.trainable.spec import AnyTrainable
from mqtune.trial import Config, is_in_memory

__all__ = ["Tuner"]

logger = logging.getLogger(__name__)

#: The longest that a step blocks when nothing happens; events and timers end it sooner.
_STEP_S: Final = 4.0
#: After Ctrl-C, how long trials have to end: the worker's stop ladder takes 15 s.
_INTERRUPT_S: Final = 20.0


class Tuner(Control):
    """Tunes a trainable's config over the workers of a broker, or over this machine's cores and GPUs.

    The experiment is kept in the broker and in a folder (``~/mqtune/<name>``, or below ``$MQTUNE_HOME``). A run that
    was interrupted, by Ctrl-C, a crash or a power cut, goes on where it was when the same script runs again with the
    same name. One driver at a time.

    Args:
        trainable: a function of the config, at the top level of a module or script, that calls ``mqtune.report``; a
            subclass of ``mqtune.Trainable``; or the path of a script or other executable.
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
        max_failures: how often a trial that fails is run again, from its newest checkpoint; -1: always. Attempts that
            are lost with their worker, or handed back by it, have a budget of their own.
        fail_fast: what the first trial that fails for good does: nothing; True: all others are stopped; "raise":
            ``run`` raises TrialFailed at once, with the others handed back.
        stop: what ends a trial, or the experiment, before its time: a dict of metric to bound, a function of trial and
            report, or a rule such as ``mqtune.TargetReached(0.99) | mqtune.TimeLimit(3600)``.
        time_budget_s: for how long drivers drive the experiment, in seconds; then everything is stopped.
        trial_time_budget_s: for how long its trials run, summed, in seconds; then everything is stopped.
        ttl_s: for how long an attempt may run, in seconds; its worker stops it then, and it has failed.
        sync: "stream": reports flow, and a decision reaches its trial within milliseconds; "lockstep": each ``report``
            waits for the decision, so that no line of user code runs after a report that stops or pauses its trial.
        checkpoints: folder, or fsspec URL, of the checkpoint store, which this machine and all workers must reach; by
            default a folder of the experiment's if all runs on this machine, else none: then only dicts can be saved.
        retention: which checkpoints are kept; by default each trial's last and best.
        delete_checkpoints: whether trials that were stopped early, failed or abandoned lose all their checkpoints.
        accept_no_report: whether a trial that ends without reporting the metric is completed, and not failed.
        pass_config: how a script gets its config: as "arguments", or as the path of one "json" file. With *checkpoints*, it
            also gets ``--st_checkpoint_dir``: a folder to start from, if it has something in it, and to save to.
        queue_trials: whether trials wait for workers that offer what they ask for, or InsufficientResources is raised.
        local_slots: without a broker, the number of trials at once on this machine; by default one for each core, or GPU.
        start_method: "fork" starts a trial in a millisecond from a process that has imported the trainable's module;
            "spawn" imports it anew for each trial, for libraries that can't be forked.
        reuse: whether a trial's process, with the instance of its class, stays for the next trial in its slot, for classes
            whose ``setup`` takes long: only one with a ``reset_config`` that returns True; see ``mqtune.Trainable``.
        backend: where trials run instead of on workers: ``mqtune.Simulated(…)``.
        callbacks: who is told what happens.
        progress: whether to show how it goes: a table in a terminal, else a line now and then.

    Raises:
        ConfigurationError: an argument makes no sense. Nothing was started.
    """

    def __init__(
        self,
        trainable: AnyTrainable,
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
        fail_fast: FailFast = False,
        stop: object = None,
        time_budget_s: float | None = None,
        trial_time_budget_s: float | None = None,
        ttl_s: float | None = None,
        sync: Sync = "stream",
        checkpoints: str | Path | None = None,
        retention: Retention | None = None,
        delete_checkpoints: bool = False,
        accept_no_report: bool = False,
        pass_config: str = "arguments",  # noqa: S107 - no password
        queue_trials: bool = True,
        local_slots: int | None = None,
        start_method: str | None = None,
        reuse: bool = False,
        backend: object = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> None:
        super().__init__()
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
            max_concurrent=max_concurrent,
            start_method=start_method,
            sync=sync,
            stop=stop,
            ttl_s=ttl_s,
            time_budget_s=time_budget_s,
            trial_time_budget_s=trial_time_budget_s,
            fail_fast=fail_fast,
            accept_no_report=accept_no_report,
            pass_config=pass_config,
            pass_checkpoint_dir=checkpoints is not None,
            retention=retention,
            delete_checkpoints=delete_checkpoints,
            reuse=reuse,
        )
        self._place = place_of(
            backend=backend,
            broker=broker,
            local_slots=at_least("local_slots", local_slots, 1),
            checkpoints=checkpoints,
            queue_trials=queue_trials,
        )
        self.name = self._plan.name
        self.folder = mqtune_home() / self.name
        self._experiment = self._plan.experiment
        self._callbacks = [*_progress(self._plan.max_trials, self.folder), *callbacks] if progress else list(callbacks)
        self._interrupts = Interrupts()
        self._driver: Driver | None = None
        self._is_closed = False
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
            StoreUnavailable: the checkpoint store can't be reached or written, from here or from the first trial's worker.
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
        return self._look().is_finished

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
        """Let go of everything; a local worker and server end. Running trials on a broker's workers go on.

        What was seen until then can still be looked at.
        """
        self._is_closed = True
        self._opened.close()

    # Opening.

    def _open(self) -> Driver:
        """Connect, take the lock, create or replay the experiment; only once."""
        if self._is_closed:
            raise ConfigurationError(
                f"this tuner is closed; make another one with name={self.name!r} to go on with the experiment"
            )
        if self._driver is None:
            try:
                self._driver = self._connect()
            except BaseException:
                self.close()
                raise
        return self._driver

    def _look(self) -> Driver:
        """Return the driver, also of a tuner that is closed: what it has seen stays."""
        return self._driver if self._driver is not None else self._open()

    def _connect(self) -> Driver:
        plan, opened = self._plan, self._opened
        place = self._place.open(plan, self.folder, opened)
        opened.callback(self._end_worker)
        callbacks = CallbackDispatcher([*self._callbacks, ErrorLog(self.folder)])
        driver = Driver(
            journal=place.journal,
            backend=place.backend,
            experiment=self._experiment,
            scheduler=plan.scheduler,
            searcher=plan.searcher(),
            limits=plan.limits,
            keeping=Keeping(self._experiment, plan.retention, place.store, delete_checkpoints=plan.delete_checkpoints),
            is_lockstep=plan.sync == "lockstep",
            copy=JournalFile(self.folder / JOURNAL_FILE),
            callbacks=callbacks,
            owner=place.owner,
            clock=place.clock,
            interrupts=self._interrupts if place.waits else None,
        )
        opened.callback(unless_away, driver.close)
        opened.callback(callbacks.close)
        opened.callback(callbacks.tell, "on_end")
        driver.begin(self.name, place.definition, is_new=place.is_new, driver=place.driver)
        if place.is_private:
            # Whatever worker an earlier run had ended with its server.
            driver.forfeit_leases()
        if not driver.is_finished:
            self._worker = place.start_worker()
        return driver

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
        outcome, reason = ("interrupted", "Ctrl-C") if interrupted else ("finished", driver.over)
        driver.end(outcome, reason)
        self._keep_best_dict(driver)
        results = self.results()
        results.save()
        if interrupted:
            print(
                f"\nInterrupted. Everything is kept in {self.folder}; run the same script with name={self.name!r} to go on."
            )
        return results

    def _keep_best_dict(self, driver: Driver) -> None:
        """Keep the best trial's checkpoint in the folder if it is a dict: the Redis that has it may end with the run."""
        best = self._experiment.best
        if best is not None and best.checkpoint and is_in_memory(best.checkpoint):
            data = driver.read_checkpoint(best.checkpoint)
            if data is not None:
                (self.folder / DICTS).mkdir(exist_ok=True)
                (self.folder / DICTS / best.checkpoint).write_bytes(data)

    def _hand_back(self, driver: Driver, reason: str) -> None:
        driver.hand_back_all(reason)
        deadline = time.monotonic() + _INTERRUPT_S
        while not driver.is_finished and time.monotonic() < deadline and self._interrupts.count <= 1:
            driver.step(max(0.0, deadline - time.monotonic()))

    def _abort(self) -> None:
        """After an error: hand running trials back as far as possible, and keep what there is."""
        if self._driver is None or self._is_closed or self._interrupts.count > 1:
            return
        try:
            self._hand_back(self._driver, "the driver failed")
            self._driver.end("failed", str(self._driver.failure or "an error in the driver"))
            self.results().save()
        except (MqtuneError, OSError) as error:
            logger.warning("the experiment %s could not be closed in good order: %s", self.name, error)


def _progress(total: int | None, folder: Path) -> list[Callback]:
    from mqtune.callbacks.progress import Progress  # noqa: PLC0415 - rich takes longer to import than all else here

    return [Progress(total=total, folder=folder)]
