"""The tuner: the object with which a script defines, runs and steers an experiment."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from mqtune.backends.base import Backend
from mqtune.backends.local.worker import WorkerProcess
from mqtune.core.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DriverFenced,
    MqtuneError,
    RunInterrupted,
    WorkerStartError,
)
from mqtune.core.experiment import Experiment
from mqtune.core.machine import mqtune_home, open_standard_streams
from mqtune.core.names import OF_TUNERS, naming, with_hints
from mqtune.core.objective import Metric, Modes
from mqtune.core.text import counted, say_in_one_line
from mqtune.core.trial import Report, TrialId
from mqtune.driver.driver import STEP_S, Driver
from mqtune.driver.setup.attach import attached
from mqtune.driver.setup.by_config import AnyResources
from mqtune.driver.setup.connect import Deployment
from mqtune.driver.setup.default_names import default_stem, release_folder
from mqtune.driver.setup.deployments import deployment_of
from mqtune.driver.setup.interrupts import AT_ONCE_S, Interrupts
from mqtune.driver.setup.options import ELSEWHERE, Checkpoints, Failures, Local, Process, RunOptions
from mqtune.driver.setup.settings import KnownTrainable, Settings
from mqtune.results.kept_state import keep_whole_state
from mqtune.results.results import Results
from mqtune.results.warm_start import WarmStart
from mqtune.schedulers.base import Scheduler
from mqtune.search.base import Searcher
from mqtune.search.space import Space
from mqtune.services.driver import CHECKS, driver_services, project_maker
from mqtune.trainable.spec import AnyTrainable, refuse_on_import
from mqtune.user_loop import UserLoop

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: With less free space than this, a disk counts as full: the next write to it may fail.
_FULL_BELOW_BYTES: Final = 2**20


class Tuner(UserLoop):
    """Tunes a trainable's config on the workers of a broker, or on this machine.

    The broker and a folder (``~/mqtune/<name>``, or below ``$MQTUNE_HOME``) store the experiment. After Ctrl-C, a crash
    or a power cut, run the same script with the same *name* to continue it. ``Tuner.attach`` and ``mqtune drive``
    continue it without the script. An experiment has one driver at a time. Trials on a broker's workers continue
    without a driver.

    Args:
        trainable: a function of the config, at the top level of a module or script, that calls ``mqtune.report``; a
            subclass of ``mqtune.Trainable``; or a script or other executable, by its path or as a ``mqtune.Script``.
        space: the search space: a dict of domains such as ``mqtune.uniform(0, 1)``, constants, and dicts of them.
            Without a space nothing is searched: your program adds trials, with any config, until it calls ``finish``.
        metric: the key of the optimised value in the reports. A list of keys optimises several metrics, and
            ``Results.pareto_front`` has the trials that no other trial beats. A list may also contain bounds, such as
            ``["loss", "latency <= 10"]``: a trial that violates a bound is never the best, and schedulers and models
            respect bounds. *metric* and *mode* may be left out only without a space.
        mode: "min" or "max". For several metrics, a list with one entry for each, or one entry for all.
        max_trials: number of trials. By default the size of the grid, or 1 without a grid.
        searcher: proposes configs. The default is the model "tpe" if Optuna is installed (extra ``optuna``). It is
            "random" if Optuna is missing, if the space has a grid, or if *max_trials* is enough for all configs of the
            space. "ax" (extra ``ax``) is another model. ``mqtune.InitialPoints([…])`` tries given configs first.
            ``mqtune.WarmStart([…])`` lets a model learn from the trials of other experiments.
        scheduler: stops or pauses bad trials early. The default is ``mqtune.ASHA(max_t)`` if *max_t* is given. Without
            both, every trial runs to its end.
        max_t: the last ``training_iteration`` of trials that report step by step. Bad trials are stopped earlier.
        stop: ends a trial or the experiment early: a dict of metric to bound, a function of trial and report, or a rule
            such as ``mqtune.TargetReached(0.99) | mqtune.TimeLimit(3600)``. ``mqtune.TrialDiverged()`` ends trials
            whose metric is NaN or infinite.
        resources: the resources of each trial, or a function that returns the resources for a config. The driver calls
            the function once for each config.
        backend: where trials run: the URL of the workers' Redis; ``mqtune.Local(slots=…)``: a server and a worker on
            this machine, which end with the run; ``mqtune.Simulated(…)``; or a backend of your own. By default
            ``$MQTUNE_BROKER`` or, if that is not set, this machine. A run on this machine uses the server
            ``$MQTUNE_REDIS_URL``, if that is set, instead of starting one.
        name: the experiment's name. The same script with the same name continues the experiment. By default the
            script's name and a number, such as ``digits-1``, so each run is a new experiment. In a notebook the
            trainable's name replaces the script's.
        seed: seed of all random choices. By default it is drawn, and stored with the experiment. The same seed gives
            random search the same configs. A model's configs and a scheduler's decisions also depend on the order of
            reports, which differs between runs on several slots. On one slot, a slow model depends on time too: after a
            suggestion that took more than 0.1 s, it works out the next one before the trial ends.
        failures: the handling of failed trials, invalid reports and a lost driver.
        checkpoints: where checkpoints are stored, and which are kept.
        process: how a trial's process runs. ``mqtune.Process(bundle=".")`` sends your code to workers that accept code.
        run: the options of this run alone: callbacks, progress, labels, the largest number of running trials,
            overwriting.

    Raises:
        ConfigurationError: an argument is invalid. Nothing was started.
    """

    @with_hints(ELSEWHERE)
    def __init__(
        self,
        trainable: AnyTrainable | KnownTrainable,
        space: Mapping[str, object] | Space | None = None,
        *,
        metric: Metric | None = None,
        mode: Modes | None = None,
        max_trials: int | None = None,
        searcher: Searcher | WarmStart | str | None = None,
        scheduler: Scheduler | None = None,
        max_t: float | None = None,
        stop: object = None,
        resources: AnyResources | None = None,
        backend: str | Local | Backend | Deployment | None = None,
        name: str | None = None,
        seed: int | None = None,
        failures: Failures = Failures(),
        checkpoints: Checkpoints = Checkpoints(),
        process: Process = Process(),
        run: RunOptions = RunOptions(),
    ) -> None:
        say_in_one_line()
        deployment = deployment_of(backend, checkpoints, run.timing)
        self._settings = Settings.of(
            trainable=trainable,
            space=space,
            metric=metric,
            mode=mode,
            max_trials=max_trials,
            searcher=searcher,
            scheduler=scheduler,
            max_t=max_t,
            stop=stop,
            resources=resources,
            backend=deployment,
            name=name,
            seed=seed,
            failures=failures,
            checkpoints=checkpoints,
            process=process,
            run=run,
            make_project=project_maker(),
            checks=CHECKS,
        )
        self._deployment = deployment
        self._interrupts = Interrupts()
        self._driver: Driver | None = None
        self._worker: WorkerProcess | None = None
        self._is_closed = self._is_opening = False
        self._opened = contextlib.ExitStack()
        # ``attach`` has connected already. A tuner that never runs must close that connection too.
        self._opened.callback(deployment.close)
        self._collected: list[Report] | None = None
        self._returned_failures: set[TrialId] = set()

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        backend: str | None = None,
        trainable: AnyTrainable | None = None,
        space: Mapping[str, object] | Space | None = None,
        searcher: Searcher | WarmStart | str | None = None,
        scheduler: Scheduler | None = None,
        stop: object = None,
        resources: AnyResources | None = None,
        max_trials: int | None = None,
        run: RunOptions = RunOptions(),
    ) -> Self:
        """Return a tuner that continues an experiment, without the script that began it.

        The definition of the experiment, in Redis, has the values of the arguments that you leave out. Running trials
        continue. Decisions that an earlier driver did not send are sent.

        Args:
            name: the experiment's name.
            backend: URL of the Redis that has the experiment. By default ``$MQTUNE_BROKER`` or, if that is not set, the
                experiment's folder on this machine.
            trainable: the script's trainable. Usually it is not needed, because workers know it by its name.
            space: the script's space. It is needed if it has a ``sample_from``.
            searcher: a new searcher with the script's arguments. It is needed if its class is your own.
            scheduler: a new scheduler with the script's arguments. It is needed if its class is your own, or if one of
                its arguments was a function.
            stop: the stop rule from now on. It is needed if the earlier one was a function.
            resources: the script's resources. They are needed if they were a function.
            max_trials: total number of trials, including earlier ones.
            run: the options of this run alone.

        Raises:
            ConfigurationError: the experiment does not exist, or a needed argument is missing.
            BrokerUnavailable: Redis can't be reached, is too old, or refuses the password.
        """
        say_in_one_line()
        given = attached(
            name,
            backend=backend,
            trainable=trainable,
            space=space,
            searcher=searcher,
            scheduler=scheduler,
            stop=stop,
            resources=resources,
            max_trials=max_trials,
            run=run,
        )
        try:
            return cls(**given)
        except BaseException:
            given["backend"].close()
            raise

    if not TYPE_CHECKING:
        __getattr__ = naming(OF_TUNERS)

    @property
    def name(self) -> str:
        """The experiment's name. A default name is reserved when this is first read."""
        if not self._settings.name:
            stem, store = default_stem(self._settings.spec), self._settings.checkpoints.store
            self._settings.take_name(self._deployment.new_name(stem, store=store, sleep=self._interrupts.sleep))
            self._opened.callback(release_folder, mqtune_home() / self._settings.name)
        return self._settings.name

    @property
    def folder(self) -> Path:
        """The experiment's folder on this machine."""
        return mqtune_home() / self.name

    # Running.

    @with_hints(ELSEWHERE)
    def run(self) -> Results:
        """Run the experiment to its end and return the results.

        If the experiment has ended already, this only reads the results. The first Ctrl-C (or SIGTERM) requeues running
        trials, saves everything and prints how to continue. The second one ends the process within a second, even if
        Redis doesn't answer. In both cases no report is lost, and RunInterrupted ends the script with exit code 130
        (143 after SIGTERM). In an interactive session, the first Ctrl-C returns the results so far instead.

        Raises:
            RunInterrupted: the run was interrupted. ``results()`` returns the results so far.
            BrokerUnavailable: Redis can't be reached, is too old, or refuses the password.
            NameTaken: another driver runs the experiment of this name, or that experiment has another definition.
            TrainableNotFound: the first trial could not be started on its worker.
            StoreUnavailable: the checkpoint store can't be reached or written, from here or from the first trial's
                worker.
            StoreMissing: a trial saved a folder, and there is no store.
            MetricMissing: the first report lacked the metric, or the scheduler's time. With
                ``metric_required="eventually"``: the first trial that ended had never reported the metric.
            ReportInvalid, ReportTooLarge: a trial failed with a report that can't be sent, before any trial had
                reported.
            UserCodeFailed: a scheduler, searcher or stop rule raised an error. Correct it, and run the same script to
                continue.
            DriverFenced: another driver took over while this one was frozen or cut off. That driver continues
                undisturbed.
        """
        try:
            if self._driver is None and not self._is_closed:
                # ``prepare`` may fork this process, and ``handled`` starts a thread.
                refuse_on_import()
                open_standard_streams()
                if self._deployment.has_own_worker:
                    self._deployment.prepare(self._settings, self.folder, self._opened)
            with self._interrupts.handled(self._kill_worker):
                results = self._run()
        except KeyboardInterrupt:
            if not self._interrupts.count:
                raise
            print(f"\n{self._how_to_resume()}", file=sys.stderr)
            raise RunInterrupted(self._interrupts.exit_code) from None
        if self._interrupts.count:
            print(f"\n{self._how_to_resume()}")
            if not _is_interactive():
                raise RunInterrupted(self._interrupts.exit_code)
        return results

    def _run(self) -> Results:
        try:
            self._open()
            while not self.is_finished and not self._interrupts.count:
                self.step()
            return self._end_run()
        except DriverFenced:
            # Another driver has the trials now.
            raise
        except BaseException:
            self._abort()
            raise
        finally:
            self.close()

    def step(self, block_s: float = STEP_S) -> None:
        """Start trials in free slots, wait up to *block_s* seconds for new events, and process them.

        Raises:
            MqtuneError: see ``run``.
        """
        driver = self._ensure_worker(self._open())
        driver.step(block_s)
        self._raise_failure(driver)

    def next_report(self, block_s: float = STEP_S) -> Report | None:
        """Step as far as the next report, and return it.

        Return None if the step ended without a report. Until the next call, a decision on the report's trial is
        journaled as made on this report, and the trial's later reports are ignored. In lockstep, the trial waits until
        the next call. Each report is returned once; reports that ``step`` has processed are not returned. In an
        experiment without a space, the next driver returns all reports again that follow this driver's last action.

        Raises:
            MqtuneError: see ``run``.
        """
        driver = self._ensure_worker(self._open())
        report = driver.next_report(block_s)
        if report is None:
            self._raise_failure(driver)
        return report

    @property
    def is_finished(self) -> bool:
        """Whether all trials have ended. Without a space, only after ``finish`` or a request to end."""
        return self._driver_or_open().is_finished

    def results(self) -> Results:
        """Return the results so far."""
        experiment = self._experiment
        return Results(experiment, self.folder, None if self._driver is None else self._driver.reader)

    def debug_string(self) -> str:
        """Return a few lines on the experiment's state. If no trial runs, they say why."""
        experiment = self._experiment
        counts = ", ".join(f"{number} {status.name}" for status, number in experiment.counts.items() if number)
        lines = [f"{self.name}: {counts or 'no trials'}; {counted(experiment.reports, 'report')}"]
        if (best := experiment.best) is not None:
            lines.append(f"best {experiment.metric}={best.best_value:.6g} in trial {best.id}: {best.config}")
        lines += [f"on the Pareto front: trial {trial.id}: {trial.config}" for trial in experiment.pareto_front]
        if self._driver is not None and self._driver.waiting_for:
            lines.append(self._driver.waiting_for)
        return "\n".join(lines)

    def stop_all(self, reason: str = "stopped by hand") -> None:
        """Tell all unfinished trials to stop, and start no others. They end during the next steps."""
        self._open().stop_all(reason, by="user")

    def finish(self, reason: str = "finished by hand") -> Results:
        """Stop all unfinished trials, wait for their ends, and return the results.

        The journal records that the experiment has finished.

        Raises:
            MqtuneError: see ``run``.
        """
        driver = self._open()
        driver.stop_all(reason, by="user")
        try:
            while not driver.is_finished:
                self.step()
        except MqtuneError:
            if driver.failure is not None:
                # After this error no driver can end the trials properly.
                self._abort()
            raise
        driver.end("finished", reason)
        return self._save(driver)

    def close(self) -> None:
        """Close all connections, and end a local worker and server.

        Running trials on a broker's workers continue. The results so far can still be read.
        """
        self._is_closed = True
        if not self._interrupts.is_urgent:
            self._journal_end()
            self._opened.close()
            return
        self._end_worker(kill=True)
        # A frozen or full Redis doesn't answer. It notices by itself that this process has exited.
        closing = threading.Thread(target=self._opened.close, name="mqtune-closing", daemon=True)
        closing.start()
        closing.join(AT_ONCE_S)

    # The driver, and the worker of this machine.

    def _open(self) -> Driver:
        """Return the driver. The first call connects and creates or replays the experiment."""
        if self._is_closed:
            named = f" with name={self._settings.name!r}" if self._settings.name else ""
            raise ConfigurationError(f"this tuner is closed; to continue the experiment, make another one{named}")
        if self._driver is None:
            refuse_on_import()
            open_standard_streams()
            self._is_opening = True
            try:
                place = self._deployment.open(self._settings, self.folder, self._opened, self._interrupts)
                self._opened.callback(self._end_worker)
                self._driver = driver = Driver(self._settings, place, driver_services)
                self._opened.callback(driver.close)
                driver.begin()
                self._ensure_worker(driver)
            except BaseException:
                self.close()
                raise
            finally:
                self._is_opening = False
        return self._driver

    def _driver_or_open(self) -> Driver:
        """Return the driver, even if this tuner is closed. The first call opens it."""
        return self._driver if self._driver is not None else self._open()

    @property
    def _experiment(self) -> Experiment:
        """The experiment. The first access opens the driver, unless this tuner is closed."""
        if self._driver is None and not self._is_opening and not self._is_closed:
            self._open()
        return self._settings.experiment() if self._driver is None else self._driver.experiment

    def _raise_failure(self, driver: Driver) -> None:
        """Raise the error that has ended the experiment or the local worker, if there is one."""
        if driver.failure is not None:
            raise driver.failure
        problem = self._worker.problem() if self._worker is not None else None
        if problem is not None:
            driver.lose_all()
            raise WorkerStartError(problem)

    def _ensure_worker(self, driver: Driver) -> Driver:
        """Start the local worker if there is one and trials are left. Return the driver."""
        if self._worker is None and not driver.is_finished:
            self._worker = driver.place.start_worker()
        return driver

    def _end_worker(self, *, kill: bool = False) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill() if kill else worker.stop()

    # Ending.

    def _end_run(self) -> Results:
        driver = self._open()
        interrupted = bool(self._interrupts.count)
        if interrupted:
            driver.hand_back("the driver was interrupted")
        outcome, reason = ("interrupted", "Ctrl-C") if interrupted else ("finished", driver.over)
        driver.end(outcome, reason)
        if self._worker is not None:
            # The worker ends while this process writes the results.
            self._worker.leave()
        results = self._save(driver)
        # The driver of an open experiment may have read entries that it has not applied.
        if driver.reader.is_taken_in and not self._settings.is_open:
            keep_whole_state(self.folder, driver.experiment, driver.cursor)
        return results

    def _journal_end(self) -> None:
        """Journal the outcome of an experiment that ``step`` has brought to its end."""
        driver = self._driver
        if driver is None or self._is_opening or not driver.is_finished or driver.experiment.outcome:
            return
        outcome, reason = ("finished", driver.over) if driver.failure is None else ("failed", str(driver.failure))
        # Without the lock or a server, the outcome can't be journaled.
        with contextlib.suppress(MqtuneError, OSError):
            driver.end(outcome, reason)
            self._save(driver)

    def _save(self, driver: Driver) -> Results:
        """Write the results into the experiment's folder, and return them."""
        results = self.results()
        try:
            driver.keep_best_dict()
            results.save()
        except BrokerUnavailable:
            raise
        except OSError as error:
            logger.warning(
                "the results of experiment %s can't be written to %s (%s): free disk space, then `mqtune drive %s` "
                "writes them",
                self.name,
                self.folder,
                error,
                self.name,
            )
        return results

    def _abort(self) -> None:
        """Requeue running trials and save the results so far, as far as possible after an error."""
        if self._driver is None or self._is_closed or self._interrupts.is_urgent:
            return
        try:
            self._driver.hand_back("the driver failed")
            self._driver.end("failed", str(self._driver.failure or "an error in the driver"))
            self.results().save()
        except (MqtuneError, OSError) as error:
            logger.warning("the experiment %s could not be closed properly: %s", self.name, error)

    def _kill_worker(self) -> str:
        """Kill the local worker, and return a message on how to resume. Any thread may call this."""
        self._end_worker(kill=True)
        return self._how_to_resume()

    def _how_to_resume(self) -> str:
        """Return a message that tells how to resume the interrupted run."""
        if self._driver is None:
            named = f"experiment {self._settings.name}" if self._settings.name else "the experiment"
            return f"Interrupted before {named} was opened, so nothing of it has changed. Run the script again."
        full = f" The disk of {self.folder} is full: free some space first." if _is_disk_full(self.folder) else ""
        drive = f"mqtune drive {self.name}"
        code = "script" if self._settings.cell is None else "cell"
        resume = f"To resume, run the {code} again with name={self.name!r}, or: {drive}"
        if self._settings.overwrites:
            resume = f"To resume: {drive}. The {code} would delete it and start over (overwrite=True)"
        return f"Interrupted. Progress is saved in {self.folder}. {resume}.{full}"


def _is_interactive() -> bool:
    """Whether this is an interactive Python session or a notebook, and not a script."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _is_disk_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _FULL_BELOW_BYTES
    except OSError:
        return False
