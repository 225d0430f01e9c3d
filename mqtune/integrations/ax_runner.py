"""Lets Ax's own loops run trials on mqtune's workers."""

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
    importing,
    is_number,
    redact,
)

with importing("Ax", "ax"):
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

#: Ax's statuses of ended trials. All others are RUNNING, as Ax's loops end at QUEUED trials and know no pause.
_STATUSES: Final = {
    TrialStatus.COMPLETED: Status.COMPLETED,
    TrialStatus.EARLY_STOPPED: Status.EARLY_STOPPED,
    TrialStatus.FAILED: Status.FAILED,
    TrialStatus.ABANDONED: Status.ABANDONED,
}
#: The status of a batch is the first of these that one of its arms has.
_STRONGEST_FIRST: Final = (Status.RUNNING, Status.COMPLETED, Status.EARLY_STOPPED, Status.FAILED, Status.ABANDONED)
#: The statuses of arms that a model ignores.
_IGNORED: Final = (Status.FAILED, Status.ABANDONED)
#: How many characters of an error are sent to Ax, which keeps 1,000.
_ERROR_CHARS: Final = 800
#: How many characters of the name in Ax the experiment's name begins with.
_NAME_CHARS: Final = 60
_GROUPS: Final = {"resources": Resources, "failures": Failures, "checkpoints": Checkpoints, "process": Process}

#: How long an experiment must wait before a warning, in seconds. A local worker starts in less.
_IDLE_S: Final = 10.0

logger = logging.getLogger(__name__)

#: This process's drivers, by backend and experiment. Equal runners, such as copies, share one.
_driven: dict[tuple[str, str], BackgroundTuner] = {}


