"""Actions: what a driver does to trials, as data; each is checked, then journaled, in one place."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

from mqtune.core.clock import Clock
from mqtune.core.codec import encode_value
from mqtune.core.errors import ConfigurationError, InvalidTransition
from mqtune.core.events import (
    AttemptEnded,
    CheckpointsDropped,
    Cursor,
    DecisionTaken,
    DriverStarted,
    Event,
    ExperimentEnded,
    Labelled,
    RequestAnswered,
    TrialClosed,
    TrialStaged,
)
from mqtune.core.experiment import Experiment
from mqtune.core.text import name_in_words
from mqtune.core.trial import (
    ACTIONS,
    INTENTS,
    NO_LABELS,
    Action,
    AttemptEnd,
    CheckpointId,
    Config,
    Intent,
    Labels,
    Report,
    Restart,
    Trial,
    TrialId,
    TrialStatus,
    is_in_memory,
    trial_of,
)
from mqtune.journal.base import Assignment, Journal, Released
from mqtune.journal.restore import Restorer

__all__ = [
    "Answer",
    "Begin",
    "Close",
    "Decide",
    "DriverAction",
    "Drop",
    "Finish",
    "Label",
    "Lockstep",
    "Lose",
    "Requeue",
    "Save",
    "Stage",
    "TrialActions",
    "check_decision",
    "check_paused",
    "checkpoint_of",
    "next_trial_id",
    "resuming",
    "retrying",
]

logger = logging.getLogger(__name__)

_NO_CHECKPOINT: Final = CheckpointId("")

#: The most bytes that a packed config may have, with all else that stages an attempt: driver and Redis keep those of all trials.
MAX_CONFIG_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Stage the next attempt of a trial, or the first of a new one, and offer it to the slots.

    ``holder`` is who has named *checkpoint* in the garbage collector until now, if anybody has.
    """

    trial: TrialId
    config: Config
    by: str
    suggested: bool = False
    reason: str = ""
    checkpoint: CheckpointId = _NO_CHECKPOINT
    source: TrialId | None = None
    ttl_s: float | None = None
    labels: Labels = NO_LABELS
    holder: Hashable = None
    #: The id of the request that this carries out; empty for none.
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """Have a trial stopped, paused, completed, failed or abandoned; one whose attempt has ended is closed."""

    trial: Trial
    action: Action
    by: str
    reason: str
    #: The report that it is decided on; 0 for none.
    sequence: int = 0
    #: With a pause: how the trial runs again at once.
    restart: Restart | None = None
    #: The id of the request that this carries out; empty for none.
    request: str = ""


@dataclass(frozen=True, slots=True)
class Requeue:
    """End a trial's attempt so that the trial runs again, under a later driver; once."""

    trial: Trial
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """End, or pause, a trial that has no attempt under way."""

    trial: Trial
    status: TrialStatus
    by: str
    reason: str
    #: The id of the request that this carries out; empty for none.
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lose:
    """End an attempt as lost: its lease has run out or, with ``is_forgotten``, Redis no longer has it."""

    trial: Trial
    error: str
    error_type: str = ""
    is_forgotten: bool = False


@dataclass(frozen=True, slots=True)
class Save:
    """Have a running trial save a checkpoint as soon as it can."""

    trial: Trial
    request: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request: it is carried out, or refused for a reason; ``trial`` is the one that it was about, or made."""

    id: str
    is_done: bool
    reason: str = ""
    trial: str = ""


@dataclass(frozen=True, slots=True)
class Drop:
    """Give checkpoints up for good."""

    checkpoints: Sequence[CheckpointId]


@dataclass(frozen=True, slots=True)
class Label:
    """Replace the labels of a trial or, without one, of the experiment."""

    trial: Trial | None
    labels: Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Record that a driver drives from here on; ``definition`` is None where that has not changed."""

    driver: str
    version: str
    definition: bytes | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    code_changed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """Record that the driver is done."""

    outcome: str
    reason: str


DriverAction = Stage | Decide | Requeue | Close | Lose | Save | Answer | Drop | Label | Begin | Finish


