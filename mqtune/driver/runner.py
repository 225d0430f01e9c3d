"""Runs an experiment: connects, drives it, and ends it also after Ctrl-C and errors."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mqtune.backends.local.worker import WorkerProcess
from mqtune.core.callback import Callback
from mqtune.core.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DriverFenced,
    MqtuneError,
    RunInterrupted,
    WorkerStartError,
)
from mqtune.core.machine import DICTS, mqtune_home, open_standard_streams, replace_file
from mqtune.core.text import counted
from mqtune.core.trial import UNDRIVEN, Report, Trial, is_in_memory
from mqtune.driver.checkpoints import CheckpointGC
from mqtune.driver.connect import Deployment, unless_away
from mqtune.driver.interrupts import AT_ONCE_S, Interrupts
from mqtune.driver.loop import Driver
from mqtune.driver.options import LEARNT, Definition
from mqtune.driver.ports import MakeServices, no_services
from mqtune.driver.settings import Settings
from mqtune.journal.copy import JOURNAL_FILE, JournalFile
from mqtune.results.callbacks import CallbackDispatcher, ErrorLog
from mqtune.results.kept_state import keep_whole_state
from mqtune.results.progress import deciders_of
from mqtune.results.results import Results
from mqtune.results.warm_start import teach
from mqtune.search.background import BackgroundSearcher
from mqtune.trainable.spec import refuse_on_import

logger = logging.getLogger(__name__)

#: The longest that a step blocks when nothing happens; events and timers end it sooner.
STEP_S: Final = 4.0
#: After Ctrl-C, how long trials have to end: the worker's stop ladder takes 15 s.
_INTERRUPT_S: Final = 20.0
#: A disk with less room than this can't take what a server or a copy writes next.
_FULL_BELOW_BYTES: Final = 2**20


class Runner:
    """Runs one experiment: connects, drives it to its end or to Ctrl-C, saves the results and closes all connections.

    Args:
        settings: the user's.
        deployment: where it runs.
        folder: its folder on this machine; by default the one of its name.
        services: makes the driver's services.
    """

    def __init__(
        self,
        settings: Settings,
        deployment: Deployment,
        folder: Path | None = None,
        services: MakeServices = no_services,
    ) -> None:
        self.settings = settings
        self.experiment = settings.experiment()
        #: The experiment's definition, once it is connected.
        self.definition: Definition = {}
        #: The experiment's folder on this machine.
        self.folder = folder if folder is not None else mqtune_home() / settings.name
        self._deployment = deployment
        self._services = services
        self._callbacks = list(settings.run.callbacks)
        self._interrupts = Interrupts()
        self._driver: Driver | None = None
        self._checkpoints: CheckpointGC | None = None
        self._is_closed = self._is_opening = False
        self._worker: WorkerProcess | None = None
        self._start_worker: Callable[[], WorkerProcess | None] = lambda: None
        self._opened = contextlib.ExitStack()
        # A connection that ``attach`` has made is closed also by a tuner that never runs.
        self._opened.callback(self._deployment.close)

    def run(self) -> Results:
        """Run to the end, or to Ctrl-C, and return the results; see ``Tuner.run``."""
        try:
            if self._driver is None and not self._is_closed:
                # Before the thread that watches for signals.
                refuse_on_import()
                open_standard_streams()
                self._deployment.prepare(self.settings, self.folder, self._opened)
            with self._interrupts.handled(self._end_at_once):
                results = self._run()
        except KeyboardInterrupt:
            if not self._interrupts.count:
                raise
            print(f"\n{self._how_to_go_on()}", file=sys.stderr)
            raise RunInterrupted(self._interrupts.exit_code) from None
        if self._interrupts.count:
            print(f"\n{self._how_to_go_on()}")
            if not _is_interactive():
                raise RunInterrupted(self._interrupts.exit_code)
        return results

    def _run(self) -> Results:
        try:
            self.open()
            while not self.is_finished and not self._interrupts.count:
                self.step()
            return self._finish()
        except DriverFenced:
            # Its trials are another driver's now.
            raise
        except BaseException:
            self._abort()
            raise
        finally:
            self.close()

    def step(self, block_s: float = STEP_S) -> None:
        """Start what there is room for, wait up to *block_s* seconds for something to happen, and act on it.

        Raises:
            as ``run``.
        """
        driver = self._open_with_worker()
        driver.step(block_s)
        self._check(driver)

    def next_report(self, block_s: float) -> Report | None:
        """Go on to the next report and return it, or None; see ``Tuner.next_report``."""
        driver = self._open_with_worker()
        report = driver.next_report(block_s)
        if report is None:
            self._check(driver)
        return report

    def reports_ahead(self, count: int) -> list[Report]:
        """Return up to *count* reports that come next; see ``Tuner.reports_ahead``."""
        return self.open().reports_ahead(count)

    def _open_with_worker(self) -> Driver:
        driver = self.open()
        self._have_worker(driver)
        return driver

    def _check(self, driver: Driver) -> None:
        """Raise what the experiment has failed with, or this machine's worker."""
        if driver.failure is not None:
            raise driver.failure
        problem = self._worker.problem() if self._worker is not None else None
        if problem is not None:
            driver.lose_all()
            raise WorkerStartError(problem)

    @property
    def is_finished(self) -> bool:
        """Whether every trial has ended and there will be no other."""
        return self.look().is_finished

    def finish(self, reason: str) -> Results:
        """Stop all trials, wait until they have ended, and journal the end; see ``Tuner.finish``."""
        driver = self.open()
        driver.stop_all(reason, by="user")
        try:
            while not driver.is_finished:
                self.step()
        except MqtuneError:
            if driver.failure is not None:
                # Nobody can drive it to its end, as it is.
                self._abort()
            raise
        driver.end("finished", reason)
        return self._save(driver)

    def let_go(self, trial: Trial) -> None:
        """Name no longer, for a trial that is paused, the checkpoints that it would go on from."""
        if self._checkpoints is not None:
            self._checkpoints.let_go(trial)

    def debug_string(self) -> str:
        """Return a few lines on the state of the experiment, and why nothing runs if nothing does."""
        self.catch_up()
        counts = ", ".join(f"{number} {status.name}" for status, number in self.experiment.counts.items() if number)
        lines = [f"{self.settings.name}: {counts or 'no trials'}; {counted(self.experiment.reports, 'report')}"]
        if (best := self.experiment.best) is not None:
            lines.append(f"best {self.experiment.metric}={best.best_value:.6g} in trial {best.id}: {best.config}")
        lines += [f"on the Pareto front: trial {each.id}: {each.config}" for each in self.experiment.pareto_front]
        if self._driver is not None and self._driver.waiting_for:
            lines.append(self._driver.waiting_for)
        return "\n".join(lines)

    def catch_up(self) -> None:
        """Connect, so that ``experiment`` has what there is of it.

        Do nothing while it connects already, or once it is closed.
        """
        if not self._is_opening and not self._is_closed:
            self.look()

    def results(self) -> Results:
        """Return the results so far."""
        self.catch_up()
        return Results(self.experiment, self.folder, None if self._driver is None else self._driver.reader)

    def close(self) -> None:
        """Close all connections; a local worker and server end. Running trials on a broker's workers go on.

        What was seen until then can still be looked at.
        """
        self._is_closed = True
        if not self._interrupts.is_urgent:
            self._say_end()
            self._opened.close()
            return
        self._kill_worker()
        # A Redis that is frozen or full answers nobody, and what is not said to it now it finds out by itself.
        closing = threading.Thread(target=self._opened.close, name="mqtune-closing", daemon=True)
        closing.start()
        closing.join(AT_ONCE_S)

    def _say_end(self) -> None:
        """Journal that the experiment has ended, or failed, where ``step`` drove it to its end."""
        driver = self._driver
        if driver is None or not driver.is_finished or self.experiment.outcome:
            return
        outcome, reason = ("finished", driver.over) if driver.failure is None else ("failed", str(driver.failure))
        # Who has lost the lock, or the server, has nothing to say any more.
        with contextlib.suppress(MqtuneError, OSError):
            driver.end(outcome, reason)
            self._save(driver)

    # Opening.

    def open(self) -> Driver:
        """Connect, take the lock, create or replay the experiment; only once."""
        if self._is_closed:
            raise ConfigurationError(
                f"this tuner is closed; make another one with name={self.settings.name!r} to go on with the experiment"
            )
        if self._driver is None:
            refuse_on_import()
            open_standard_streams()
            self._is_opening = True
            try:
                self._driver = self._connect()
            except BaseException:
                self.close()
                raise
            finally:
                self._is_opening = False
        return self._driver

    def look(self) -> Driver:
        """Return the driver, also of a tuner that is closed: what it has seen stays."""
        return self._driver if self._driver is not None else self.open()

    def _planned(self) -> int | None:
        """Return the number of trials that are planned, by the script or a later request."""
        return self.settings.max_trials if self._driver is None else self._driver.max_trials

    def _connect(self) -> Driver:
        settings, opened = self.settings, self._opened
        place = self._deployment.open(settings, self.folder, opened, self._interrupts)
        self.definition = place.definition
        opened.callback(self._end_worker)
        if settings.run.progress:
            deciders = deciders_of(place.definition).in_words(settings.why_random)
            self._callbacks[:0] = [_progress(self._planned, self.folder, lambda: self._interrupts.said, deciders)]
        callbacks = CallbackDispatcher([*self._callbacks, ErrorLog(self.folder)])
        searcher = settings.new_searcher(place.definition["seed"], place.definition["searcher"])
        teach(searcher, place.definition.get(LEARNT, ()))
        if searcher.is_slow and place.waits:
            searcher = BackgroundSearcher(searcher, settings.run.timing)
            opened.callback(searcher.close)
        if place.waits:
            settings.scheduler.decide_in_background()
        if settings.scheduler.background is not None:
            opened.callback(settings.scheduler.background.close)
        self._checkpoints = CheckpointGC(
            self.experiment,
            settings.checkpoints.retention,
            place.store,
            delete_checkpoints=settings.checkpoints.delete,
            keeps_dicts=settings.is_open,
        )
        driver = Driver(
            journal=place.journal,
            backend=place.backend,
            experiment=self.experiment,
            settings=settings,
            searcher=searcher,
            may_wait=place.may_grow,
            checkpoints=self._checkpoints,
            copy=JournalFile(self.folder / JOURNAL_FILE),
            callbacks=callbacks,
            holder=place.holder,
            clock=place.clock,
            interrupts=self._interrupts if place.waits else None,
            services=self._services,
        )
        opened.callback(unless_away, driver.close)
        opened.callback(callbacks.close)
        opened.callback(callbacks.tell, "on_end")
        for callback in self._callbacks:
            callback.setup(self.folder)
        driver.begin(
            self.settings.name,
            place.definition,
            is_new=place.is_new,
            driver=place.driver,
            owner=place.owner,
            code_changed=place.changed,
        )
        if place.changed:
            self._say_that_code_changed(driver, ", ".join(place.changed))
        driver.label(None, self.experiment.labels.changed(settings.run.tags, settings.run.notes))
        if place.is_private:
            # Whatever worker an earlier run had ended with its server.
            driver.lose_all(error_type=UNDRIVEN)
        self._start_worker = place.start_worker
        self._have_worker(driver)
        return driver

    def _say_that_code_changed(self, driver: Driver, changed: str) -> None:
        if driver.is_finished:
            logger.warning(
                "experiment %s had ended, and its code has changed since (%s): the results below are of the earlier "
                "code, and nothing ran. Use another name, or run=RunOptions(overwrite=True), to run the code as it is "
                "now",
                self.settings.name,
                changed,
            )
            return
        count = len(self.experiment.trials)
        logger.warning(
            "the code of experiment %s has changed since its first %d trials (%s): what runs from now on runs the code "
            "as it is now. Use another name, or run=RunOptions(overwrite=True), for results of one code; code='strict' "
            "refuses to go on",
            self.settings.name,
            count,
            changed,
        )

    def _have_worker(self, driver: Driver) -> None:
        """Start this machine's worker, where there is to be one, once there is something for it to do."""
        if self._worker is None and not driver.is_finished:
            self._worker = self._start_worker()

    def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def _kill_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()

    # Ending.

    def _finish(self) -> Results:
        driver = self.open()
        interrupted = bool(self._interrupts.count)
        if interrupted:
            self._hand_back(driver, "the driver was interrupted")
        outcome, reason = ("interrupted", "Ctrl-C") if interrupted else ("finished", driver.over)
        driver.end(outcome, reason)
        if self._worker is not None:
            # It ends while the results are written.
            self._worker.leave()
        results = self._save(driver)
        # The driver of an open experiment may have read what it has not taken in.
        if driver.reader.is_taken_in and not self.settings.is_open:
            keep_whole_state(self.folder, self.experiment, driver.cursor)
        return results

    def _save(self, driver: Driver) -> Results:
        """Write the results into the folder, and return them."""
        results = self.results()
        try:
            self._keep_best_dict(driver)
            results.save()
        except BrokerUnavailable:
            raise
        except OSError as error:
            logger.warning(
                "the results of experiment %s can't be written to %s (%s): make room, and `mqtune drive %s` writes "
                "them",
                self.settings.name,
                self.folder,
                error,
                self.settings.name,
            )
        return results

    def _end_at_once(self) -> str:
        """Kill the local worker, from any thread, and return what to print."""
        self._kill_worker()
        return self._how_to_go_on()

    def _how_to_go_on(self) -> str:
        """Return how a person who has interrupted the run can go on with it."""
        full = f" The disk of {self.folder} is full: make room first." if _is_full(self.folder) else ""
        if not self.definition:
            return (
                f"Interrupted before experiment {self.settings.name} was opened: nothing of it has changed; run the "
                "same script again."
            )
        drive = f"mqtune drive {self.settings.name}"
        script = f"run the same script with name={self.settings.name!r} to go on, or {drive}"
        if self.settings.overwrites:
            script = f"{drive} goes on with it; the same script would delete it and start from scratch (overwrite=True)"
        return f"Interrupted. Everything is kept in {self.folder}; {script}.{full}"

    def _keep_best_dict(self, driver: Driver) -> None:
        """Keep the best trials' checkpoints in the folder if they are dicts.

        The Redis that has them may end with the run.
        """
        for best in self.experiment.ahead.values():
            is_dict = best.checkpoint and is_in_memory(best.checkpoint)
            if is_dict and (data := driver.read_checkpoint(best.checkpoint)) is not None:
                (self.folder / DICTS).mkdir(exist_ok=True)
                replace_file(self.folder / DICTS / best.checkpoint, [data])

    def _hand_back(self, driver: Driver, reason: str) -> None:
        driver.requeue_all(reason)
        deadline = time.monotonic() + _INTERRUPT_S
        while not driver.is_finished and time.monotonic() < deadline and not self._interrupts.is_urgent:
            driver.step(max(0.0, deadline - time.monotonic()))

    def _abort(self) -> None:
        """After an error, requeue running trials as far as possible, and save the results so far."""
        if self._driver is None or self._is_closed or self._interrupts.is_urgent:
            return
        try:
            self._hand_back(self._driver, "the driver failed")
            self._driver.end("failed", str(self._driver.failure or "an error in the driver"))
            self.results().save()
        except (MqtuneError, OSError) as error:
            logger.warning("the experiment %s could not be closed properly: %s", self.settings.name, error)


def _is_interactive() -> bool:
    """Whether a person types the next line, in Python or in a notebook; a script would go on as if all were well."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _FULL_BELOW_BYTES
    except OSError:
        return False


def _progress(total: Callable[[], int | None], folder: Path, said: Callable[[], str], deciders: str) -> Callback:
    from mqtune.results.display import ProgressDisplay  # noqa: PLC0415 - rich takes longer to import than all else here

    return ProgressDisplay(total=total, folder=folder, said=said, deciders=deciders)