class MqtuneRunner(Runner):
    """Runs Ax's trials on mqtune's workers, for an ``Orchestrator`` or ``Client.run_trials``.

    Each arm is a trial of an mqtune experiment. A thread of this process drives the experiment, and polls read its
    state without asking a server. A trial is RUNNING once it is queued, also while it is paused, waits for a worker, or
    its server is away. ``OrchestratorOptions.max_pending_trials`` limits waiting trials. ``run_metadata`` has mqtune's
    status and the start time.

    If a trial is run again, by Ax's retry or after loading its experiment, the existing one continues if the parameters
    are equal. A trial that Ax has forgotten and replaced is abandoned. After five minutes without its server, and after
    other errors, polls raise OrchestratorInternalError. That ends Ax's loop, but no trial: run the loop again.

    As a context manager it closes its connections. Requires ax-platform 1.3 or later.

    Args:
        trainable: as for ``mqtune.Tuner``. It is called with an arm's parameters.
        backend: likewise. A URL with a password is not saved in Ax's experiment: use ``$MQTUNE_BROKER``.
        name: the experiment's name. By default it is made of Ax's name and creation time, so it is the same after
            loading.
        resources: each trial's resources.
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
        self._places: set[tuple[str, str]] = set()

    @property
    def run_metadata_report_keys(self) -> list[str]:
        """The keys of ``run_metadata`` that Ax's reports show."""
        return ["mqtune_experiment", "mqtune_trials"]

    def run(self, trial: BaseTrial) -> dict[str, Any]:
        """Run a trial, and return its metadata; see ``run_multiple``."""
        return self.run_multiple([trial])[trial.index]

    def run_multiple(self, trials: Iterable[BaseTrial]) -> dict[int, dict[str, Any]]:
        """Start trials, or continue them. Return metadata by trial index: the experiment and trial ids.

        Raises:
            SpaceError: a parameter can't be sent to a worker.
            MqtuneError: as ``Tuner.run``, when it connects.
        """
        wanted = list(trials)
        if not wanted:
            return {}
        driven = self.tuner_of(wanted[0].experiment)
        return driven.do(lambda tuner: {trial.index: self._run_trial(tuner, trial) for trial in wanted})

    def _run_trial(self, tuner: Tuner, trial: BaseTrial) -> dict[str, Any]:
        keys = {arm.name: _key(trial, arm) for arm in trial.arms}
        group = _key_prefix(trial)
        for known in tuner.get_trials():
            if known.key.startswith(group) and known.key not in keys.values() and not known.status.is_terminal:
                tuner.trial(known).abandon(
                    f"Ax's experiment was loaded from before, and has another trial {trial.index}"
                )
        notes = f"of Ax's experiment {trial.experiment.name}" if trial.experiment.has_name else ""
        added = {
            arm.name: tuner.add(arm.parameters, key=keys[arm.name], tags=[f"ax-{trial.index}"], notes=notes).id
            for arm in trial.arms
        }
        return {"mqtune_experiment": tuner.name, "mqtune_trials": added}

    def poll_trial_status(self, trials: Iterable[BaseTrial]) -> dict[Status, set[int]]:
        """Return the indices of Ax's unfinished trials by their new status.

        If one has failed or was stopped, its data are fetched first, as Ax does not fetch them.

        Raises:
            OrchestratorInternalError: the experiment can't be driven any more.
        """
        by_status: dict[Status, set[int]] = defaultdict(set)
        for trial in trials:
            if not trial.status.is_terminal:
                by_status[self._poll_trial(trial)].add(trial.index)
        return dict(by_status)

    def _poll_trial(self, trial: BaseTrial) -> Status:
        try:
            arms = self.arms(trial)
        except Exception as error:
            # Ax abandons the trials after any other error.
            raise OrchestratorInternalError(f"{type(error).__name__}: {error}") from error
        statuses = {name: status_of(own) for name, own in arms.items()}
        status = min(statuses.values(), key=_STRONGEST_FIRST.index)
        known = [own for own in arms.values() if own is not None]
        began = [began for own in known if (began := own.attempts[0].started_at) is not None]
        trial.update_run_metadata(
            {
                "mqtune_status": ", ".join(dict.fromkeys(own.status.name for own in known)),
                **({Keys.START_TIME_STR: min(began)} if began else {}),
            }
        )
        if status in (Status.EARLY_STOPPED, *_IGNORED):
            trial.fetch_data_results()
        if status is not Status.RUNNING and isinstance(trial, BatchTrial):
            for name, own_status in statuses.items():
                if own_status in _IGNORED:
                    trial.mark_arm_abandoned(name, why(arms[name]))
        return status

    def poll_exception(self, trial: BaseTrial) -> str:
        """Return why a trial has failed or was abandoned, with the end of the traceback."""
        reasons = {name: why(own) for name, own in self.arms(trial).items()}
        return next(iter(reasons.values())) if len(reasons) == 1 else "\n".join(f"{k}: {v}" for k, v in reasons.items())

    def stop(self, trial: BaseTrial, reason: str | None = None) -> dict[str, Any]:
        """Stop a trial unless it has ended, and fetch its reports."""
        driven = self.tuner_of(trial.experiment)
        stopped = [own.id for own in self.arms(trial).values() if own is not None and stop_trial(driven, own, reason)]
        trial.fetch_data_results()
        return {"mqtune_stopped": stopped}

    def clone(self) -> Self:
        """Return a copy, which shares the open connections."""
        return copy.copy(self)

    @classmethod
    def serialize_init_args(cls, obj: Any) -> dict[str, Any]:
        """Return the constructor's arguments as plain values, with the trainable by name."""
        known = obj.trainable
        spec, code_root = known[:2] if isinstance(known, KnownTrainable) else TrainableSpec.of(known)
        return {
            "trainable": {**spec.encode(), "code_root": str(code_root)},
            "backend": _without_password(obj.backend),
            "name": obj.name,
            **{name: _plain_value(getattr(obj, name)) for name in _GROUPS},
        }

    @classmethod
    def deserialize_init_args(cls, args: dict[str, Any], *_: object, **__: object) -> dict[str, Any]:
        """Return the constructor's arguments from plain values."""
        trainable, backend = args["trainable"], args["backend"]
        return {
            "trainable": KnownTrainable(TrainableSpec.decode(trainable), Path(trainable["code_root"])),
            "backend": Local(**backend) if isinstance(backend, dict) else backend,
            "name": args["name"],
            **{name: group(**args[name]) for name, group in _GROUPS.items() if args[name] is not None},
        }

    def stop_all(self, experiment: Experiment, reason: str = "stopped by hand") -> None:
        """Stop all trials of an experiment. Ax leaves them running after a timeout."""
        for trial in experiment.trials.values():
            if not trial.status.is_terminal and not trial.status.is_candidate:
                self.stop(trial, reason)

    def close(self) -> None:
        """Close the connections. Trials on a broker's workers continue, and a later poll reconnects.

        An experiment without running trials is finished, until a trial is added.
        """
        for place in self._places:
            driven = _driven.pop(place, None)
            if driven is not None:
                with contextlib.suppress(MqtuneError):
                    driven.do(_finish_if_idle)
                driven.close()
        self._places.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tuner_of(self, experiment: Experiment) -> BackgroundTuner:
        """Return the driver of an experiment, and open it if needed.

        Raises:
            Exception: the error that ended the driver. It is raised once; the next call opens a new driver.
        """
        backend = self.backend or os.environ.get("MQTUNE_BROKER")
        place = (repr(backend), self.name or _experiment_name(experiment))
        driven = _driven.get(place)
        if driven is None:
            driven = _driven[place] = BackgroundTuner(lambda: self._make_tuner(place[1]))
        elif driven.problem is not None:
            del _driven[place]
            raise driven.problem
        self._places.add(place)
        return driven

    def _make_tuner(self, name: str) -> Tuner:
        groups = {group: getattr(self, group) for group in _GROUPS}
        return Tuner(
            self.trainable,
            backend=self.backend,
            name=name,
            run=RunOptions(progress=False, callbacks=[_WarnsWhenIdle()]),
            **groups,
        )

    def arms(self, trial: BaseTrial) -> dict[str, Trial | None]:
        """Return the mqtune trial of each arm, by the arm's name. It is None if mqtune has lost it.

        Raises:
            Exception: as ``tuner_of``.
        """
        driven = self.tuner_of(trial.experiment)
        return {arm.name: driven.find(_key(trial, arm)) for arm in trial.arms}


