"""Optuna's ``study.optimize`` with each trial in a process of its own, on a worker."""

from __future__ import annotations

import contextlib
import copy
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from mqtune import Callback, Checkpoints, Failures, Local, Process, Resources, Results, RunOptions, TrialStatus, Tuner
from mqtune.extend import (
    BrokerUnavailable,
    ConfigurationError,
    DriverFenced,
    InvalidTransition,
    KnownTrainable,
    Metrics,
    MqtuneError,
    NameTaken,
    Report,
    Trial,
    TrialFailed,
    TrialId,
    check_reusable,
    importing,
)
from mqtune.integrations.optuna_errors import failure_of, name_of
from mqtune.integrations.optuna_storage import DeferredStorage
from mqtune.integrations.optuna_trial import ADAPTER, ASKED, CALL, STUDY, TOOK, distribution_of, mark_of

with importing("Optuna", "optuna"):
    import optuna
    from optuna.distributions import BaseDistribution, distribution_to_json as text_of
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.samplers import BruteForceSampler
    from optuna.storages import InMemoryStorage
    from optuna.trial import FrozenTrial, TrialState

    from mqtune.integrations.optuna_private import (
        begin_loop,
        close_databases,
        copy_over,
        end_loop,
        is_in_loop,
        is_stopped,
        storage_of,
        unstop,
    )
    from mqtune.integrations.optuna_space import suggested

logger = optuna.logging.get_logger("optuna.mqtune")

#: A trial's system attribute that names its experiment's trial.
MARK: Final = "mqtune.trial"
#: A study's system attribute that names the experiment of an unfinished call.
EXPERIMENT: Final = "mqtune.experiment"
#: Optuna's system attribute with the parameters of an enqueued trial.
_QUEUED: Final = "fixed_params"
_POLL_S: Final = 1.0
#: How long an abort waits for running trials. A worker's stop ladder takes 15 s.
_END_S: Final = 20.0
#: How long writes to the study's storage wait, to be made together.
_LAG_S: Final = 0.1
#: Maximum bytes of the parameters that are sent when a trial begins. An answer has some 2 KB.
_MAX_TOLD: Final = 1_600
#: Bytes of a sent parameter, without its name.
_PARAMETER_BYTES: Final = 20
StudyCallback = Callable[[optuna.Study, FrozenTrial], None]


def optuna_optimize(
    study: optuna.Study,
    func: Callable[[optuna.Trial], float | Sequence[float]],
    n_trials: int | None = None,
    timeout: float | None = None,
    n_jobs: int | None = None,
    catch: type[Exception] | Sequence[type[Exception]] = (),
    callbacks: Iterable[StudyCallback] | None = None,
    gc_after_trial: bool = False,
    show_progress_bar: bool = False,
    *,
    backend: str | Local | None = None,
    resources: Resources | None = None,
    failures: Failures = Failures(on_driver_loss="stop"),
    checkpoints: Checkpoints = Checkpoints(),
    process: Process = Process(),
) -> Results:
    """Optimize an objective as ``study.optimize`` does, with each trial on a worker.

    The study stays in this process, with its storage, sampler and pruner. The objective's calls of its trial are
    answered here, so it needs no change. Exactly *n_trials* trials begin, with any number of workers. A trial whose
    worker dies is rerun with the same parameters. If it can't be rerun, it becomes FAIL, so no trial stays RUNNING.
    With a persistent storage, the next call for the study resumes an interrupted one. Its trials keep running
    meanwhile, and count.

    An objective is a function, lambda, closure, partial, bound method or callable instance. All but a file's top-level
    functions are sent as source. Its ``trial.study`` has the name, directions, best value and parameters, user
    attributes, and ``stop``. Categories and attributes are plain values. ``mqtune.report`` and
    ``mqtune.save_checkpoint`` work too.

    Args:
        study: any study of Optuna 4.3 to 5, over any storage. There can be one call at a time.
        func: the objective: takes a trial, and returns a value, or one for each direction.
        n_trials: number of trials to begin; None for no limit.
        timeout: seconds after which no further trial begins.
        n_jobs: maximum number of trials at the same time; None or -1 for the number of slots.
        catch: errors that end only their trial, as FAIL. Any other error ends the call, after the running trials.
        callbacks: called here with *study* and each ended trial, except one whose error ends the call. They may change
            the study, for instance by ``study.stop()``.
        gc_after_trial: ignored, as each trial has its own process.
        show_progress_bar: whether mqtune's progress is shown.
        backend: as for ``Tuner``.
        resources: each trial's resources.
        failures: ``max_failures`` reruns a failed trial with the same parameters. By default trials stop after 10
            minutes without a driver, and the next call reruns them.
        checkpoints: where checkpoints are stored.
        process: how a trial's process runs; ``timeout_s`` limits each.

    Returns:
        The experiment's results. Values and parameters are in the study.

    Raises:
        TrialFailed: the objective has raised an error that is not in *catch*. It is also of that error's type, and has
            its traceback as text.
        ConfigurationError: workers can't import the objective, or an argument is invalid.
        BrokerUnavailable, NameTaken: as ``Tuner.run``. The next call resumes.
    """
    del gc_after_trial
    if n_jobs is not None and n_jobs < 1 and n_jobs != -1:
        raise ConfigurationError(
            f"n_jobs={n_jobs} is invalid; give a number from 1, or -1 for as many as there are slots"
        )
    if process.reuse:
        check_reusable(func)
    if is_in_loop(study):
        raise RuntimeError("optuna_optimize: an objective or callback can't optimize its own study")
    kinds = (catch,) if isinstance(catch, type) else tuple(catch)
    options: dict[str, Any] = {
        "backend": backend,
        "resources": resources,
        "failures": failures,
        "checkpoints": checkpoints,
        "process": process,
    }
    begin_loop(study)
    try:
        with _ObjectiveCall(study, func, options, is_serial=n_jobs == 1, is_shown=show_progress_bar) as call:
            limits = _Limits(
                n_trials, None if n_jobs == -1 else n_jobs, None if timeout is None else time.monotonic() + timeout
            )
            return _OptunaLoop(call, limits, kinds, [*(callbacks or ())]).run()
    finally:
        end_loop(study)
        storage_of(study).remove_session()