class TrialActions:
    """Checks actions and journals them.

    It changes neither the fold nor anything in this process: whoever calls it folds the events that it returns.

    Args:
        journal: the experiment's.
        experiment: the fold, which says what is allowed.
        clock: the time of the events.
    """

    def __init__(self, journal: Journal, experiment: Experiment, clock: Clock) -> None:
        self._journal = journal
        self._experiment = experiment
        self._clock = clock

    def write(self, action: DriverAction, cursor: Cursor) -> list[Event]:
        """Check an action, journal it in the step that carries it out, and return the new events.

        Args:
            action: what to do.
            cursor: how far the driver has come.

        Raises:
            InvalidTransition: a trial's status doesn't allow it, or its end is decided already; nothing was done.
            ConfigurationError: a config is larger than ``MAX_CONFIG_BYTES``, or can't be sent; nothing was done.
            JournalGone: the server has lost the journal; nothing was done.
        """
        match action:
            case Stage():
                return self._stage(action, cursor)
            case Decide():
                return self._decide(action, cursor)
            case Requeue():
                return self._requeue(action, cursor)
            case Close():
                return self._close(action, cursor)
            case Lose():
                return self._lose(action, cursor)
            case Save():
                return self._save(action)
            case Answer():
                return self._answer(action, cursor)
            case Drop():
                return self._drop(action, cursor)
            case Label():
                return self._label(action, cursor)
            case Begin():
                return self._begin(action, cursor)
            case Finish():
                return self._finish(action, cursor)
            case _:
                assert_never(action)

    def _stage(self, stage: Stage, cursor: Cursor) -> list[Event]:
        known = self._experiment.trials.get(stage.trial)
        if known is not None:
            known.check(TrialStatus.STAGED)
        attempt = 1 if known is None else len(known.attempts) + 1
        checkpoint, source = stage.checkpoint, stage.source
        if is_in_memory(checkpoint) and checkpoint not in self._experiment.trials[trial_of(checkpoint)].checkpoints:
            # Redis has lost it since it was named.
            checkpoint, source = _newest(known), None
        event = TrialStaged(
            trial=stage.trial,
            attempt=attempt,
            config=stage.config,
            at=self._clock.time(),
            cursor=cursor,
            suggested=stage.suggested,
            reason=stage.reason,
            by=stage.by,
            checkpoint=checkpoint,
            source=source or "",
            ttl_s=stage.ttl_s,
            tags=list(stage.labels.tags),
            notes=stage.labels.notes,
            request=stage.request,
        )
        try:
            packed = event.encode()
        except TypeError as error:
            raise ConfigurationError(f"the config of trial {stage.trial} can't be sent to a worker: {error}") from None
        if len(packed) > MAX_CONFIG_BYTES:
            raise ConfigurationError(_too_large(stage.trial, stage.config, len(packed)))
        self._journal.stage(stage.trial, attempt, Assignment(stage.config, checkpoint, stage.ttl_s), packed)
        return [event]

    def _decide(self, decide: Decide, cursor: Cursor) -> list[Event]:
        trial = decide.trial
        if trial.attempt.end is not None:
            status = ACTIONS[decide.action].status
            close = Close(trial=trial, status=status, by=decide.by, reason=decide.reason, request=decide.request)
            return self._close(close, cursor)
        check_decision(trial, decide.action)
        decision = DecisionTaken(
            trial=trial.id,
            attempt=trial.attempt.number,
            sequence=decide.sequence,
            action=decide.action.value,
            intent=ACTIONS[decide.action].intent,
            reason=decide.reason,
            at=self._clock.time(),
            cursor=cursor,
            by=decide.by,
            restart=decide.restart,
            request=decide.request,
        )
        return self._intend(decision)

    def _requeue(self, requeue: Requeue, cursor: Cursor) -> list[Event]:
        trial = requeue.trial
        if trial.attempt.intent is Intent.HAND_BACK:
            return []
        decision = DecisionTaken(
            trial=trial.id,
            attempt=trial.attempt.number,
            sequence=0,
            action=Intent.HAND_BACK.value,
            intent=Intent.HAND_BACK,
            reason=requeue.reason,
            at=self._clock.time(),
            cursor=cursor,
            by="driver",
        )
        return self._intend(decision)

    def _intend(self, decision: DecisionTaken) -> list[Event]:
        """Journal a decision and tell the worker, in one step on the server; an attempt that nobody has claimed ends."""
        end = INTENTS[decision.intent].end
        ended = AttemptEnded(
            trial=decision.trial,
            attempt=decision.attempt,
            # What never ran has completed nothing.
            end=end if end is not AttemptEnd.COMPLETED else AttemptEnd.STOPPED,
            at=decision.at,
            error=decision.reason,
            cursor=decision.cursor,
        )
        answer = self._journal.intend(
            decision.trial, decision.attempt, decision.intent, decision.encode(), ended.encode()
        )
        return [decision, ended] if answer == "unclaimed" else [decision]

    def _close(self, close: Close, cursor: Cursor) -> list[Event]:
        trial = close.trial
        trial.check(close.status)
        event = TrialClosed(
            trial=trial.id,
            status=close.status.value,
            reason=close.reason,
            by=close.by,
            at=self._clock.time(),
            cursor=cursor,
            request=close.request,
        )
        self._journal.close_trial(trial.id, trial.attempt.number, event.encode())
        return [event]

    def _lose(self, lose: Lose, cursor: Cursor) -> list[Event]:
        """End an attempt unless it has ended, or its lease was renewed, in between."""
        trial = lose.trial
        event = AttemptEnded(
            trial=trial.id,
            attempt=trial.attempt.number,
            end=AttemptEnd.LOST,
            at=self._clock.time(),
            error_type=lose.error_type,
            error=lose.error,
            cursor=cursor,
        )
        packed = event.encode()
        is_ended = (
            self._journal.void(trial.id, event.attempt, trial.last_timestamp, packed)
            if lose.is_forgotten
            else self._journal.reap(trial.id, event.attempt, packed)
        )
        if is_ended:
            logger.warning("trial %s attempt %d: %s", trial.id, event.attempt, lose.error)
        return [event] if is_ended else []

    def _save(self, save: Save) -> list[Event]:
        trial = save.trial
        if not self._journal.request_save(trial.id, trial.attempt.number):
            raise InvalidTransition(
                f"trial {trial.id} is {trial.status.name} and can't save a checkpoint; only a RUNNING one can"
            )
        return []

    def _answer(self, answer: Answer, cursor: Cursor) -> list[Event]:
        event = RequestAnswered(
            id=answer.id,
            done=answer.is_done,
            reason=answer.reason,
            trial=answer.trial,
            at=self._clock.time(),
            cursor=cursor,
        )
        self._journal.record(event.encode())
        return [event]

    def _drop(self, drop: Drop, cursor: Cursor) -> list[Event]:
        event = CheckpointsDropped(checkpoints=list(drop.checkpoints), at=self._clock.time(), cursor=cursor)
        self._journal.drop_checkpoints(drop.checkpoints, event.encode())
        return [event]

    def _label(self, label: Label, cursor: Cursor) -> list[Event]:
        trial, labels = label.trial, label.labels
        if labels == (self._experiment.labels if trial is None else trial.labels):
            return []
        event = Labelled(
            trial="" if trial is None else trial.id,
            tags=list(labels.tags),
            notes=labels.notes,
            by="user",
            at=self._clock.time(),
            cursor=cursor,
        )
        self._journal.record(event.encode())
        return [event]

    def _begin(self, begin: Begin, cursor: Cursor) -> list[Event]:
        event = DriverStarted(
            driver=begin.driver,
            version=begin.version,
            at=self._clock.time(),
            cursor=cursor,
            changes=dict(begin.changes),
            code_changed=list(begin.code_changed),
        )
        self._journal.record(event.encode(), definition=begin.definition)
        return [event]

    def _finish(self, finish: Finish, cursor: Cursor) -> list[Event]:
        if self._experiment.outcome == finish.outcome:
            return []
        event = ExperimentEnded(outcome=finish.outcome, reason=finish.reason, at=self._clock.time(), cursor=cursor)
        self._journal.record(event.encode())
        return [event]


