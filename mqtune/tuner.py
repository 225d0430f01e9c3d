"""The tuner: the object that a driver script makes and runs, by itself or in a thread."""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from mqtune.backends.base import Backend
from mqtune.backends.local.worker import WorkerProcess
from mqtune.core.checks import given_of
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
from mqtune.core.resources import Resources
from mqtune.core.text import counted, say_in_one_line
from mqtune.core.trial import Config, Report, Trial, TrialId, TrialStatus, checked_notes, checked_tags
from mqtune.driver.driver import STEP_S, Driver
from mqtune.driver.setup.attach import attached
from mqtune.driver.setup.by_config import AnyResources
from mqtune.driver.setup.connect import Deployment, deployment_of
from mqtune.driver.setup.default_names import default_stem, release_folder
from mqtune.driver.setup.interrupts import AT_ONCE_S, Interrupts
from mqtune.driver.setup.options import ELSEWHERE, Checkpoints, Failures, Local, Process, RunOptions
from mqtune.driver.setup.settings import KnownTrainable, Settings
from mqtune.driver.trials import DrivenTrial, LocalSteering
from mqtune.driver.writing.actions import AnswerQuestion, next_trial_id
from mqtune.results.checkpoints import Origin
from mqtune.results.kept_state import keep_whole_state
from mqtune.results.results import Results
from mqtune.results.warm_start import WarmStart
from mqtune.schedulers.base import Scheduler
from mqtune.search.base import Searcher
from mqtune.search.space import Space
from mqtune.services.driver import CHECKS, driver_services, project_maker
from mqtune.trainable.spec import AnyTrainable, refuse_on_import

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: A disk with less room than this can't take what a server or a copy writes next.
_FULL_BELOW_BYTES: Final = 2**20


