"""The tuner: what a driver script builds and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from mqtune.core.callback import Callback
from mqtune.core.experiment import Mode
from mqtune.core.resources import Resources
from mqtune.core.text import say_in_one_line
from mqtune.core.trial import Config
from mqtune.driver.attach import attached
from mqtune.driver.checkpoints import Deletes
from mqtune.driver.connect import place_of
from mqtune.driver.limits import FailFast
from mqtune.driver.retention import Retention
from mqtune.driver.running import Running
from mqtune.driver.screening import MetricFrom, OnOddReport
from mqtune.driver.settings import DRIVER_LOSS_GRACE_S, CodePolicy, KeepWorkingDir, Plan, Sync, WorkingDir
from mqtune.journal.base import LossPolicy
from mqtune.schedulers.base import Scheduler
from mqtune.search.base import Searcher
from mqtune.search.space import Space
from mqtune.trainable.spec import AnyTrainable

__all__ = ["Tuner"]


class Tuner(Running):
    """Tunes a trainable's config over the workers of a broker, or over this machine's cores and GPUs.

    The experiment is kept in the broker and in a folder (``~/mqtune/<name>``, or below ``$MQTUNE_HOME``). A run that
    was interrupted, by Ctrl-C, a crash or a power cut, goes on where it was when the same script runs again with the
    same *name*, or without the script by ``Tuner.attach`` and ``mqtune resume``. One driver at a time; without one, trials
    that run on a broker's workers go on.

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
        name: the experiment's name, by which the same script goes on with it; by default the trainable's with the time, so
            that each run is a new experiment.
        overwrite: whether an experiment that has the name is deleted first, with its results, logs and checkpoints; each run
            of the script then begins anew.
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
        ttl_s: for how long an attempt may run, in seconds; its worker stops it then, and its trial has failed.
        sync: "stream": reports flow, and a decision reaches its trial within milliseconds; "lockstep": each ``report``
            waits for the decision, so that no line of user code runs after a report that stops or pauses its trial.
        checkpoints: folder, or fsspec URL, of the checkpoint store, which this machine and all workers must reach; by
            default a folder of the experiment's if all runs on this machine, else none: then only dicts can be saved.
        retention: which checkpoints are kept; by default each trial's last and best.
        delete_checkpoints: which trials lose all their checkpoints when they end: False, none; "stopped", those that were
            stopped early, failed or abandoned; True, those that completed too; "all", even the best one, whose
            checkpoints stay otherwise. What another trial may still start from stays until it has.
        metric_from: "first": a first report without the metric, or without the time that the scheduler goes by, is a mistyped
            name, and ends the run at once; "later": such reports may come first. Once any report had it, others need not.
        on_odd_report: what becomes of a report whose metric is no number, or whose time is missing, no number or goes down:
            "warn": it counts as one without the metric, and that is said once for each trial and key; "fail": its trial fails.
        accept_no_report: whether a trial that ends without reporting the metric is completed, and not failed.
        pass_config: how a script gets its config: as "arguments", or as the path of one "json" file. With *checkpoints*, it
            also gets ``--st_checkpoint_dir``: a folder to start from, if it has something in it, and to save to.
        queue_trials: whether trials wait for workers that offer what they ask for, or InsufficientResources is raised; it is
            raised in any case for what this machine can't give when there is no broker.
        local_slots: without a broker, the number of trials at once on this machine; by default as many as there is room for.
        start_method: "fork" starts a trial in a millisecond from a process that has imported the trainable's module;
            "spawn" imports it anew for each trial, for libraries that can't be forked.
        reuse: whether a trial's process, with the instance of its class, stays for the next trial in its slot, for classes
            whose ``setup`` takes long: only one with a ``reset_config`` that returns True; see ``mqtune.Trainable``.
        working_dir: where trials run. "code": where their worker was started (without a broker: where the driver was), which
            all share, so that what they write there under one name overwrites each other's. "trial": each attempt in a
            folder of its own, which begins empty and is ``mqtune.get_context().folder``; what it reads from the code's
            folder it then names by an absolute path, such as one from ``__file__``.
        keep_working_dir: of which attempts that folder stays on its worker's machine, beside their output, if there is
            something in it: "always"; "failed", those that failed or were lost; or "never".
        code: what happens when code is not what it was when the experiment began: a worker's copy, or the script's, run again
            after a change. "warn": it is said, and recorded since when; "strict": such a worker runs none of its trials, and
            ``run`` raises CodeDiffers. While a driver runs, what is edited changes nothing: trials run the code as it was.
        on_driver_loss: what a broker's workers do when nobody drives the experiment any more, because its driver was killed or
            closed: "continue": nothing, running trials and those that wait in queues go on; "finish": running trials go on
            and nothing else starts; "stop": running trials are handed back, too, with a checkpoint where they can save one.
            A driver that comes later goes on in any case.
        driver_loss_grace_s: how long after that, in seconds; a killed driver counts as gone 20 s after its last sign.
        backend: where trials run instead of on workers: ``mqtune.Simulated(…)``.
        tags: names by which the experiment is found again, with ``mqtune list --tag``; by default those it has.
        notes: what there is to say about it; by default what it has.
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
        overwrite: bool = False,
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
        delete_checkpoints: Deletes = False,
        metric_from: MetricFrom = "first",
        on_odd_report: OnOddReport = "warn",
        accept_no_report: bool = False,
        pass_config: str = "arguments",  # noqa: S107 - no password
        queue_trials: bool = True,
        local_slots: int | None = None,
        start_method: str | None = None,
        reuse: bool = False,
        working_dir: WorkingDir = "code",
        keep_working_dir: KeepWorkingDir = "always",
        code: CodePolicy = "warn",
        on_driver_loss: LossPolicy = "continue",
        driver_loss_grace_s: float = DRIVER_LOSS_GRACE_S,
        backend: object = None,
        tags: Sequence[str] | None = None,
        notes: str | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> None:
        say_in_one_line()
        plan = Plan(
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
            overwrite=overwrite,
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
            metric_from=metric_from,
            on_odd_report=on_odd_report,
            tags=tags,
            notes=notes,
            accept_no_report=accept_no_report,
            pass_config=pass_config,
            pass_checkpoint_dir=checkpoints is not None,
            retention=retention,
            delete_checkpoints=delete_checkpoints,
            reuse=reuse,
            on_driver_loss=on_driver_loss,
            driver_loss_grace_s=driver_loss_grace_s,
            queue_trials=queue_trials,
            local_slots=local_slots,
            working_dir=working_dir,
            keep_working_dir=keep_working_dir,
            code=code,
        )
        place = place_of(
            backend=backend,
            broker=broker,
            local_slots=plan.local_slots,
            checkpoints=checkpoints,
            queue_trials=queue_trials,
        )
        super().__init__(plan, place, callbacks, progress=progress)

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        broker: str | None = None,
        trainable: AnyTrainable | None = None,
        space: Mapping[str, Any] | Space | None = None,
        searcher: Searcher | None = None,
        scheduler: Scheduler | None = None,
        stop: object = None,
        max_trials: int | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> Self:
        """Return a tuner that goes on with an experiment, without the script that began it.

        What the experiment is stands in Redis; for one that ran on this machine alone, in that of its folder. What is not
        given is as it was. Trials that run meanwhile run on; what an earlier driver decided and did not send is sent.

        Args:
            name: the experiment's.
            broker: URL of the Redis that has it; by default ``$MQTUNE_BROKER``, and without either this machine's own.
            trainable: as the script had it; it is not needed here, as workers know it by its name.
            space: as the script had it; needed where it has a ``sample_from``.
            searcher: the same again, at its beginning; needed where it is of a class of your own.
            scheduler: likewise, and where it was given a function.
            stop: a rule to go on with; needed where it was a function.
            max_trials: how many trials there are to be in all.
            callbacks: who is told what happens from now on.
            progress: whether to show how it goes.

        Raises:
            ConfigurationError: there is no such experiment, or something is needed that was not given.
            BrokerUnavailable: there is no Redis, it refuses the password, or is too old.
        """
        say_in_one_line()
        plan, place = attached(
            name,
            broker=broker,
            trainable=trainable,
            space=space,
            searcher=searcher,
            scheduler=scheduler,
            stop=stop,
            max_trials=max_trials,
        )
        tuner = cls.__new__(cls)
        Running.__init__(tuner, plan, place, callbacks, progress=progress)
        # What was connected to is let go of also by a tuner that never runs.
        tuner._opened.callback(place.let_go)
        return tuner
