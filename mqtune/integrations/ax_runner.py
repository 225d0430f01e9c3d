"""Ax's own loops over mqtune's workers; needs the extra ``ax``."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from mqtune import (
    BackgroundTuner,
    Callback,
    Checkpoints,
    Failures,
    Local,
    Process,
    Resources,
    RunOptions,
    TrialStatus,
    Tuner,
)
from mqtune.extend import (
    ITERATION,
    AnyTrainable,
    Backend,
    ConfigurationError,
    InvalidTransition,
    KnownTrainable,
    MqtuneError,
    Report,
    TrainableSpec,
    Trial,
    install_command,
    is_number,
    redact,
)

try:
    from ax.core.arm import Arm
    from ax.core.base_trial import BaseTrial
    from ax.core.batch_trial import BatchTrial
    from ax.core.data import Data, DataRow
    from ax.core.experiment import Experiment
    from ax.core.map_metric import MapMetric
    from ax.core.metric import Metric, MetricFetchE, MetricFetchResult
    from ax.core.runner import Runner
    from ax.core.trial_status import TrialStatus as Status
    from ax.orchestration.orchestrator import OrchestratorInternalError
    from ax.storage.json_store.registry import (
        CORE_CLASS_DECODER_REGISTRY,
        CORE_CLASS_ENCODER_REGISTRY,
        CORE_DECODER_REGISTRY,
        CORE_ENCODER_REGISTRY,
    )
    from ax.storage.registry_bundle import RegistryBundle, RegistryBundleBase
    from ax.utils.common.constants import Keys
    from ax.utils.common.result import Err, Ok
except ImportError as error:
    raise ConfigurationError(f"Ax can't be imported ({error}); {install_command('ax')}") from error

#: What a trial that has ended is for Ax; any other one is RUNNING, also while it waits in a queue or is paused: Ax's loops end
#: while trials are STAGED, and know no pause.
_STATUSES: Final = {
    TrialStatus.COMPLETED: Status.COMPLETED,
    TrialStatus.EARLY_STOPPED: Status.EARLY_STOPPED,
    TrialStatus.FAILED: Status.FAILED,
    TrialStatus.ABANDONED: Status.ABANDONED,
}
#: Of a batch's arms the first of these that any has is the batch's: it runs while one runs, and completes where one has.
_STRONGEST_FIRST: Final = (
    Status.RUNNING,
    Status.COMPLETED,
    Status.EARLY_STOPPED,
    Status.FAILED,
    Status.ABANDONED,
)
#: What an arm of a batch that ended so is worth to its model.
_WORTHLESS: Final = (Status.FAILED, Status.ABANDONED)
#: How much of a traceback Ax is told: it keeps 1,000 characters, of which the last lines say most.
_ERROR_CHARS: Final = 800
#: The part of an experiment's name that Ax's may take, behind which is the time that tells it from others.
_NAME_CHARS: Final = 60
_GROUPS: Final = {"resources": Resources, "failures": Failures, "checkpoints": Checkpoints, "process": Process}

#: How long nothing may run before it is said why: longer than a local worker takes to start.
_IDLE_S: Final = 10.0

logger = logging.getLogger(__name__)

#: What drives the experiments of this process, by backend and name: runners that are equal, such as copies that Ax makes,
#: share it, as an experiment has one driver.
_driven: dict[tuple[str, str], BackgroundTuner] = {}


class MqtuneRunner(Runner):
    """Runs Ax's trials on mqtune's workers, under Ax's own ``Orchestrator`` or ``Client.run_trials``.

    Each arm is a trial of an mqtune experiment, which a thread of this process drives: polls look at what that has taken in, and
    ask no server. A trial is RUNNING for Ax from when it is in a queue, also while it is paused, waits for another
    worker or its server is away; how many may wait is ``OrchestratorOptions.max_pending_trials``. Its status at mqtune, and
    when it began, are in its ``run_metadata``.

    A trial that is run again, because Ax tries again or was loaded from before, is the one that is there, if its parameters
    are the same; one that Ax has forgotten, and has put another in the place of, is abandoned. After five minutes without its server, and
    after other errors, polls raise OrchestratorInternalError, by which Ax's loop ends and no trial does: run it again.

    It is a context manager that closes what it has opened. Requires ax-platform 1.3 or later.

    Args:
        trainable: as for ``mqtune.Tuner``; it is called with an arm's parameters.
        backend: likewise. One with a password is not saved with Ax's experiment: give it as ``$MQTUNE_BROKER``.
        name: the mqtune experiment's name; by default made of the name and the creation time of Ax's, and so the same
            when that is loaded.
        resources: what each trial gets.
        failures: as for ``mqtune.Tuner``.
        checkpoints: likewise.
        process: likewise.
    """

    def __init__(
        self,
        trainable: AnyTrainable | KnownTrainable,
        *,
        backend: str | Local | Backend | None = None,
        name: str | None = None,
        resources: Resources | None = None,
        failures: Failures = Failures(),
        checkpoints: Checkpoints = Checkpoints(),
        process: Process = Process(),
    ) -> None:
        self.trainable = trainable
        self.backend = backend
        self.name = name
        self.resources = resources
        self.failures = failures
        self.checkpoints = checkpoints
        self.process = process
        #: Those of the experiments that this runner has opened.
        self._places: set[tuple[str, str]] = set()

    # What Ax calls.

    @property
    def run_metadata_report_keys(self) -> list[str]:
        """What is worth showing of ``run_metadata``."""
        return ["mqtune_experiment", "mqtune_trials"]

    def run(self, trial: BaseTrial) -> dict[str, Any]:
        """Have a trial run and return where; as ``run_multiple``."""
        return self.run_multiple([trial])[trial.index]

    def run_multiple(self, trials: Iterable[BaseTrial]) -> dict[int, dict[str, Any]]:
        """Have trials run and return where; those that run already go on.

        Raises:
            SpaceError: a parameter can't be sent to a worker.
            MqtuneError: as ``Tuner.run``, when it connects.
        """
        wanted = list(trials)
        if not wanted:
            return {}
        driven = self.driven(wanted[0].experiment)
        return driven.do(lambda tuner: {trial.index: self._run(tuner, trial) for trial in wanted})

    def _run(self, tuner: Tuner, trial: BaseTrial) -> dict[str, Any]:
        keys = {arm.name: _key(trial, arm) for arm in trial.arms}
        group = _group(trial)
        for each in tuner.get_trials():
            if each.key.startswith(group) and each.key not in keys.values() and not each.status.is_terminal:
                tuner.trial(each).abandon(
                    f"Ax's experiment was loaded from before, and has another trial {trial.index}"
                )
        notes = f"of Ax's experiment {trial.experiment.name}" if trial.experiment.has_name else ""
        added = {
            arm.name: tuner.add(arm.parameters, key=keys[arm.name], tags=[f"ax-{trial.index}"], notes=notes).id
            for arm in trial.arms
        }
        return {"mqtune_experiment": tuner.name, "mqtune_trials": added}

    def poll_trial_status(self, trials: Iterable[BaseTrial]) -> dict[Status, set[int]]:
        """Return the trials' indices by their statuses, those that have ended for Ax left out.

        Data of trials that fail or are stopped are fetched before: Ax fetches only those of others.

        Raises:
            OrchestratorInternalError: the experiment can't be driven any more.
        """
        found: dict[Status, set[int]] = defaultdict(set)
        for trial in trials:
            if not trial.status.is_terminal:
                found[self._poll(trial)].add(trial.index)
        return dict(found)

    def _poll(self, trial: BaseTrial) -> Status:
        try:
            arms = self.arms(trial)
        except Exception as error:
            # Ax abandons trials whose poll fails in any other way.
            raise OrchestratorInternalError(f"{type(error).__name__}: {error}") from error
        statuses = {name: status_of(each) for name, each in arms.items()}
        status = min(statuses.values(), key=_STRONGEST_FIRST.index)
        known = [each for each in arms.values() if each is not None]
        began = [began for each in known if (began := each.attempts[0].started_at) is not None]
        trial.update_run_metadata(
            {
                "mqtune_status": ", ".join(dict.fromkeys(each.status.name for each in known)),
                **({Keys.START_TIME_STR: min(began)} if began else {}),
            }
        )
        if status in (Status.EARLY_STOPPED, *_WORTHLESS):
            trial.fetch_data_results()
        if status is not Status.RUNNING and isinstance(trial, BatchTrial):
            for name, each in statuses.items():
                if each in _WORTHLESS:
                    trial.mark_arm_abandoned(name, why(arms[name]))
        return status

    def poll_exception(self, trial: BaseTrial) -> str:
        """Return why a trial has failed, or was abandoned, with the end of its traceback."""
        reasons = {name: why(each) for name, each in self.arms(trial).items()}
        return next(iter(reasons.values())) if len(reasons) == 1 else "\n".join(f"{k}: {v}" for k, v in reasons.items())

    def stop(self, trial: BaseTrial, reason: str | None = None) -> dict[str, Any]:
        """Stop a trial, of which all that it has reported until now is fetched; what has ended stays as it is."""
        driven = self.driven(trial.experiment)
        stopped = [
            each.id for each in self.arms(trial).values() if each is not None and stop_trial(driven, each, reason)
        ]
        trial.fetch_data_results()
        return {"mqtune_stopped": stopped}

    def clone(self) -> Self:
        """Return a copy, which shares the experiments that are open."""
        return copy.copy(self)

    # What Ax saves.

    @classmethod
    def serialize_init_args(cls, obj: Any) -> dict[str, Any]:
        """Return the arguments as plain values; the trainable by its name."""
        known = obj.trainable
        spec, code_root = known[:2] if isinstance(known, KnownTrainable) else TrainableSpec.of(known)
        return {
            "trainable": {**spec.encode(), "code_root": str(code_root)},
            "backend": _without_password(obj.backend),
            "name": obj.name,
            **{name: _plain(getattr(obj, name)) for name in _GROUPS},
        }

    @classmethod
    def deserialize_init_args(cls, args: dict[str, Any], *_: object, **__: object) -> dict[str, Any]:
        """Return the arguments again."""
        trainable, backend = args["trainable"], args["backend"]
        return {
            "trainable": KnownTrainable(TrainableSpec.decode(trainable), Path(trainable["code_root"])),
            "backend": Local(**backend) if isinstance(backend, dict) else backend,
            "name": args["name"],
            **{name: group(**args[name]) for name, group in _GROUPS.items() if args[name] is not None},
        }

    # What users call.

    def stop_all(self, experiment: Experiment, reason: str = "stopped by hand") -> None:
        """Stop all trials of one of Ax's experiments, as after a timeout of its loop: Ax leaves them running."""
        for trial in experiment.trials.values():
            if not trial.status.is_terminal and not trial.status.is_candidate:
                self.stop(trial, reason)

    def close(self) -> None:
        """Close the connections; on a broker's workers trials go on, and a later poll opens them again.

        An experiment of which no trial runs has finished, until another one is added.
        """
        for place in self._places:
            driven = _driven.pop(place, None)
            if driven is not None:
                # Without its server nothing can be said any more.
                with contextlib.suppress(MqtuneError):
                    driven.do(_finish_if_idle)
                driven.close()
        self._places.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The experiment.

    def driven(self, experiment: Experiment) -> BackgroundTuner:
        """Return what drives the mqtune experiment of one of Ax's; it is opened if need be.

        Raises:
            Exception: what has ended it, once; the next call opens it again.
        """
        backend = self.backend or os.environ.get("MQTUNE_BROKER")
        place = (repr(backend), self.name or _name(experiment))
        driven = _driven.get(place)
        if driven is None:
            driven = _driven[place] = BackgroundTuner(lambda: self._tuner(place[1]))
        elif driven.problem is not None:
            del _driven[place]
            raise driven.problem
        self._places.add(place)
        return driven

    def _tuner(self, name: str) -> Tuner:
        groups = {group: getattr(self, group) for group in _GROUPS}
        return Tuner(
            self.trainable,
            backend=self.backend,
            name=name,
            run=RunOptions(progress=False, callbacks=[_SaysWhy()]),
            **groups,
        )

    def arms(self, trial: BaseTrial) -> dict[str, Trial | None]:
        """Return the mqtune trial of each arm of a trial by the arm's name; None where there is none.

        Raises:
            Exception: as ``driven``.
        """
        driven = self.driven(trial.experiment)
        return {arm.name: driven.find(_key(trial, arm)) for arm in trial.arms}