@dataclass(frozen=True, slots=True)
class _Limits:
    n_trials: int | None
    n_jobs: int | None
    until: float | None

    @property
    def is_late(self) -> bool:
        return self.until is not None and time.monotonic() >= self.until

    @property
    def wait_s(self) -> float:
        return _POLL_S if self.until is None else min(_POLL_S, max(0.0, self.until - time.monotonic()))


@dataclass(slots=True)
class _Running:
    """A trial that runs in the study."""

    id: int
    handle: optuna.Trial
    steps: set[int] = field(default_factory=set)
    #: Parameters prepared in the order of the trial's expected calls. Samplers see one once the trial has used it.
    ahead: Sequence[tuple[str, BaseDistribution, float]] = ()


class StudyTrials:
    """The trials of a study in an experiment, and the answers to their objectives.

    Args:
        study: the user's study, which is copied over a ``DeferredStorage``.
        is_serial: whether trials run one at a time. Then each gets exactly the parameters of ``study.optimize``.
    """

    def __init__(self, study: optuna.Study, experiment: str, *, is_serial: bool = False) -> None:
        behind = storage_of(study)
        self._study_id = behind.get_study_id_from_name(study.study_name)
        self.storage = DeferredStorage(behind, self._study_id)
        self.study = copy_over(study, self.storage)
        begin_loop(self.study)
        self._users = study
        self._experiment, self._is_serial = experiment, is_serial
        self._running: dict[TrialId, _Running] = {}
        self._ended: set[TrialId] = set()
        #: The distributions that the last ended trial has asked for, in order.
        self._asked: dict[str, BaseDistribution] = {}
        # The first trial with a mark counts. Others are copies, such as requeued failures.
        marks = {
            trial.system_attrs.get(MARK, ""): trial.number for trial in reversed(self.study.get_trials(deepcopy=False))
        }
        #: The numbers, in the study, of the trials that have begun.
        self.numbers = {
            TrialId(mark.removeprefix(f"{experiment}/")): number
            for mark, number in marks.items()
            if mark.startswith(f"{experiment}/")
        }

    def refresh(self) -> None:
        """Read changes of the study by other processes and by callbacks."""
        self.storage.refresh()
        self.study.sampler, self.study.pruner = self._users.sampler, self._users.pruner

    def is_open(self, trial: TrialId) -> bool:
        """Return whether a trial has begun and not ended in the study.

        An end by another process is noticed only when the trial continues.
        """
        if trial in self._running:
            return True
        if trial not in self.numbers or trial in self._ended:
            return False
        return not self.storage.last_seen(self.numbers[trial]).state.is_finished()

    def begin(self, trial: TrialId) -> dict[str, object] | None:
        """Return the initial data for an attempt's worker, or None if the trial has ended."""
        if trial not in self.numbers:
            self._prepare_parameters(self._create(trial))
        elif not self.is_open(trial):
            return None
        running = self._running_trial(trial)
        handle = running.handle
        start = handle.datetime_start
        return {
            "id": running.id,
            "number": handle.number,
            "start": "" if start is None else start.isoformat(),
            "study": self.study.study_name,
            "directions": [direction.name for direction in self.study.directions],
            **_known_parameters(self.storage.get_trial(running.id), running.ahead),
        }

    def _create(self, trial: TrialId) -> _Running:
        """Begin a new or enqueued trial of the study, marked with the id of its experiment's trial."""
        with self.storage.mark_next({MARK: f"{self._experiment}/{trial}"}) as begun:
            try:
                handle = self.study.ask()
            finally:
                # It may have begun although its sampler has raised an error.
                self.numbers.update((trial, self.storage.get_trial(trial_id).number) for trial_id in begun)
        self._running[trial] = _Running(begun[0], handle)
        return self._running[trial]

    def _prepare_parameters(self, running: _Running) -> None:
        """Suggest the same parameters as in the previous trial, before the objective asks for them."""
        handle = running.handle
        # A sampler's error is raised again when the trial asks.
        with contextlib.suppress(Exception), self.storage.trying(running.id) as running.ahead:
            for name, distribution in self._asked.items():
                if self._is_serial and not self._needs_no_draw(running, name, distribution):
                    # An unused draw would change the next one.
                    break
                suggested(handle, name, distribution)

    def _needs_no_draw(self, running: _Running, name: str, distribution: BaseDistribution) -> bool:
        """Return whether a parameter's value is known without a further draw of the sampler."""
        queued = self.storage.get_trial(running.id).system_attrs.get(_QUEUED, {})
        return name in queued or distribution.single() or name in running.handle.relative_params

    def _running_trial(self, trial: TrialId) -> _Running:
        if trial not in self._running:
            id_ = self.storage.get_trial_id_from_study_id_trial_number(self._study_id, self.numbers[trial])
            frozen = self.storage.take_over(id_)
            self._running[trial] = _Running(id_, optuna.Trial(self.study, id_), {*frozen.intermediate_values})
        return self._running[trial]

    def answer(self, trial: TrialId, call: str, asked: Metrics) -> object:
        """Return the answer to an objective's call."""
        if call == "begin":
            return self.begin(trial)
        running = self._running_trial(trial)
        handle = running.handle
        match call:
            case "suggest":
                # The trial asks for other parameters than the prepared ones.
                running.ahead = ()
                distribution = self._distribution_of(asked["distribution"])
                value = distribution.to_internal_repr(suggested(handle, asked["name"], distribution))
                # If this driver is killed before the answer arrives, the next one repeats the written answer.
                self.storage.flush()
                return value
            case "should_prune":
                return handle.should_prune()
            case "system_attrs":
                # Optuna 5 has removed the trial's own property.
                return self.storage.get_trial(running.id).system_attrs
            case "study":
                return getattr(self.study, asked["name"]) if asked["name"] in STUDY else None
            case _:
                return getattr(handle, call)

    def take_parameters(self, trial: TrialId, took: Sequence[tuple[str, str, float]]) -> None:
        """Record prepared parameters that a trial has used. A repeated call changes nothing."""
        id_ = self._running_trial(trial).id
        params = self.storage.get_trial(id_).params
        for name, distribution, value in took:
            if name not in params:
                self.storage.set_trial_param(id_, name, value, self._distribution_of(distribution))

    def _distribution_of(self, text: str) -> BaseDistribution:
        # All other storages turn tuples into lists, by JSON.
        return distribution_of(text, keep_tuples=isinstance(storage_of(self._users), InMemoryStorage))

    def take(self, trial: TrialId, call: str, said: Metrics) -> None:
        """Record an objective's report or attribute. A repeated call changes nothing."""
        running = self._running_trial(trial)
        match call:
            case "report" if said["step"] not in running.steps:
                running.steps.add(said["step"])
                running.handle.report(said["intermediate"], said["step"])
            case "set_user_attr":
                running.handle.set_user_attr(said["key"], said["attr"])
            case "set_system_attr":
                self.storage.set_trial_system_attr(running.id, said["key"], said["attr"])
            case "set_constraint":
                running.handle.set_constraint(said["key"], said["attr"])
            case _:
                pass

    def end(self, trial: TrialId, values: Sequence[Any] | None, state: TrialState | None, why: str) -> FrozenTrial:
        """Record a trial's end, and return it."""
        handle = (self._running_trial(trial) if trial in self.numbers else self._create(trial)).handle
        number = handle.number
        self._running.pop(trial, None)
        self._ended.add(trial)
        if isinstance(self.study.sampler, BruteForceSampler):
            # This sampler may stop the study before running trials have asked for all parameters. Its last verdict
            # counts.
            unstop(self.study)
        ended = self.study.tell(handle, values, state, skip_if_finished=True)
        if ended.state is not TrialState.FAIL:
            self._asked = ended.distributions
        if ended.state is TrialState.COMPLETE:
            shown = ended.values[0] if len(ended.values) == 1 else ended.values
            logger.info("Trial %d finished with value: %s and parameters: %s.", number, shown, ended.params)
        else:
            logger.info("Trial %d %s%s", number, _WORDS[ended.state], why and f": {why}")
        return ended