class _WarnsWhenIdle(Callback):
    """Warns once about each reason why nothing can run, such as missing workers."""

    interval_s = 1.0

    def __init__(self) -> None:
        self._reason, self._since = "", time.monotonic()
        self._warned = {""}

    def on_step(self, waiting_for: str) -> None:
        if waiting_for != self._reason:
            self._reason, self._since = waiting_for, time.monotonic()
        elif waiting_for not in self._warned and time.monotonic() - self._since > _IDLE_S:
            self._warned.add(waiting_for)
            logger.warning("the experiment waits: %s", waiting_for)


class MqtuneMetric(MapMetric):
    """A metric reported by trials of ``MqtuneRunner``, at all steps, also while they run.

    Values that are not finite are left out. An ended trial lacks the metric if it has no value or if its last value is
    not finite. Ax abandons such a trial if its optimization config has the metric. If a step is reported again, its
    newest value counts.

    Args:
        name: the metric's name in Ax.
        key: its key in the reports; by default the name.
        step: the key of the step; by default the report's number.
        lower_is_better: as for any metric of Ax.
        properties: likewise.
        signature_override: likewise.
    """

    # Ax reads this from the class, although it annotates an instance variable.
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
        return True

    def fetch_trial_data(self, trial: BaseTrial, **_: object) -> MetricFetchResult:
        """Return a trial's values, or an error if it has no value."""
        return self.fetched(trial) or self.missing(trial)

    def bulk_fetch_trial_data(self, trial: BaseTrial, metrics: list[Any], **_: object) -> dict[str, MetricFetchResult]:
        """Return a trial's values of these metrics, by signature. A running trial may lack some."""
        runs = trial.status is Status.RUNNING
        fetched = [(metric, metric.fetched(trial)) for metric in metrics]
        return {metric.signature: known or metric.missing(trial) for metric, known in fetched if known or not runs}

    def fetched(self, trial: BaseTrial) -> MetricFetchResult | None:
        """Return a trial's values, or the error of fetching them, or None if it has no value."""
        try:
            rows = self._rows(trial)
        except MqtuneError as error:
            return Err(MetricFetchE(str(error), error))
        return Ok(Data(data_rows=rows)) if rows else None

    def missing(self, trial: BaseTrial) -> MetricFetchResult:
        """Return the error for a trial without values. Ax logs it when it is made."""
        return Err(
            MetricFetchE(f"trial {trial.index} has reported no {self.key or self.name!r}, or has diverged", None)
        )

    def _rows(self, trial: BaseTrial) -> list[DataRow]:
        runner = trial.runner
        if not isinstance(runner, MqtuneRunner):
            raise ConfigurationError(
                f"metric {self.name} needs trials of an MqtuneRunner, but the runner of trial {trial.index} is "
                f"{runner!r}"
            )
        return [
            DataRow(trial.index, arm, self.name, self.signature, value, math.nan, step=step)
            for arm, known in runner.arms(trial).items()
            if known is not None
            for step, value in self._values(known, runner.tuner_of(trial.experiment).reports(known)).items()
        ]

    def _values(self, trial: Trial, reports: Iterable[Report]) -> dict[float, float]:
        values: dict[float, float] = {}
        last = 0.0
        for report in reports:
            step, value = report.metrics.get(self.step), report.metrics.get(self.key or self.name)
            if is_number(step) and is_number(value):
                last = float(value)
                if math.isfinite(last):
                    values[float(step)] = last
        return {} if trial.status.is_terminal and not math.isfinite(last) else values