class Lockstep:
    """Collects the trials that may go on after their reports, and releases them in one step.

    Args:
        restorer: of the experiment's journal.
        is_on: whether trials wait at all.
    """

    def __init__(self, restorer: Restorer, *, is_on: bool) -> None:
        self.is_on = is_on
        self._restorer = restorer
        self._passed: dict[TrialId, Released] = {}

    def passed(self, report: Report) -> None:
        """Note that a report's trial may go on."""
        self._passed[report.trial] = Released(report.trial, report.attempt, report.sequence)

    def release(self) -> None:
        """Release the collected trials."""
        if self._passed:
            self._restorer.surely(lambda: self._restorer.journal.release(list(self._passed.values())))
            self._passed.clear()

    def release_again(self, experiment: Experiment) -> None:
        """Release every trial that an earlier driver may have left waiting and that is not told to end."""
        self._passed.clear()
        if not self.is_on:
            return
        for trial in experiment.trials.values():
            attempt = trial.attempts[-1]
            if trial.status is TrialStatus.RUNNING and attempt.reports and trial.decision is None:
                self._passed[trial.id] = Released(trial.id, attempt.number, attempt.reports)
        self.release()


def retrying(trial: Trial, *, by: str, reason: str) -> Stage:
    """Return the action that runs a trial again from where it was: its newest checkpoint, else from scratch."""
    source = trial.attempt.source if trial.checkpoint == trial.attempt.checkpoint else None
    return Stage(
        trial=trial.id,
        config=trial.config,
        by=by,
        reason=reason,
        checkpoint=trial.checkpoint,
        source=source,
        ttl_s=trial.ttl_s,
    )


