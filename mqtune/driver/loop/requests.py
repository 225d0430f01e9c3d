"""Carries out users' requests, or refuses them."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from mqtune.core.checks import optional_count, optional_seconds
from mqtune.core.clock import Clock
from mqtune.core.errors import ConfigurationError, ExperimentFinished, InvalidTransition, MqtuneError
from mqtune.core.events import (
    DecisionTaken,
    DriverStarted,
    Event,
    ExperimentEnded,
    RequestAnswered,
    Requested,
)
from mqtune.core.experiment import LABEL, LABELS, Experiment
from mqtune.core.labels import NO_LABELS
from mqtune.core.trial import (
    Action,
    CheckpointId,
    Config,
    Metrics,
    Report,
    Restart,
    Trial,
    TrialId,
    TrialStatus,
    attempt_and_number,
    trial_of,
)
from mqtune.driver.path.path import EventPath
from mqtune.driver.rules.checkpoints import CheckpointGC
from mqtune.driver.rules.outside import Tell, check_told, has_told_all, is_repeated, why_over
from mqtune.driver.rules.slots import Addition, SlotFiller
from mqtune.driver.setup.options import SETTABLE, RunOptions
from mqtune.driver.setup.settings import Settings
from mqtune.driver.writing.actions import (
    AnswerRequest,
    Decide,
    DriverAction,
    Label,
    Stage,
    check_decision,
    check_paused,
    decided_checkpoint,
    next_trial_id,
    restage,
    stage_resumed,
)
from mqtune.driver.writing.heartbeat import Heartbeat
from mqtune.driver.writing.ledger import Ledger
from mqtune.driver.writing.orders import Save
from mqtune.results.checkpoints import choose_checkpoint

T = TypeVar("T")

#: Largest number of requests that one round carries out. As each takes a write, they take less than 0.1 s together.
AT_ONCE: Final = 100
#: Actions that end or pause a trial.
_DECISIONS: Final = {action.value: action for action in Action if action is not Action.CONTINUE}
_NOTHING: Final = CheckpointId("")
#: The names of the arguments that each action has.
_ARGUMENTS: Final = {
    **dict.fromkeys(_DECISIONS, frozenset({"reason"})),
    "save": frozenset[str](),
    "resume": frozenset({"config", "checkpoint", "reason"}),
    "restart": frozenset({"config", "source", "checkpoint", "reason"}),
    "add": frozenset({"config", "source", "checkpoint", "timeout_s", "tags", "notes", "key"}),
    "ask": frozenset({"config", "timeout_s", "tags", "notes", "key"}),
    "tell": frozenset({"metrics", "ends", "config", "tags", "notes", "key"}),
    LABEL: LABELS,
    "set": frozenset({"max_trials", *SETTABLE}),
    "end": frozenset({"now", "reason"}),
}
#: Actions that take effect by the event of their answer, and therefore in a replay too.
_SETTINGS: Final = frozenset({"set", "end"})


class ExperimentEnding(NamedTuple):
    """A user's request to end the experiment."""

    #: Whether running trials are stopped.
    now: bool
    reason: str