class Tuner:
    """Tunes a trainable's config over the workers of a broker, or over this machine's cores and GPUs.

    The experiment is kept in the broker and in a folder (``~/mqtune/<name>``, or below ``$MQTUNE_HOME``). After Ctrl-C, a
    crash or a power cut, the same script with the same *name* continues it, and so do ``Tuner.attach`` and ``mqtune drive``
    without the script. An experiment has one driver at a time. Trials on a broker's workers need none to run on.

    Args:
        trainable: a function of the config, at the top level of a module or script, that calls ``mqtune.report``; a
            subclass of ``mqtune.Trainable``; or a script or other executable, by its path or as a ``mqtune.Script``.
        space: the search space: a dict of domains such as ``mqtune.uniform(0, 1)``, constants, and dicts of them. Without
            one nothing is searched: another program adds trials, with any config, until ``finish``.
        metric: the key of the optimised value in the reports, or a list of several: each counts by itself, and
            ``Results.pareto_front`` has the trials that no other trial beats. A list may contain bounds on reported metrics,
            such as ``["loss", "latency <= 10"]``: a trial that violates one is never the best, and schedulers and models
            respect them. Only without a space may metric and *mode* be left out.
        mode: "min" or "max"; for several metrics a list with one for each, or one for all.
        max_trials: number of trials; by default the size of the grid, or 1 without one.
        searcher: proposes configs. The default is "tpe", a model, if Optuna is installed (extra ``optuna``), and "random" if it
            isn't, if the space has a grid, or if there are enough trials for each config. "ax" (extra ``ax``) is another model.
            ``mqtune.InitialPoints([…])`` tries given configs first, and ``mqtune.WarmStart([…])`` has a model learn from the
            trials of other experiments.
        scheduler: stops, or pauses, trials early; by default ``mqtune.ASHA(max_t)`` if *max_t* is given, else nothing.
        max_t: the last ``training_iteration`` of trials that report step by step; bad ones are stopped before.
        stop: ends a trial, or the experiment, before its time: a dict of metric to bound, a function of trial and
            report, or a rule such as ``mqtune.TargetReached(0.99) | mqtune.TimeLimit(3600)``; ``mqtune.TrialDiverged()`` ends
            trials whose metric is NaN or infinite.
        resources: the resources of each trial, or a function that returns them for a config. The driver calls it once for
            each config.
        backend: where trials run: the URL of the workers' Redis; ``mqtune.Local(slots=…)``: a server and a worker on
            this machine, which end with the run; ``mqtune.Simulated(…)``; or a backend of your own. By default
            ``$MQTUNE_BROKER``, and without that this machine. ``$MQTUNE_REDIS_URL`` names a server for it to take instead
            of one of its own.
        name: the experiment's name, by which the same script continues it; by default the script's and a number,
            such as ``digits-1``, so that each run is a new experiment. In a notebook it begins with the trainable's name.
        seed: for all random choices; drawn and kept with the experiment if left out. The same seed gives random search the
            same configs. A model's configs and a scheduler's decisions also depend on the order in which reports come, which
            on several slots is a matter of time. On one slot a slow model depends on time, too: if a suggestion takes longer
            than 0.1 s, the next one is worked out before the trial ends.
        failures: the handling of failed trials, unreadable reports and a lost driver.
        checkpoints: where checkpoints are stored, and which are kept.
        process: how a trial's process runs; ``mqtune.Process(bundle=".")`` brings your code to workers that take code.
        run: the options of this run alone: callbacks, progress, labels, the largest number of running trials, overwriting.

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
        # A connection that ``attach`` has made is closed also by a tuner that never runs.
        self._opened.callback(deployment.close)
        self._collected: list[Report] | None = None
        self._failures_told: set[TrialId] = set()

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

        Redis has the experiment's definition. For an experiment on this machine alone it is the Redis of its folder. Missing
        arguments are as they were. Running trials run on. Decisions that an earlier driver did not send are sent.

        Args:
            name: the experiment's.
            backend: URL of the Redis that has it; by default ``$MQTUNE_BROKER``, and without either this machine's own.
            trainable: as the script had it; it is not needed here, as workers know it by its name.
            space: as the script had it; needed where it has a ``sample_from``.
            searcher: the same again, at its beginning; needed where it is of a class of your own.
            scheduler: likewise, and where it was given a function.
            stop: the rule from now on; needed where it was a function.
            resources: as the script had it; needed where it was a function.
            max_trials: how many trials there are to be in all.
            run: the options of this run alone.

        Raises:
            ConfigurationError: there is no such experiment, or something is needed that was not given.
            BrokerUnavailable: there is no Redis, it refuses the password, or is too old.
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
        """The experiment's name.

        A default name is taken when it is first needed, from the server, or from this machine.
        """
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
        """Run to the end and return the results; an experiment that is complete is only read.

        The first Ctrl-C (or SIGTERM) requeues running trials, saves everything and prints how to continue; the second ends
        within a second, even without Redis. Either way no report is lost, and RunInterrupted ends the script with exit code
        130 (143 after SIGTERM). In an interactive session the first returns the results so far instead.

        Raises:
            RunInterrupted: it was interrupted; ``results()`` returns the results so far.
            BrokerUnavailable: there is no Redis, it refuses the password, or is too old.
            NameTaken: a living driver, or an experiment with another definition, has the name.
            TrainableNotFound: the first trial could not be started on its worker.
            StoreUnavailable: the checkpoint store can't be reached or written, from here or from the first trial's worker.
            StoreMissing: a trial saved a folder, and there is no store.
            MetricMissing: the first report lacked the metric, or the time that the scheduler goes by; or, with
                ``metric_required="eventually"``, the first trial that ended had never reported the metric.
            ReportInvalid, ReportTooLarge: a trial failed with a report that can't be sent, before any trial had reported.
            UserCodeFailed: a scheduler, searcher or stop rule raised an error. Once it is corrected, the same script continues.
            DriverFenced: another driver took over while this one was frozen or cut off. The other one is not disturbed.
        """
        try:
            if self._driver is None and not self._is_closed:
                # Before the thread that watches for signals.
                refuse_on_import()
                open_standard_streams()
                if self._deployment.has_own_worker:
                    self._deployment.prepare(self._settings, self.folder, self._opened)
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
            self._open()
            while not self.is_finished and not self._interrupts.count:
                self.step()
            return self._end()
        except DriverFenced:
            # Its trials are another driver's now.
            raise
        except BaseException:
            self._abort()
            raise
        finally:
            self.close()

    def step(self, block_s: float = STEP_S) -> None:
        """Start trials in free slots, wait up to *block_s* seconds for news, and act on them.

        Raises:
            MqtuneError: as ``run``.
        """
        driver = self._have_worker(self._open())
        driver.step(block_s)
        self._check(driver)

    def next_report(self, block_s: float = STEP_S) -> Report | None:
        """Proceed as ``step`` does, but only to the next report, and return that.

        It is None if another event happened.

        Until the next call the driver stands at this report: a decision on its trial meanwhile counts as taken because of
        it, and leaves out the trial's later reports. In lockstep the trial continues with the next call. Each report is
        returned once. In an experiment without a space, the next driver returns those again that came after the last action
        of this one. Reports that ``step`` has processed are not returned.

        Raises:
            MqtuneError: as ``run``.
        """
        driver = self._have_worker(self._open())
        report = driver.next_report(block_s)
        if report is None:
            self._check(driver)
        return report

    def reports_ahead(self, count: int) -> list[Report]:
        """Return up to *count* reports that ``next_report`` returns next, without acting on them.

        They came with the report at which the driver stands. There is no wait, so the list may be empty. After a decision on
        one of their trials, ``next_report`` leaves out its reports.
        """
        return self._open().reports_ahead(count)

    def answer(self, report: Report, answer: object) -> None:
        """Answer the question that a trial has asked with this report by ``mqtune.ask``.

        Doing it again does no harm.

        Args:
            report: as ``next_report`` has returned it.
            answer: plain values, of some 2 KB at most.

        Raises:
            ConfigurationError: the answer is too long.
            TypeError: it can't be sent.
        """
        self._open().carry_out(AnswerQuestion(report, answer))

    @property
    def is_finished(self) -> bool:
        """Whether every trial has ended and no other will start.

        Without a space only after ``finish``, or a request to end.
        """
        return self._look().is_finished

    def results(self) -> Results:
        """Return the results so far."""
        experiment = self._experiment
        return Results(experiment, self.folder, None if self._driver is None else self._driver.reader)

    def debug_string(self) -> str:
        """Return a few lines on the state of the experiment, and why nothing runs if nothing does."""
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
        """Stop all unfinished trials and start no others.

        They end within the next steps.
        """
        self._open().stop_all(reason, by="user")

    def finish(self, reason: str = "finished by hand") -> Results:
        """Stop all unfinished trials, wait for their end and return the results.

        The journal records that the experiment has finished.

        Raises:
            MqtuneError: as ``run``.
        """
        driver = self._open()
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

    def close(self) -> None:
        """Close all connections; a local worker and server end.

        Running trials on a broker's workers continue.

        The results until then can still be read.
        """
        self._is_closed = True
        if not self._interrupts.is_urgent:
            self._say_end()
            self._opened.close()
            return
        self._end_worker(kill=True)
        # A Redis that is frozen or full doesn't answer, and finds out by itself that this process is gone.
        closing = threading.Thread(target=self._opened.close, name="mqtune-closing", daemon=True)
        closing.start()
        closing.join(AT_ONCE_S)

    # The driver, and the worker of this machine.

    def _open(self) -> Driver:
        """Connect, take the lock, and create or replay the experiment; only once."""
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
                self._have_worker(driver)
            except BaseException:
                self.close()
                raise
            finally:
                self._is_opening = False
        return self._driver

    def _look(self) -> Driver:
        """Return the driver, also of a closed tuner."""
        return self._driver if self._driver is not None else self._open()

    @property
    def _experiment(self) -> Experiment:
        """The experiment. Connect if that was not done yet."""
        if self._driver is None and not self._is_opening and not self._is_closed:
            self._open()
        return self._settings.experiment() if self._driver is None else self._driver.experiment

    def _check(self, driver: Driver) -> None:
        """Raise the error with which the experiment has failed, or this machine's worker."""
        if driver.failure is not None:
            raise driver.failure
        problem = self._worker.problem() if self._worker is not None else None
        if problem is not None:
            driver.lose_all()
            raise WorkerStartError(problem)

    def _have_worker(self, driver: Driver) -> Driver:
        """Start this machine's worker, if there is to be one, once it has something to do.

        Return the driver.
        """
        if self._worker is None and not driver.is_finished:
            self._worker = driver.place.start_worker()
        return driver

    def _end_worker(self, *, kill: bool = False) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill() if kill else worker.stop()

    # Ending.

    def _end(self) -> Results:
        driver = self._open()
        interrupted = bool(self._interrupts.count)
        if interrupted:
            driver.hand_back("the driver was interrupted")
        outcome, reason = ("interrupted", "Ctrl-C") if interrupted else ("finished", driver.over)
        driver.end(outcome, reason)
        if self._worker is not None:
            # It ends while the results are written.
            self._worker.leave()
        results = self._save(driver)
        # The driver of an open experiment may have read entries that it has not applied.
        if driver.reader.is_taken_in and not self._settings.is_open:
            keep_whole_state(self.folder, driver.experiment, driver.cursor)
        return results

    def _say_end(self) -> None:
        """Journal that the experiment has ended, or failed, if ``step`` drove it to its end."""
        driver = self._driver
        if driver is None or self._is_opening or not driver.is_finished or driver.experiment.outcome:
            return
        outcome, reason = ("finished", driver.over) if driver.failure is None else ("failed", str(driver.failure))
        # Without the lock, or a server, there is nothing to say any more.
        with contextlib.suppress(MqtuneError, OSError):
            driver.end(outcome, reason)
            self._save(driver)

    def _save(self, driver: Driver) -> Results:
        """Write the results into the folder, and return them."""
        results = self.results()
        try:
            driver.keep_best_dict()
            results.save()
        except BrokerUnavailable:
            raise
        except OSError as error:
            logger.warning(
                "the results of experiment %s can't be written to %s (%s): make room, and `mqtune drive %s` writes "
                "them",
                self.name,
                self.folder,
                error,
                self.name,
            )
        return results

    def _abort(self) -> None:
        """After an error, requeue running trials as far as possible, and save the results so far."""
        if self._driver is None or self._is_closed or self._interrupts.is_urgent:
            return
        try:
            self._driver.hand_back("the driver failed")
            self._driver.end("failed", str(self._driver.failure or "an error in the driver"))
            self.results().save()
        except (MqtuneError, OSError) as error:
            logger.warning("the experiment %s could not be closed properly: %s", self.name, error)

    def _end_at_once(self) -> str:
        """Kill the local worker, from any thread, and return the text to print."""
        self._end_worker(kill=True)
        return self._how_to_go_on()

    def _how_to_go_on(self) -> str:
        """Return how a person who has interrupted the run can continue it."""
        if self._driver is None:
            named = f"experiment {self._settings.name}" if self._settings.name else "the experiment"
            return f"Interrupted before {named} was opened, so nothing of it has changed. Run the script again."
        full = f" The disk of {self.folder} is full: make room first." if _is_full(self.folder) else ""
        drive = f"mqtune drive {self.name}"
        code = "script" if self._settings.cell is None else "cell"
        resume = f"To resume, run the {code} again (name={self.name!r}), or: {drive}"
        if self._settings.overwrites:
            resume = f"To resume: {drive}. The {code} would delete it and start over (overwrite=True)"
        return f"Interrupted. Progress is saved in {self.folder}. {resume}.{full}"

    # Trials.

    def trial(self, trial: Trial | str) -> DrivenTrial:
        """Return a handle on a trial, by its id, which steers the trial and reads its output.

        Raises:
            ConfigurationError: there is no such trial.
        """
        handle = DrivenTrial(trial.id if isinstance(trial, Trial) else trial, self._open, self._look)
        _ = handle.record
        return handle

    def add(
        self,
        config: Config,
        *,
        source: Trial | str = "",
        checkpoint: Origin | None = None,
        timeout_s: float | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
        key: str = "",
    ) -> Trial:
        """Stage a new trial now, whether or not a slot is free, and return it.

        Missing values of its config are sampled.

        Args:
            config: its config, or a part of it.
            source: a trial from whose checkpoint, as of now, it starts.
            checkpoint: "newest", the default; "best" of the kept ones, and without *source* the best trial's; the id of any
                kept checkpoint; or, without *source*, the path of a folder on this machine. That is copied into the
                experiment's store and becomes the trial's first checkpoint. One that lies in another experiment's store, or
                was fetched from there, keeps its counters.
            timeout_s: how long an attempt of it may run, in seconds; by default as ``Process(timeout_s=…)`` says.
            tags: names by which it is found again, as ``Results.find`` does.
            notes: a text about it.
            key: a name of your own for it, which is journaled. If the experiment has a trial with this key, that trial is
                returned, and nothing starts. This also holds under a later driver.

        Raises:
            SpaceError: the config does not fit the space.
            ConfigurationError: there is no such checkpoint, tags or notes are invalid, or there is no store that a folder
                could be copied into.
            StoreUnavailable: the store can't be reached or written.
        """
        driver = self._open()
        if (known := self.find(key)) is not None:
            return known
        new = next_trial_id(driver.experiment)
        from_trial = source.id if isinstance(source, Trial) else source
        arguments: dict[str, object] = {
            "config": self._settings.space.complete(
                config, random.Random(f"{driver.place.definition['seed']}:{int(new)}")
            ),
            "tags": checked_tags(tags),
            "notes": checked_notes(notes),
            **given_of(source=from_trial, checkpoint=checkpoint, timeout_s=timeout_s, key=key),
        }
        brought = LocalSteering(self._open).bring("add", new, arguments)
        return driver.requests.start(arguments, brought=brought)

    def ask(
        self,
        config: Config | None = None,
        *,
        timeout_s: float | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
        key: str = "",
    ) -> Trial:
        """Begin a trial that you evaluate outside, without a worker, and return it with its config.

        See ``ExperimentHandle.ask``.

        While the searcher works out its config, this proceeds as ``step`` does.

        Raises:
            SpaceError: the config does not fit the space.
            ConfigurationError: the searcher has no other config, ``max_trials`` have begun, or the experiment ends.
        """
        given = given_of(config=config, timeout_s=timeout_s, notes=notes, key=key, tags=list(tags))
        return self._take("ask", "", given)

    def tell(
        self,
        trial: Trial | str | Mapping[str, object],
        metrics: Mapping[str, object],
        *,
        ends: bool = True,
        tags: Sequence[str] = (),
        notes: str = "",
        key: str = "",
    ) -> Trial:
        """Tell a result that was found outside, of a trial that was asked for, or of any config.

        See ``ExperimentHandle.tell``.

        The trial is returned: one whose status is not RUNNING is not told any more.

        Raises:
            SpaceError: the config is not of the space.
            ConfigurationError: the trial was not asked for, or a metric is missing.
            InvalidTransition: the trial has ended, or is paused.
        """
        config = None if isinstance(trial, Trial | str) else dict(trial)
        id_ = trial.id if isinstance(trial, Trial) else trial if isinstance(trial, str) else ""
        given = given_of(metrics=dict(metrics), ends=ends, config=config, notes=notes, key=key, tags=list(tags))
        return self._take("tell", id_, given)

    def _take(self, action: str, trial: str, arguments: dict[str, object]) -> Trial:
        driver = self._open()
        while (changed := driver.requests.take(action, trial, arguments)) is None:
            self.step()
        return changed

    def get_trials(self, *statuses: TrialStatus) -> list[Trial]:
        """Return all trials, or those with these statuses, in the order of staging. Only read them."""
        trials = list(self._experiment.trials.values())
        return [trial for trial in trials if trial.status in statuses] if statuses else trials

    def find(self, key: str) -> Trial | None:
        """Return the trial that was added with this key, or None."""
        experiment = self._experiment
        known = experiment.keys.get(key)
        return None if known is None else experiment.trials[known]

    @property
    def busy_trials(self) -> list[Trial]:
        """The trials that hold a place: queued, running, or told to end and not gone yet."""
        return [trial for trial in self.get_trials() if trial.is_busy]

    @property
    def running_trials(self) -> list[Trial]:
        """The trials that run."""
        return self.get_trials(TrialStatus.RUNNING)

    def new_reports(self) -> list[Report]:
        """Return the reports since this was last called, first all.

        They are ordered by time, and by sequence within a trial.

        Reports that came after a decision on their trial are left out; the results keep them, marked.
        """
        if self._collected is None:
            self._collected = []
            self.listen(self._collected.append)
        reports = sorted(self._collected, key=lambda report: report.timestamp)
        self._collected.clear()
        return reports

    def listen(self, listener: Callable[[Report], object]) -> None:
        """Call *listener* with each report that counts: now with all so far, later with new ones.

        It has all reports of a trial before the trial is seen to have ended.
        """
        driver = self._look()
        # The copy lacks the newest decisions, but the attempt counts the accepted reports.
        accepted = {(trial.id, a.number): a.reports for trial in self.get_trials() for a in trial.attempts}
        for report in self.results().reports():
            if report.sequence <= accepted[report.trial, report.attempt]:
                listener(Report(*report[:-1]))
        driver.listen_to_reports(lambda _, report: listener(report))

    def next_failed_trial(self) -> Trial | None:
        """Return the next trial that failed and was not returned before, or None."""
        for trial in self._look().experiment.trials.values():
            if trial.status is TrialStatus.FAILED and trial.id not in self._failures_told:
                self._failures_told.add(trial.id)
                return trial
        return None

    def annotate(self, *, tags: Sequence[str] | None = None, notes: str | None = None) -> None:
        """Replace the tags or the notes of the experiment.

        An argument that is left out changes nothing.

        Raises:
            ConfigurationError: they are no tags, or no notes.
        """
        driver = self._open()
        driver.label(None, driver.experiment.labels.changed(tags, notes))

    # Where it runs.

    @property
    def entry_point(self) -> Path:
        """The file that holds the trainable, on this machine."""
        return self._settings.spec.locate(self._settings.code_root)

    @property
    def slots(self) -> int:
        """How many slots fit what a trial asks for, free or not."""
        return self._look().look_at_fleet().slots

    @property
    def free_slots(self) -> int:
        """Number of free slots, as of some seconds ago.

        Slots that trials of this experiment have or wait for don't count, nor do slots of other experiments.

        Where trials ask for resources by their configs, other experiments don't count.
        """
        fleet, settings = self._look().look_at_fleet(), self._settings
        return (
            fleet.free(settings.expected[0]) if settings.asks is None else max(0, fleet.slots - self._experiment.live)
        )

    def has_resources(self, resources: Resources) -> bool:
        """Whether a slot that is free, as ``free_slots`` counts, offers this.

        ``resource_string`` tells what all slots offer.
        """
        return self._look().look_at_fleet().free(resources) > 0

    def resource_string(self) -> str:
        """Return what all slots offer, for people."""
        return self._look().backend.resource_string()

    def has_gpus(self) -> bool | None:
        """Whether any slot has a GPU; None when there is no slot to ask."""
        return self._look().backend.has_gpus()


def _is_interactive() -> bool:
    """Whether a person types the next line, in Python or in a notebook.

    A script would go on as if all were well.
    """
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _FULL_BELOW_BYTES
    except OSError:
        return False