class _SaysWhy(Callback):
    """Warns where nothing can run, as for want of a worker: Ax's loops only wait. Each reason is given once."""

    interval_s = 1.0

    def __init__(self) -> None:
        self._reason, self._since = "", time.monotonic()
        self._said = {""}

    def on_step(self, waiting_for: str) -> None:
        if waiting_for != self._reason:
            self._reason, self._since = waiting_for, time.monotonic()
        elif waiting_for not in self._said and time.monotonic() - self._since > _IDLE_S:
            self._said.add(waiting_for)
            logger.warning("the experiment waits: %s", waiting_for)


class MqtuneMetric(MapMetric):
    """The values of a metric that trials of ``MqtuneRunner`` report: all of them, each with its step, also while they run.

    Values that are no finite numbers are left out. A trial that has ended without any, or whose last one is none as it has
    diverged, lacks the metric, for which Ax abandons it if it is in its optimization config. A step that was reported again, after a restart
    from scratch, has its newest value.

    Args:
        name: the metric's name in Ax.
        key: its key in the reports; by default the name.
        step: the key of the step; by default how many reports the trial has made.
        lower_is_better: as for any metric of Ax.
        properties: likewise.
        signature_override: likewise.
    """

    # Ax declares it as a variable of instances, and reads it from the class.
    recoverable_exceptions: set[type[Exception]] = {MqtuneError}  # noqa: RUF012

    def __init__(
        self,
        name: str,
        *,
        key: str | None = None,
        step: str = ITERATION,
        lower_is_better: bool | None = None,
        properties: dict[str, Any] | None = None,
        signature_override: str | None = None,
    ) -> None:
        super().__init__(name, lower_is_better, properties, signature_override)
        self.key = key
        self.step = step

    @classmethod
    def is_available_while_running(cls) -> bool:
        """Yes."""
        return True

    def fetch_trial_data(self, trial: BaseTrial, **_: object) -> MetricFetchResult:
        """Return what a trial has reported of this metric, or why there is nothing."""
        return self.fetched(trial) or self.missing(trial)

    def bulk_fetch_trial_data(self, trial: BaseTrial, metrics: list[Any], **_: object) -> dict[str, MetricFetchResult]:
        """Return what a trial has reported of these metrics; one that it has yet to report is left out while it runs."""
        runs = trial.status is Status.RUNNING
        found = [(metric, metric.fetched(trial)) for metric in metrics]
        return {each.signature: known or each.missing(trial) for each, known in found if known or not runs}

    def fetched(self, trial: BaseTrial) -> MetricFetchResult | None:
        """Return what a trial has reported of this metric, or None."""
        try:
            rows = self._rows(trial)
        except MqtuneError as error:
            return Err(MetricFetchE(str(error), error))
        return Ok(Data(data_rows=rows)) if rows else None

    def missing(self, trial: BaseTrial) -> MetricFetchResult:
        """Return that there is nothing; Ax logs it when this is made."""
        return Err(
            MetricFetchE(f"trial {trial.index} has reported no {self.key or self.name!r}, or has diverged", None)
        )

    def _rows(self, trial: BaseTrial) -> list[DataRow]:
        runner = trial.runner
        if not isinstance(runner, MqtuneRunner):
            raise ConfigurationError(
                f"metric {self.name} is of trials of an MqtuneRunner, and this one's runner is {runner!r}"
            )
        return [
            DataRow(trial.index, arm, self.name, self.signature, value, math.nan, step=step)
            for arm, known in runner.arms(trial).items()
            if known is not None
            for step, value in self._values(known, runner.driven(trial.experiment).reports(known)).items()
        ]

    def _values(self, trial: Trial, reports: Iterable[Report]) -> dict[float, float]:
        """Return a trial's values by their steps."""
        found: dict[float, float] = {}
        last = 0.0
        for report in reports:
            step, value = report.metrics.get(self.step), report.metrics.get(self.key or self.name)
            if is_number(step) and is_number(value):
                last = float(value)
                if math.isfinite(last):
                    found[float(step)] = last
        return {} if trial.status.is_terminal and not math.isfinite(last) else found