class Requests:
    """Checks users' requests, and carries them out or refuses them.

    A request is *open* until the driver has answered it, or has queued the trial that it adds. A request "ask" waits
    until the searcher has a config. "ask" and "tell" also wait while the journal is full. "set" holds from its answer
    on until the script of a later run has other limits. "end" holds until the experiment has finished. Both also hold
    for later drivers.
    """

    def __init__(
        self,
        experiment: Experiment,
        slots: SlotFiller,
        settings: Settings,
        path: EventPath,
        checkpoints: CheckpointGC,
        ledger: Ledger,
        heartbeat: Heartbeat,
        clock: Clock,
    ) -> None:
        #: The current options of the run.
        self.options: RunOptions = settings.run
        #: Why the driver starts no further trial, in words. Empty if it does.
        self.over = ""
        #: The request to end the experiment, or None.
        self.ending: ExperimentEnding | None = None
        self._experiment = experiment
        self._slots = slots
        self._space = settings.space
        self._path = path
        self._checkpoints = checkpoints
        self._ledger = ledger
        self._heartbeat = heartbeat
        self._clock = clock
        self._time_attr = settings.scheduler.time_attr
        #: Unanswered requests that change options.
        self._settings: dict[str, Requested] = {}
        #: Ids of requests whose trial waits for a slot.
        self._queued: set[str] = set()
        #: Trials that requests have paused.
        self._paused: set[TrialId] = set()

    # Requests in the journal.

    def open(self) -> list[Requested]:
        """Return the open requests, in the order of the journal."""
        return [request for request in self._experiment.requests.values() if request.id not in self._queued]

    def queued(self) -> list[Requested]:
        """Return the requests whose trial waits for a slot."""
        return [request for id_, request in self._experiment.requests.items() if id_ in self._queued]

    def carry_out(self) -> None:
        """Carry out or refuse the first ``AT_ONCE`` open requests.

        The limit leaves time for reports and the lock if there are very many requests.
        """
        for request in self.open()[:AT_ONCE]:
            if (trial := self._experiment.carried_out.get(request.id)) is not None:
                # An earlier driver has carried out the request, and died before it answered.
                reason = why_over(self._experiment.trials[TrialId(trial)]) if request.action == "tell" else ""
                self._path.carry_out(AnswerRequest(request.id, is_done=True, reason=reason, trial=trial))
                continue
            action = None
            try:
                action = self._action_for(request)
                if action is None:
                    continue
                if isinstance(action, Addition):
                    self._queued.add(request.id)
                    self.add(action)
                else:
                    self._path.carry_out(action)
            except (InvalidTransition, ConfigurationError) as error:
                if isinstance(action, Stage) and action.suggested:
                    # The config is the searcher's, so this is an error of the searcher and not of the request.
                    raise
                self.refuse(request.id, error)
        if self.ending is not None:
            for queued in self.queued():
                self.refuse(queued.id, ExperimentFinished(f"the experiment ends: {self.ending.reason}"))

    def refuse(self, request: str, error: MqtuneError) -> None:
        """Answer that a request is refused, and why."""
        trial = self._experiment.requests[request].trial
        self._path.carry_out(AnswerRequest(request, is_done=False, reason=str(error), trial=trial))

    def add(self, addition: Addition) -> None:
        """Queue a user's trial, to start before the searcher's next one.

        Its checkpoint is kept until then.
        """
        self._slots.add(addition)
        self._path.carry_out_all(self._checkpoints.hold(addition, addition.checkpoint))

    # Actions from the driver's own process.

    def steer(
        self,
        action: str,
        trial: str,
        arguments: dict[str, object],
        brought: CheckpointId = _NOTHING,
        *,
        in_hand: Report | None = None,
    ) -> None:
        """Carry out an action of the user immediately, see ``Driver.steer``.

        *in_hand* is the report that ``next_report`` has returned last: a decision on its trial is journaled as made on
        that report.
        """
        request = self._request(action, trial, arguments)
        wanted = self._action_for(request, brought)
        if wanted is None or isinstance(wanted, Addition | AnswerRequest):
            request = replace(request, id=secrets.token_hex(16))
            self._ledger.surely(lambda: self._ledger.journal.request(request))
            self._ledger.wrote([request.encode()])
            return
        if isinstance(wanted, Decide) and in_hand is not None and in_hand.trial == wanted.trial.id:
            wanted = replace(wanted, sequence=in_hand.sequence)
        self._path.carry_out(wanted)

    def check(self, action: str, trial: str, arguments: dict[str, object]) -> None:
        """Check whether ``steer`` would accept these arguments, and change nothing.

        Raises:
            as ``Driver.steer``.
        """
        self._action_for(self._request(action, trial, arguments))

    def start(self, arguments: dict[str, object], brought: CheckpointId = _NOTHING) -> Trial:
        """Stage the trial of an "add" action now, even without a free slot, and return it.

        Raises:
            as ``Driver.steer``.
        """
        new = next_trial_id(self._experiment)
        # The id seeds the sampling of missing values, so the same trial gets the same values.
        added = self._action_for(self._request("add", "", arguments, id_=new), brought)
        assert isinstance(added, Addition)  # noqa: S101 - that is what "add" asks for
        stage = self._slots.staging(replace(added, request=""))
        self._path.carry_out(stage)
        return self._experiment.trials[stage.trial]

    def take(self, action: str, trial: str, arguments: dict[str, object]) -> Trial | None:
        """Carry out an "ask" or "tell" action now, and return its trial.

        Return None if the action must wait for the searcher or for space in the journal. Then call this again later.

        Raises:
            as ``Driver.steer``.
        """
        # The id seeds the sampling of missing values, so the same trial gets the same values.
        request = self._request(action, trial, arguments, id_=next_trial_id(self._experiment))
        wanted = self._action_for(request)
        if isinstance(wanted, Stage | Tell | Decide):
            self._path.carry_out(replace(wanted, request=""))
            changed = wanted.trial.id if isinstance(wanted, Decide) else wanted.trial
        elif isinstance(wanted, AnswerRequest):
            changed = TrialId(wanted.trial)
        else:
            return None
        return self._experiment.trials[changed]

    def _request(self, action: str, trial: str, arguments: dict[str, object], *, id_: str = "") -> Requested:
        return Requested(id=id_, action=action, trial=trial, arguments=arguments, by="", at=self._clock.time())

    # The current options.

    @property
    def has_paused(self) -> bool:
        """Whether a request has paused a trial that is still paused. Another request may resume it."""
        trials = self._experiment.trials
        return any(trials[id_].status is TrialStatus.PAUSED for id_ in self._paused)

    def hear(self, event: Event) -> tuple[()]:
        """Track requests. Apply a request "set" or "end" when it is answered."""
        match event:
            case Requested() if event.action in _SETTINGS:
                self._settings.setdefault(event.id, event)
            case RequestAnswered():
                self._queued.discard(event.id)
                request = self._settings.pop(event.id, None)
                if request is not None and event.done:
                    self._apply_setting(request)
            case DriverStarted():
                self.change_limits(event.changes)
            case ExperimentEnded(outcome="finished"):
                self.ending = None
            case DecisionTaken() if event.request and event.action == Action.PAUSE.value:
                self._paused.add(event.trial)
            case _:
                pass
        return ()

    def _apply_setting(self, request: Requested) -> None:
        if request.action == "end":
            self.ending = ExperimentEnding(bool(request.arguments.get("now")), _reason(request))
        else:
            self.change_limits(request.arguments)

    def change_limits(self, changes: Mapping[str, object]) -> None:
        """Apply options that a request, or a script that continues the experiment, has changed."""
        if "max_trials" in changes:
            self._slots.max_trials = optional_count("max_trials", changes["max_trials"], 1)
        self.options = self._changed(changes)
        self._slots.max_concurrent = self.options.max_concurrent
        self._heartbeat.journal_mb = float(self.options.journal_mb)

    def _changed(self, changes: Mapping[str, object]) -> RunOptions:
        """Return the run's options with the values of *changes*. Keys of other options are ignored.

        Raises:
            ConfigurationError: a value is invalid.
        """
        changed: dict[str, Any] = {name: changes[name] for name in SETTABLE if name in changes}
        return replace(self.options, **changed)

    # From requests to actions.

    def _action_for(self, request: Requested, brought: CheckpointId = _NOTHING) -> DriverAction | Addition | None:
        """Return the action that carries out a request.

        For "add", return the trial to start in a free slot. Return None if the request must wait.

        Args:
            request: the request.
            brought: the id of a folder that was copied into the store, to start from it. Empty without one.

        Raises:
            InvalidTransition: the trial's status doesn't allow the action.
            ConfigurationError: there is no such action, trial or checkpoint, or an argument is invalid.
        """
        known = _ARGUMENTS.get(request.action)
        if known is None:
            raise ConfigurationError(f"there is no action {request.action!r}; there are {', '.join(_ARGUMENTS)}")
        if unknown := sorted(request.arguments.keys() - known):
            raise ConfigurationError(
                f"{request.action} has no argument {unknown[0]!r}; it has {', '.join(sorted(known)) or 'none'}"
            )
        if request.action in _DECISIONS:
            action = _DECISIONS[request.action]
            return Decide(
                trial=self._find_trial(request.trial),
                action=action,
                by="user",
                reason=_reason(request),
                request=request.id,
            )
        match request.action:
            case "save":
                return Save(self._find_trial(request.trial), request.id)
            case "resume":
                return self._plan_resume(request, brought)
            case "restart":
                return self._plan_restart(request, brought)
            case "add":
                return self._plan_add(request, brought)
            case "ask":
                return self._plan_ask(request)
            case "tell":
                return self._plan_tell(request)
            case "label":
                trial = self._find_trial(request.trial) if request.trial else None
                return Label(trial, (trial or self._experiment).labels.after(request.arguments))
            case _:
                return self._check_setting(request)

    def _check_open(self) -> None:
        """Raise if a request ends the experiment, so that nothing may start any more."""
        if self.ending is not None:
            raise ConfigurationError(f"nothing is started any more: the experiment ends ({self.ending.reason})")

    def _plan_resume(self, request: Requested, brought: CheckpointId) -> Stage:
        trial = self._find_trial(request.trial)
        self._check_open()
        check_paused(trial)
        changes = _argument(request, "config", dict)
        wanted = None if changes is None else self._space.changed(trial.config, changes, random.Random(0))
        source, checkpoint = None, brought
        if request.arguments.get("checkpoint") == "decided":
            origin = decided_checkpoint(trial)
            restart = Restart(wanted or trial.config, *origin, by="user", reason=_reason(request))
            return restage(trial, restart, request=request.id)
        if request.arguments.get("checkpoint") is not None:
            source, checkpoint = self._find_origin(request, trial)
        return stage_resumed(
            self._experiment,
            trial,
            by="user",
            reason=_reason(request),
            config=wanted,
            source=source,
            checkpoint=checkpoint,
            request=request.id,
        )

    def _plan_restart(self, request: Requested, brought: CheckpointId) -> Stage | Decide:
        trial, reason = self._find_trial(request.trial), _reason(request)
        self._check_open()
        changes: Config = _argument(request, "config", dict) or {}
        wanted = self._space.changed(trial.config, changes, random.Random(0))
        has_ended = trial.attempt.end is not None
        trial.check(TrialStatus.QUEUED) if has_ended else check_decision(trial, Action.PAUSE)
        source, checkpoint = (None, brought) if brought else self._find_origin(request, trial)
        restart = Restart(wanted, checkpoint, source, by="user", reason=reason)
        if has_ended:
            return restage(trial, restart, request=request.id)
        return Decide(trial=trial, action=Action.PAUSE, by="user", reason=reason, restart=restart, request=request.id)

    def _plan_add(self, request: Requested, brought: CheckpointId) -> Addition | AnswerRequest:
        key = _argument(request, "key", str) or ""
        if key in self._experiment.keys:
            return AnswerRequest(request.id, is_done=True, trial=self._experiment.keys[key])
        self._check_open()
        config = _argument(request, "config", dict)
        if config is None:
            raise ConfigurationError("add lacks a config")
        source, checkpoint = (None, brought) if brought else self._find_origin(request, None)
        tags = _argument(request, "tags", list)
        return Addition(
            # Every driver samples the same missing values.
            config=self._space.complete(config, random.Random(request.id)),
            source=source,
            checkpoint=checkpoint,
            timeout_s=optional_seconds("timeout_s", request.arguments.get("timeout_s")),
            labels=NO_LABELS.changed(tags, _argument(request, "notes", str)),
            request=request.id,
            key=key,
        )

    def _plan_ask(self, request: Requested) -> Stage | AnswerRequest | None:
        key = _argument(request, "key", str) or ""
        if key in self._experiment.keys:
            return AnswerRequest(request.id, is_done=True, trial=self._experiment.keys[key])
        self._check_open()
        if self.over:
            raise ConfigurationError(f"nothing is started any more: the experiment ends ({self.over})")
        config = _argument(request, "config", dict)
        labels = NO_LABELS.changed(_argument(request, "tags", list), _argument(request, "notes", str))
        timeout_s = optional_seconds("timeout_s", request.arguments.get("timeout_s"))
        if self._slots.journal_room.is_full:
            return None
        if config is not None:
            stage = self._slots.staging(Addition(self._space.complete(config, random.Random(request.id))))
        elif (suggested := self._slots.suggestion()) is not None:
            stage = suggested
        elif self._slots.is_suggestion_due:
            return None
        else:
            raise ConfigurationError(f"there is no config to ask for: {self._slots.why_none}; give one of your own")
        return replace(stage, timeout_s=timeout_s, labels=labels, request=request.id, key=key, outside=True)

    def _plan_tell(self, request: Requested) -> Tell | Decide | AnswerRequest | None:
        metrics = check_told(request.arguments.get("metrics"), self._experiment, self._time_attr)
        ends = _argument(request, "ends", bool) is not False
        if request.trial and (others := sorted(request.arguments.keys() & {"config", "tags", "notes", "key"})):
            raise ConfigurationError(
                f"tell has a trial and {others[0]!r}, which is for a new one: leave one of them out"
            )
        known = request.trial or self._experiment.keys.get(_argument(request, "key", str) or "")
        if self._slots.journal_room.is_full:
            return None
        if not known:
            return self._plan_tell_new(request, metrics, ends=ends)
        trial = self._find_trial(known)
        if not trial.outside:
            raise ConfigurationError(
                f"trial {trial.id} runs on a worker, which reports its results; use tell only for trials that ask has "
                f"begun"
            )
        if trial.attempt.end is not None:
            if has_told_all(trial, metrics) or not request.trial:
                return AnswerRequest(request.id, is_done=True, trial=trial.id)
            raise InvalidTransition(
                f"no further result is accepted: {why_over(trial) or f'trial {trial.id} is COMPLETED'}"
            )
        if not is_repeated(trial, metrics, self._time_attr):
            return Tell(trial=trial.id, metrics=metrics, ends=ends, request=request.id)
        if ends:
            reason = "its last step was told before"
            return Decide(trial=trial, action=Action.COMPLETE, by="user", reason=reason, request=request.id)
        return AnswerRequest(request.id, is_done=True, trial=trial.id)

    def _plan_tell_new(self, request: Requested, metrics: Metrics, *, ends: bool) -> Tell:
        config = _argument(request, "config", dict)
        if config is None:
            raise ConfigurationError("tell lacks both a trial and a config")
        if not ends:
            raise ConfigurationError(
                "tell has a config and is not the last report: begin a trial with ask and this config, and tell its id"
            )
        self._space.check(config)
        stage = self._slots.staging(Addition(self._space.fit(config)))
        labels = NO_LABELS.changed(_argument(request, "tags", list), _argument(request, "notes", str))
        key = _argument(request, "key", str) or ""
        stage = replace(stage, timeout_s=None, labels=labels, key=key, outside=True)
        return Tell(trial=stage.trial, metrics=metrics, ends=True, stage=stage, request=request.id)

    def _check_setting(self, request: Requested) -> AnswerRequest:
        if request.action == "end":
            _argument(request, "now", bool)
            _reason(request)
        else:
            if not request.arguments:
                raise ConfigurationError(
                    f"set changes nothing: give max_trials, {', '.join(SETTABLE[:-1])} or {SETTABLE[-1]}"
                )
            if "max_trials" in request.arguments:
                optional_count("max_trials", request.arguments["max_trials"], 1)
            self._changed(request.arguments)
        return AnswerRequest(request.id, is_done=True)

    def _find_origin(self, request: Requested, trial: Trial | None) -> tuple[TrialId | None, CheckpointId]:
        """Return the trial and the checkpoint from which a request's trial starts.

        The first value is None if the checkpoint is the trial's own. Without a checkpoint, the values are None and an
        empty id.
        """
        source = _argument(request, "source", str)
        checkpoint = _argument(request, "checkpoint", str)
        if checkpoint is None and not source:
            return None, CheckpointId("")
        if (
            checkpoint is not None
            and checkpoint not in ("newest", "best")
            and not attempt_and_number(CheckpointId(checkpoint))[1]
        ):
            raise ConfigurationError(f"checkpoint={checkpoint!r} is neither 'newest' nor 'best' nor a checkpoint's id")
        origin = self._find_trial(source).id if source else None
        if origin is None and trial is not None and checkpoint in ("newest", "best"):
            origin = trial.id
        chosen = choose_checkpoint(self._experiment, origin, checkpoint or "newest")
        if not isinstance(chosen, str):
            raise ConfigurationError(f"checkpoint={checkpoint!r} is not a checkpoint of this experiment")
        # The newest checkpoint of a trial that has not saved one may belong to the trial from which it began.
        origin = origin or trial_of(chosen)
        return (None if trial is not None and origin == trial.id else origin), chosen

    def _find_trial(self, trial: str) -> Trial:
        known = self._experiment.trials.get(TrialId(trial))
        if known is None:
            raise ConfigurationError(
                f"there is no trial {trial!r} in experiment {self._experiment.name!r}; "
                f"it has {len(self._experiment.trials)}, from '0001' on"
            )
        return known


def _argument(request: Requested, name: str, kind: type[T]) -> T | None:
    """Return an argument of a request, or None if it is missing.

    Raises:
        ConfigurationError: it is of another type.
    """
    value = request.arguments.get(name)
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(f"{name}={value!r:.80} of {request.action} is not of type {kind.__name__}")
    return value


def _reason(request: Requested) -> str:
    # Leave out the process id after the user's name.
    by = request.by.partition(" (")[0]
    return _argument(request, "reason", str) or f"requested by {by or 'a user'}"