def _known_parameters(frozen: FrozenTrial, ahead: Sequence[tuple[str, BaseDistribution, float]]) -> dict[str, object]:
    """Return a trial's known and prepared parameters for its worker, up to the size limit."""
    has = [
        (name, distribution, distribution.to_internal_repr(frozen.params[name]))
        for name, distribution in frozen.distributions.items()
    ]
    told: list[list[object]] = []
    left_bytes = _MAX_TOLD
    for name, distribution, value in [*has, *ahead]:
        left_bytes -= len(name.encode()) + _PARAMETER_BYTES
        if left_bytes < 0:
            break
        told.append([name, mark_of(text_of(distribution)), value])
    return {"known": {name: rest for name, *rest in told[: len(has)]}, "ahead": told[len(has) :]}


_WORDS: Final = {TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


class _ObjectiveCall:
    def __init__(
        self,
        study: optuna.Study,
        objective: Callable[..., Any],
        options: dict[str, Any],
        *,
        is_serial: bool,
        is_shown: bool,
    ) -> None:
        if not callable(objective) or isinstance(objective, type):
            raise ConfigurationError(f"func={objective!r} can't be called with a trial: give a function that takes one")
        known = KnownTrainable.of(objective)
        #: Ended trials, not yet recorded in the study.
        self.ended: list[TrialId] = []
        self.study, self.objective, self._is_serial = study, objective, is_serial
        self._options = {
            **options,
            **_metric_of(study),
            "trainable": known._replace(spec=replace(known.spec, adapter=ADAPTER)),
            "failures": replace(options["failures"], accept_no_report=True),
            "run": RunOptions(progress=is_shown, callbacks=[_Ended(self.ended)]),
        }
        self._storage = storage_of(study)
        self._study_id = self._storage.get_study_id_from_name(study.study_name)
        begun = self._storage.get_study_system_attrs(self._study_id).get(EXPERIMENT)
        self.tuner, self.trials = self._open(begun or _new_name(study))
        if begun and not self.tuner.get_trials() and self.trials.numbers:
            # Redis has lost the experiment, so its trials can't continue.
            self._fail_unknown()
            self.tuner.finish("its journal is lost")
            self.tuner.close()
            self.trials.storage.close()
            self.tuner, self.trials = self._open(_new_name(study))
        self._fail_unknown()

    def _open(self, name: str) -> tuple[Tuner, StudyTrials]:
        self._store_name(name)
        tuner = Tuner(name=name, **self._options)
        # A local worker forks this process, which must not have an open database.
        close_databases()
        try:
            self.ended.extend(trial.id for trial in tuner.get_trials() if trial.status.is_terminal)
        except NameTaken as error:
            raise NameTaken(f"an earlier call for this study still drives its experiment: {error}") from None
        return tuner, StudyTrials(self.study, name, is_serial=self._is_serial)

    def _fail_unknown(self) -> None:
        """Fail the study's trials that the experiment does not know."""
        known = {trial.id for trial in self.tuner.get_trials()}
        for trial in self.trials.numbers.keys() - known:
            self.trials.end(trial, None, TrialState.FAIL, "the journal has lost it")
        self.trials.storage.flush()

    def finish(self, reason: str) -> Results:
        """End the experiment, so that the next call begins a new one. Return the results."""
        results = self.tuner.results() if self.tuner.is_finished else self.tuner.finish(reason)
        self._store_name(None)
        return results

    def _store_name(self, experiment: str | None) -> None:
        """Store the name of the unfinished experiment in the study, or None to remove it."""
        self._storage.set_study_system_attr(self._study_id, EXPERIMENT, experiment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.trials.storage.close()
        self.tuner.close()


def _metric_of(study: optuna.Study) -> dict[str, str]:
    if len(study.directions) > 1:
        return {}
    return {"metric": "value", "mode": "max" if study.direction is optuna.study.StudyDirection.MAXIMIZE else "min"}


def _new_name(study: optuna.Study) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", study.study_name)[:60].lstrip("-_") or "study"
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


class _Ended(Callback):
    in_loop = True

    def __init__(self, ended: list[TrialId]) -> None:
        self._ended = ended

    def on_trial_end(self, trial: Trial) -> None:
        self._ended.append(trial.id)


class _OptunaLoop:
    """Adds trials for free slots, answers objectives, and records ends in the study."""

    def __init__(
        self,
        call: _ObjectiveCall,
        limits: _Limits,
        catch: Sequence[type[Exception]],
        callbacks: Sequence[StudyCallback],
    ) -> None:
        self._call, self._tuner, self._trials = call, call.tuner, call.trials
        self._study = call.study
        self._limits = limits
        self._caught = {name_of(kind, call.objective) for kind in catch}
        self._callbacks = callbacks
        #: Unfinished trials. Some have not begun in the study.
        self._open = {trial.id for trial in self._tuner.get_trials() if not trial.status.is_terminal}
        #: Trials that had ended in the study before this call.
        self._over_before = {
            trial for trial in self._open if trial in self._trials.numbers and not self._trials.is_open(trial)
        }
        self._began_at = time.time()
        self._end_reason = ""
        self._error: TrialFailed | None = None
        self._slots, self._slots_read_at = 0, -_POLL_S
        self._refreshed_at = time.monotonic()

    def run(self) -> Results:
        try:
            self._replay_reports()
            while True:
                self._record_ends()
                self._add_trials()
                if not self._open:
                    break
                if (report := self._next()) is not None:
                    self._handle(report, report.metrics.get(CALL))
            self._trials.storage.flush()
        except (BrokerUnavailable, DriverFenced):
            # Running trials continue, and the next call resumes them.
            self._trials.storage.flush()
            raise
        except BaseException:
            self._abort()
            raise
        results = self._call.finish(self._end_reason or "all trials have ended")
        if self._error is not None:
            raise self._error
        return results

    def _replay_reports(self) -> None:
        """Handle reports again that an earlier, killed call may not have written to the study."""
        cut_off = {trial for trial in self._trials.numbers if self._trials.is_open(trial)}
        for report in self._tuner.results().reports() if cut_off else ():
            if report.trial in cut_off and self._trials.is_open(report.trial):
                call = report.metrics.get(CALL)
                self._handle(Report(*report[:-1]), None if call in ASKED or call == "stop" else call)

    def _next(self) -> Report | None:
        """Make overdue writes. Wait briefly for the next report, and return it or None."""
        storage = self._trials.storage
        if time.monotonic() - self._refreshed_at >= _POLL_S:
            self._refresh()
        if storage.due_s(_LAG_S) <= 0:
            storage.flush()
        return self._tuner.next_report(min(self._limits.wait_s, storage.due_s(_LAG_S)))

    def _refresh(self) -> None:
        self._trials.refresh()
        self._refreshed_at = time.monotonic()

    def _abort(self) -> None:
        """End all trials as FAIL, after Ctrl-C or a callback's error."""
        with contextlib.suppress(MqtuneError):
            self._tuner.stop_all("the call was interrupted")
            deadline = time.monotonic() + _END_S
            while not self._tuner.is_finished and time.monotonic() < deadline:
                self._tuner.step(_POLL_S)
        for trial in filter(self._trials.is_open, self._open):
            self._trials.end(trial, None, TrialState.FAIL, "the call was interrupted")
        self._trials.storage.flush()
        with contextlib.suppress(MqtuneError):
            self._call.finish("interrupted")

    def _add_trials(self) -> None:
        limits, trials = self._limits, self._trials
        begun = len(trials.numbers) + sum(trial not in trials.numbers for trial in self._open)
        was_over, self._end_reason = self._end_reason, self._find_end_reason()
        if self._end_reason and not was_over:
            self._stop_unbegun()
        while (
            not self._end_reason
            and len(self._open) < self._most_open()
            and (limits.n_trials is None or begun < limits.n_trials)
        ):
            self._open.add(self._tuner.add({}).id)
            begun += 1

    def _find_end_reason(self) -> str:
        if is_stopped(self._study) or is_stopped(self._trials.study):
            return "study.stop() was called"
        if self._limits.is_late:
            return "the time is over"
        return "an objective has failed" if self._error is not None else ""

    def _most_open(self) -> int:
        """Return the maximum number of unfinished trials: *n_jobs*, or else two for each slot.

        With two trials for a slot, one runs while the other waits, so the slot is never idle.
        """
        now = time.monotonic()
        if now - self._slots_read_at >= _POLL_S:
            self._slots, self._slots_read_at = self._tuner.slots, now
        return self._limits.n_jobs or 2 * max(self._slots, 1)

    def _stop_unbegun(self) -> None:
        for trial in self._open - self._trials.numbers.keys():
            with contextlib.suppress(InvalidTransition):
                self._tuner.trial(trial).stop(self._end_reason)

    def _handle(self, report: Report, call: str | None) -> None:
        try:
            if took := report.metrics.get(TOOK):
                self._trials.take_parameters(report.trial, took)
            if call in ASKED:
                self._tuner.answer(report, self._answer(report, call))
            elif call == "stop":
                self._study.stop()
            elif call == "end":
                self._end(report.trial, report.metrics)
            elif call is not None:
                self._trials.take(report.trial, call, report.metrics)
        except UpdateFinishedTrialError:
            if self._is_from_before(report, call):
                return
            # Another process has ended it in the study.
            with contextlib.suppress(InvalidTransition):
                self._tuner.trial(report.trial).stop("it has ended in the study")

    def _is_from_before(self, report: Report, call: str | None) -> bool:
        """Return whether an earlier call of ``optuna_optimize`` may have handled this report already."""
        return report.trial in self._over_before and report.timestamp < self._began_at and call not in ASKED

    def _is_open(self, trial: TrialId) -> bool:
        return trial not in self._over_before and self._trials.is_open(trial)

    def _answer(self, report: Report, call: str) -> dict[str, object]:
        try:
            return {"is": self._trials.answer(report.trial, call, report.metrics)}
        except UpdateFinishedTrialError:
            raise
        except Exception as error:  # noqa: BLE001 - the sampler's or pruner's, which the objective gets, as with Optuna
            return {"error": [type(error).__name__, str(error)]}

    def _end(self, trial: TrialId, said: Metrics) -> None:
        """Record an objective's end. After an error the trial may run again, so nothing is recorded."""
        is_open = self._is_open(trial)
        if said["state"] == "PRUNED":
            if is_open:
                self._end_trial(trial, None, TrialState.PRUNED, said["reason"])
            with contextlib.suppress(InvalidTransition):
                self._tuner.trial(trial).stop("pruned")
        elif said["state"] != "FAIL" and is_open:
            self._end_trial(trial, said["values"], None, "")

    def _record_ends(self) -> None:
        while self._call.ended:
            id_ = self._call.ended.pop(0)
            self._open.discard(id_)
            trial = self._tuner.trial(id_).record
            if self._is_open(id_) or (id_ not in self._trials.numbers and trial.status is TrialStatus.FAILED):
                is_early = trial.status is TrialStatus.EARLY_STOPPED
                state = TrialState.PRUNED if is_early else TrialState.FAIL
                if (error := self._uncaught(trial)) is None:
                    self._end_trial(id_, None, state, trial.reason)
                else:
                    # Optuna, too, raises the error without calling callbacks for its trial.
                    self._trials.end(id_, None, state, trial.reason)
                    self._error = self._error or error

    def _uncaught(self, trial: Trial) -> TrialFailed | None:
        """Return the error by which a trial's objective has failed, or None if *catch* has it."""
        said = trial.last_metrics
        if trial.status is TrialStatus.FAILED and said.get(CALL) == "end" and self._caught.isdisjoint(said["kinds"]):
            text = f"trial {trial.id} has failed: {trial.attempts[-1].error}"
            return failure_of(text, said["kinds"], self._call.objective)
        return None

    def _end_trial(self, trial: TrialId, values: Sequence[Any] | None, state: TrialState | None, why: str) -> None:
        ended = self._trials.end(trial, values, state, why)
        if self._callbacks:
            self._trials.storage.flush()
            for callback in self._callbacks:
                callback(self._study, copy.deepcopy(ended))
            self._refresh()