class _JsonRegistries(RegistryBundleBase):
    """What saves and loads JSON, and knows no database."""

    sqa_config: Any = None
    encoder: Any = None
    decoder: Any = None


def registry_bundle() -> RegistryBundleBase:
    """Return what saves and loads Ax's experiments with these classes: its ``encoder_registry`` and ``decoder_registry`` as JSON.

    With SQLAlchemy it also serves Ax's databases.
    """
    metrics: dict[type[Metric], int | None] = {MqtuneMetric: None}
    runners: dict[type[Runner], int | None] = {MqtuneRunner: None}
    try:
        return RegistryBundle(metrics, runners)
    except TypeError:
        # Ax has none of its own without SQLAlchemy.
        return _JsonRegistries(
            metrics,
            runners,
            CORE_ENCODER_REGISTRY,
            CORE_CLASS_ENCODER_REGISTRY,
            CORE_DECODER_REGISTRY,
            CORE_CLASS_DECODER_REGISTRY,
        )


def _name(experiment: Experiment) -> str:
    """Return the mqtune experiment's name: Ax's, and when that was created, which is saved with it."""
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", experiment.name if experiment.has_name else "ax")[:_NAME_CHARS]
    return f"{stem}-{experiment.time_created:%Y%m%d-%H%M%S-%f}"