def resuming(
    experiment: Experiment,
    trial: Trial,
    *,
    by: str,
    reason: str,
    config: Config | None = None,
    source: TrialId | None = None,
    checkpoint: CheckpointId = _NO_CHECKPOINT,
) -> Stage:
    """Return the action that resumes a paused trial, with another config if one is given, or from another trial's checkpoint.

    Without *checkpoint* it resumes from the newest, of *source* or its own.

    Raises:
        InvalidTransition: it isn't paused.
        ConfigurationError: *source* has no checkpoint.
    """
    check_paused(trial)
    if not checkpoint:
        if source is None and config is None:
            return retrying(trial, by=by, reason=reason)
        checkpoint = trial.checkpoint if source is None else checkpoint_of(experiment, source)
        if source is None and checkpoint == trial.attempt.checkpoint:
            source = trial.attempt.source
    return Stage(
        trial=trial.id,
        config=trial.config if config is None else config,
        by=by,
        reason=reason,
        checkpoint=checkpoint,
        source=source,
        ttl_s=trial.ttl_s,
    )


def checkpoint_of(experiment: Experiment, source: TrialId) -> CheckpointId:
    """Return the checkpoint from which another trial may start.

    Raises:
        ConfigurationError: there is no such trial, or it has none.
    """
    trial = experiment.trials.get(source)
    if trial is None:
        raise ConfigurationError(f"there is no trial {source!r} to start from; there are {len(experiment.trials)}")
    if not trial.checkpoint:
        raise ConfigurationError(
            f"trial {source} has no checkpoint to start from; "
            "save one with mqtune.report(metrics, checkpoint=…), or start the config from scratch"
        )
    return trial.checkpoint


def check_decision(trial: Trial, action: Action) -> None:
    """Raise unless a trial whose attempt is under way can be told this.

    Raises:
        InvalidTransition: its status doesn't allow it, or its end is decided already.
    """
    trial.check(ACTIONS[action].status)
    if trial.decision is not None and trial.decision.action not in ACTIONS[action].replaces:
        raise InvalidTransition(
            f"trial {trial.id} can't be told to {action.value}: "
            f"it is told to {trial.decision.action.value} already ({trial.reason})"
        )


def check_paused(trial: Trial) -> None:
    """Raise unless a trial can be resumed.

    Raises:
        InvalidTransition: it isn't paused.
    """
    if trial.status is not TrialStatus.PAUSED:
        raise InvalidTransition(
            f"trial {trial.id} is {trial.status.name} and can't be resumed; only a PAUSED trial can"
        )


def next_trial_id(experiment: Experiment) -> TrialId:
    """Return the id of the next new trial: ids count from 0001."""
    return TrialId(f"{len(experiment.trials) + 1:04d}")


def _newest(trial: Trial | None) -> CheckpointId:
    """Return the newest of a trial's own checkpoints."""
    return _NO_CHECKPOINT if trial is None else next(reversed(trial.checkpoints), _NO_CHECKPOINT)


def _too_large(trial: TrialId, config: Config, size: int) -> str:
    sizes = {name: len(encode_value({name: value})) for name, value in config.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    return (
        f"the config of trial {trial} has {size:,} bytes and the most is {MAX_CONFIG_BYTES:,}; its largest value is "
        f"{name_in_words(largest)} with {sizes[largest]:,}: give trials the name of a file that has it"
    )