class _JsonRegistries(RegistryBundleBase):
    sqa_config: Any = None
    encoder: Any = None
    decoder: Any = None


def registry_bundle() -> RegistryBundleBase:
    """Return Ax's registries with mqtune's classes, to save and load Ax's experiments.

    Its ``encoder_registry`` and ``decoder_registry`` are for JSON. With SQLAlchemy it also serves Ax's databases.
    """
    metrics: dict[type[Metric], int | None] = {MqtuneMetric: None}
    runners: dict[type[Runner], int | None] = {MqtuneRunner: None}
    try:
        return RegistryBundle(metrics, runners)
    except TypeError:
        # Ax's own class needs SQLAlchemy.
        return _JsonRegistries(
            metrics,
            runners,
            CORE_ENCODER_REGISTRY,
            CORE_CLASS_ENCODER_REGISTRY,
            CORE_DECODER_REGISTRY,
            CORE_CLASS_DECODER_REGISTRY,
        )


def _experiment_name(experiment: Experiment) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", experiment.name if experiment.has_name else "ax")[:_NAME_CHARS]
    return f"{stem}-{experiment.time_created:%Y%m%d-%H%M%S-%f}"


def _key_prefix(trial: BaseTrial) -> str:
    return f"{_experiment_name(trial.experiment)}/{trial.index}/"


def _key(trial: BaseTrial, arm: Arm) -> str:
    """Return an arm's key in mqtune's experiment.

    It includes the parameters, as a trial that Ax has forgotten may have had the same index and others.
    """
    return f"{_key_prefix(trial)}{arm.signature}"


def status_of(trial: Trial | None) -> Status:
    """Return Ax's status of a trial. A missing trial has failed."""
    if trial is None:
        return Status.FAILED
    status = _STATUSES.get(trial.status, Status.RUNNING)
    # Ax has no stopped trials without data.
    return Status.ABANDONED if status is Status.EARLY_STOPPED and not trial.reports else status


def why(trial: Trial | None) -> str:
    """Return why a trial has ended, with the end of the traceback."""
    if trial is None:
        return "mqtune's experiment has no such trial: the server and this machine have lost it"
    error = trial.attempts[-1].error[-_ERROR_CHARS:]
    return trial.reason if error in ("", trial.reason) else f"{trial.reason}\n{error}"


def stop_trial(driven: BackgroundTuner, trial: Trial, reason: str | None) -> bool:
    """Stop a trial. Return False if it had already ended."""
    try:
        driven.do(lambda tuner: tuner.trial(trial).stop(reason or "stopped by Ax"))
    except InvalidTransition:
        return False
    return True


def _finish_if_idle(tuner: Tuner) -> None:
    if not tuner.busy_trials and not tuner.is_finished:
        tuner.finish("Ax's loop has ended")


def _plain_value(value: Any) -> Any:
    if is_dataclass(value):
        return {attribute.name: _plain_value(getattr(value, attribute.name)) for attribute in fields(value)}
    if isinstance(value, Path):
        return str(value)
    return sorted(value) if isinstance(value, frozenset) else value


def _without_password(backend: Any) -> Any:
    if isinstance(backend, str) and redact(backend) != backend:
        return None
    return _plain_value(backend)