def _group(trial: BaseTrial) -> str:
    """Return what the keys of a trial's arms begin with."""
    return f"{_name(trial.experiment)}/{trial.index}/"


def _key(trial: BaseTrial, arm: Arm) -> str:
    """Return the key of an arm: it has the parameters in it, as a trial that Ax has forgotten may have had others."""
    return f"{_group(trial)}{arm.signature}"


def status_of(trial: Trial | None) -> Status:
    """Return what a trial is for Ax; one that there is none of can't come any more."""
    if trial is None:
        return Status.FAILED
    status = _STATUSES.get(trial.status, Status.RUNNING)
    # Ax has no stopped trials without data.
    return Status.ABANDONED if status is Status.EARLY_STOPPED and not trial.reports else status


def why(trial: Trial | None) -> str:
    """Return why a trial has ended so, with the end of its traceback."""
    if trial is None:
        return "mqtune's experiment has no such trial: the server and this machine have lost it"
    error = trial.attempts[-1].error[-_ERROR_CHARS:]
    return trial.reason if error in ("", trial.reason) else f"{trial.reason}\n{error}"


def stop_trial(driven: BackgroundTuner, trial: Trial, reason: str | None) -> bool:
    """Stop a trial; whether there was anything to stop."""
    try:
        driven.do(lambda tuner: tuner.trial(trial).stop(reason or "stopped by Ax"))
    except InvalidTransition:
        return False
    return True


def _finish_if_idle(tuner: Tuner) -> None:
    if not tuner.busy_trials and not tuner.is_finished:
        tuner.finish("Ax's loop has ended")


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Path):
        return str(value)
    return sorted(value) if isinstance(value, frozenset) else value


def _without_password(backend: Any) -> Any:
    if isinstance(backend, str) and redact(backend) != backend:
        return None
    return _plain(backend)
