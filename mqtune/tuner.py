"""The tuner: what a driver script builds and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self

from mqtune.backends.base import Backend
from mqtune.core.experiment import Mode
from mqtune.core.resources import Resources
from mqtune.core.text import say_in_one_line
from mqtune.driver.attach import attached
from mqtune.driver.connect import Deployment, deployment_of
from mqtune.driver.running import Running
from mqtune.driver.settings import Checkpoints, Failures, KnownTrainable, Local, Process, Run, Settings
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
        max_trials: number of trials; by default the size of the grid, or 1 without one.
        searcher: proposes configs; by default a random one over the space, grid entries included.
            ``mqtune.PointsFirst([…])`` tries given configs before.
        scheduler: stops, or pauses, trials early; by default none is.
        stop: ends a trial, or the experiment, before its time: a dict of metric to bound, a function of trial and
            report, or a rule such as ``mqtune.TargetReached(0.99) | mqtune.TimeLimit(3600)``.
        resources: what each trial gets.
        backend: where trials run: the URL of the Redis that workers use; ``mqtune.Local(slots=…)``: a server and a worker on
            this machine, which end with the run; ``mqtune.Simulated(…)``; or a backend of your own. By default
            ``$MQTUNE_BROKER``, and without that this machine. ``$MQTUNE_REDIS_URL`` names a server for it to take instead
            of one of its own.
        name: the experiment's name, by which the same script goes on with it; by default the trainable's with the time, so
            that each run is a new experiment.
        seed: for everything that is random; drawn and kept with the experiment if left out.
        failures: what happens when a trial fails, a report can't be read, or the driver is lost.
        checkpoints: where checkpoints are stored, and which are kept.
        process: how a trial's process runs.
        run: what belongs to this run alone: callbacks, progress, labels, the most trials at once, overwriting.

    Raises:
        ConfigurationError: an argument is invalid. Nothing was started.
    """

    def __init__(
        self,
        trainable: AnyTrainable | KnownTrainable,
        space: Mapping[str, Any] | Space,
        *,
        metric: str,
        mode: Mode,
        max_trials: int | None = None,
        searcher: Searcher | None = None,
        scheduler: Scheduler | None = None,
        stop: object = None,
        resources: Resources | None = None,
        backend: str | Local | Backend | Deployment | None = None,
        name: str | None = None,
        seed: int | None = None,
        failures: Failures = Failures(),
        checkpoints: Checkpoints = Checkpoints(),
        process: Process = Process(),
        run: Run = Run(),
    ) -> None:
        say_in_one_line()
        deployment = deployment_of(backend, checkpoints)
        settings = Settings(
            trainable=trainable,
            space=space,
            metric=metric,
            mode=mode,
            max_trials=max_trials,
            searcher=searcher,
            scheduler=scheduler,
            stop=stop,
            resources=resources,
            backend=deployment,
            name=name,
            seed=seed,
            failures=failures,
            checkpoints=checkpoints,
            process=process,
            run=run,
        )
        super().__init__(settings, deployment)

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        backend: str | None = None,
        trainable: AnyTrainable | None = None,
        space: Mapping[str, Any] | Space | None = None,
        searcher: Searcher | None = None,
        scheduler: Scheduler | None = None,
        stop: object = None,
        max_trials: int | None = None,
        run: Run = Run(),
    ) -> Self:
        """Return a tuner that goes on with an experiment, without the script that began it.

        What the experiment is stands in Redis; for one that ran on this machine alone, in that of its folder. What is not
        given is as it was. Trials that run meanwhile run on; what an earlier driver decided and did not send is sent.

        Args:
            name: the experiment's.
            backend: URL of the Redis that has it; by default ``$MQTUNE_BROKER``, and without either this machine's own.
            trainable: as the script had it; it is not needed here, as workers know it by its name.
            space: as the script had it; needed where it has a ``sample_from``.
            searcher: the same again, at its beginning; needed where it is of a class of your own.
            scheduler: likewise, and where it was given a function.
            stop: a rule to go on with; needed where it was a function.
            max_trials: how many trials there are to be in all.
            run: what belongs to this run alone.

        Raises:
            ConfigurationError: there is no such experiment, or something is needed that was not given.
            BrokerUnavailable: there is no Redis, it refuses the password, or is too old.
        """
        say_in_one_line()
        settings = attached(
            name,
            backend=backend,
            trainable=trainable,
            space=space,
            searcher=searcher,
            scheduler=scheduler,
            stop=stop,
            max_trials=max_trials,
            run=run,
        )
        return cls(**{each.name: getattr(settings, each.name) for each in fields(settings)})
