"""The actions of a driver, as data: each has a method that checks and journals it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

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
    Told,
    TrialClosed,
    TrialStaged,
)
from mqtune.core.experiment import Experiment
from mqtune.core.labels import NO_LABELS, Labels
from mqtune.core.resources import Resources
from mqtune.core.text import name_in_words
from mqtune.core.trial import (
    EFFECTS,
    Action,
    AttemptEnd,
    CheckpointId,
    Config,
    Intent,
    Restart,
    Trial,
    TrialId,
    TrialStatus,
    is_in_memory,
    trial_of,
)
from mqtune.core.version import __version__
from mqtune.journal.base import Assignment, Guard, Journal

logger = logging.getLogger(__name__)

_NO_CHECKPOINT: Final = CheckpointId("")

#: Largest size of an encoded ``TrialStaged`` event. Driver and Redis keep these events of all trials in memory.
MAX_CONFIG_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Writing:
    """The state and the journal that an action uses to check and write itself."""

    journal: Journal
    #: The fold, to check whether the action is allowed. The caller applies the written events to it.
    experiment: Experiment
    #: The time of the new events, in seconds since the epoch.
    at: float
    #: The driver's position in the journal.
    cursor: Cursor
    #: Dict checkpoints that the server has lost, and the fold may still have.
    lost: Collection[CheckpointId]
    #: Returns the resources for a config. None if all trials have the same resources.
    asks: Callable[[Config], Resources] | None = None
    #: The resources of all trials or, if they depend on the config, an example. The number of slots is always the same.
    resources: Resources = Resources()  # noqa: RUF009 - frozen

    def has(self, checkpoint: CheckpointId) -> bool:
        """Whether a dict checkpoint still exists, as far as the driver knows."""
        return checkpoint not in self.lost and checkpoint in self.experiment.trials[trial_of(checkpoint)].checkpoints


class Written(NamedTuple):
    """A journaled event and its encoded bytes."""

    event: Event
    data: bytes


class DriverAction(Protocol):
    """One action of a driver."""

    def write(self, to: Writing) -> list[Written]:
        """Check the action, and carry it out and journal it in one step on the server.

        Return the new events. Nothing in this process changes: the caller applies the events. After an error nothing
        was done.

        Raises:
            InvalidTransition: the trial's status doesn't allow the action, or the trial's end is already decided.
            ConfigurationError: a config is larger than ``MAX_CONFIG_BYTES``, or can't be sent.
            JournalGone: the server has lost the journal.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Stage the next attempt of a trial, or the first attempt of a new one.

    Workers may claim the attempt from then on. An attempt with ``outside`` is only journaled: a person evaluates it.
    """

    trial: TrialId
    config: Config
    by: str
    suggested: bool = False
    reason: str = ""
    checkpoint: CheckpointId = _NO_CHECKPOINT
    source: TrialId | None = None
    timeout_s: float | None = None
    labels: Labels = NO_LABELS
    #: The key under which ``CheckpointGC`` protects *checkpoint* until the attempt is staged.
    holder: Hashable = None
    #: The id of the request that this action carries out. Empty without a request. The same in other actions.
    request: str = ""
    key: str = ""
    outside: bool = False

    def write(self, to: Writing) -> list[Written]:
        event, packed = self.prepare(to)
        if self.outside:
            to.journal.record(packed)
        else:
            task_plan = (event.resources or to.resources).task_plan
            assignment = Assignment(self.config, CheckpointId(event.checkpoint), self.timeout_s, task_plan)
            to.journal.stage(self.trial, event.attempt, assignment, packed)
        return [Written(event, packed)]

    def prepare(self, to: Writing) -> tuple[TrialStaged, bytes]:
        """Check the action, and return its event and the encoded event, without journaling it.

        Raises:
            as ``write``.
        """
        known = to.experiment.trials.get(self.trial)
        if known is not None:
            known.check(TrialStatus.QUEUED)
        checkpoint, source = self.checkpoint, self.source
        if is_in_memory(checkpoint) and not to.has(checkpoint):
            # Redis has lost the checkpoint since it was chosen.
            checkpoint, source = newest_own(known, to.lost), None
        event = TrialStaged(
            trial=self.trial,
            attempt=1 if known is None else len(known.attempts) + 1,
            config=self.config,
            at=to.at,
            cursor=to.cursor,
            suggested=self.suggested,
            reason=self.reason,
            by=self.by,
            checkpoint=checkpoint,
            source=source or "",
            timeout_s=self.timeout_s,
            tags=list(self.labels.tags),
            notes=self.labels.notes,
            request=self.request,
            key=self.key,
            outside=self.outside,
            resources=None if self.outside else self._choose_resources(to, known),
        )
        try:
            packed = event.encode()
        except TypeError as error:
            raise ConfigurationError(f"the config of trial {self.trial} can't be sent to a worker: {error}") from None
        if len(packed) > MAX_CONFIG_BYTES:
            raise ConfigurationError(_too_large(self.trial, self.config, len(packed)))
        return event, packed

    def _choose_resources(self, to: Writing, known: Trial | None) -> Resources | None:
        """Return the resources for the config. Return None if all trials have the same resources.

        If the trial's last attempt had the same config, its resources are used again.
        """
        if to.asks is None:
            return None
        before = None if known is None or known.config != self.config else known.attempt.resources
        # The function of an earlier driver's script may have returned another number of slots.
        return before if before is not None and before.slots == to.resources.slots else to.asks(self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """Stop, pause, complete, fail or abandon a trial. Without an attempt under way, close it."""

    trial: Trial
    action: Action
    by: str
    reason: str
    #: The sequence number of the report on which this is decided. 0 if it is not decided on a report.
    sequence: int = 0
    #: For a pause after which the trial restarts immediately: config and checkpoint of the restart.
    restart: Restart | None = None
    request: str = ""

    def write(self, to: Writing) -> list[Written]:
        trial, by, reason, request = self.trial, self.by, self.reason, self.request
        if trial.attempt.end is not None:
            status = self.action.effect.status
            return Close(trial=trial, status=status, by=by, reason=reason, request=request).write(to)
        check_decision(trial, self.action)
        word, sequence, restart = self.action.value, self.sequence, self.restart
        return _decide(to, trial, word, by, reason, sequence=sequence, restart=restart, request=request)


@dataclass(frozen=True, slots=True)
class Requeue:
    """End a trial's attempt, so that the trial runs again later. Repeating this does nothing."""

    trial: Trial
    reason: str
    #: HAND_BACK, or GIVE_WAY, which leaves the trial time to save. HAND_BACK replaces an earlier GIVE_WAY.
    intent: Intent = Intent.HAND_BACK

    def write(self, to: Writing) -> list[Written]:
        if self.trial.attempt.intent in (Intent.HAND_BACK, self.intent):
            return []
        return _decide(to, self.trial, self.intent.value, "driver", self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """End or pause a trial that has no attempt under way."""

    trial: Trial
    status: TrialStatus
    by: str
    reason: str
    request: str = ""

    def write(self, to: Writing) -> list[Written]:
        trial = self.trial
        trial.check(self.status)
        event = TrialClosed(
            trial=trial.id,
            status=self.status.value,
            reason=self.reason,
            by=self.by,
            at=to.at,
            cursor=to.cursor,
            request=self.request,
        )
        if trial.outside:
            return record(to, event)
        packed = event.encode()
        to.journal.close_trial(trial.id, trial.attempt.number, packed)
        return [Written(event, packed)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lose:
    """End a trial's current attempt as lost.

    Do nothing if the attempt has ended, if *guard* no longer holds on the server, or if the journal has reports of the
    trial that the driver has not read.
    """

    trial: Trial
    error: str
    #: The id of the newest entry that the driver has read.
    read: str
    #: The condition that the server checks, such as an expired lease.
    guard: Guard = "expired"
    error_type: str = ""

    def write(self, to: Writing) -> list[Written]:
        trial = self.trial
        event = AttemptEnded(
            trial=trial.id,
            attempt=trial.attempt.number,
            end=AttemptEnd.LOST,
            at=to.at,
            error_type=self.error_type,
            error=self.error,
            cursor=to.cursor,
        )
        packed = event.encode()
        if not to.journal.lose(trial.id, event.attempt, self.guard, packed, trial.last_timestamp, self.read):
            return []
        about = {"experiment": to.journal.experiment, "trial": trial.id, "attempt": event.attempt}
        logger.warning("trial %s attempt %d: %s", trial.id, event.attempt, self.error, extra=about)
        return [Written(event, packed)]


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Journal the answer to a request."""

    #: The id of the request.
    id: str
    #: Whether it was carried out. Otherwise it is refused, and ``reason`` says why.
    is_done: bool
    reason: str = ""
    #: The trial that the request named or added.
    trial: str = ""

    def write(self, to: Writing) -> list[Written]:
        return record(
            to,
            RequestAnswered(
                id=self.id, done=self.is_done, reason=self.reason, trial=self.trial, at=to.at, cursor=to.cursor
            ),
        )


@dataclass(frozen=True, slots=True)
class Drop:
    """Journal that checkpoints are no longer needed, and delete those in Redis."""

    checkpoints: Sequence[CheckpointId]

    def write(self, to: Writing) -> list[Written]:
        event = CheckpointsDropped(checkpoints=list(self.checkpoints), at=to.at, cursor=to.cursor)
        packed = event.encode()
        to.journal.drop_checkpoints(self.checkpoints, packed)
        return [Written(event, packed)]


@dataclass(frozen=True, slots=True)
class Label:
    """Replace the labels of a trial or, if ``trial`` is None, of the experiment."""

    trial: Trial | None
    labels: Labels

    def write(self, to: Writing) -> list[Written]:
        trial, labels = self.trial, self.labels
        if labels == (to.experiment.labels if trial is None else trial.labels):
            return []
        id_, tags = "" if trial is None else trial.id, list(labels.tags)
        return record(to, Labelled(trial=id_, tags=tags, notes=labels.notes, by="user", at=to.at, cursor=to.cursor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Journal that a driver begins."""

    driver: str
    #: The new encoded definition. None if it has not changed.
    definition: bytes | None
    #: The changed parts of the definition.
    changes: Mapping[str, Any]
    #: The names of the trainable's files that have changed.
    code_changed: Sequence[str]

    def write(self, to: Writing) -> list[Written]:
        event = DriverStarted(
            driver=self.driver,
            version=__version__,
            at=to.at,
            cursor=to.cursor,
            changes=dict(self.changes),
            code_changed=list(self.code_changed),
        )
        return record(to, event, definition=self.definition)


@dataclass(frozen=True, slots=True)
class Finish:
    """Journal that the driver ends, with its outcome."""

    outcome: str
    reason: str

    def write(self, to: Writing) -> list[Written]:
        if to.experiment.outcome == self.outcome:
            return []
        return record(to, ExperimentEnded(outcome=self.outcome, reason=self.reason, at=to.at, cursor=to.cursor))


def record(
    to: Writing,
    *events: DecisionTaken
    | TrialStaged
    | Told
    | AttemptEnded
    | TrialClosed
    | RequestAnswered
    | Labelled
    | DriverStarted
    | ExperimentEnded,
    definition: bytes | None = None,
) -> list[Written]:
    """Journal events in one step, and return them. Workers don't act on such events."""
    packed = [Written(event, event.encode()) for event in events]
    to.journal.record(*(event.data for event in packed), definition=definition)
    return packed


def _decide(
    to: Writing,
    trial: Trial,
    word: str,
    by: str,
    reason: str,
    *,
    sequence: int = 0,
    restart: Restart | None = None,
    request: str = "",
) -> list[Written]:
    """Journal a decision on a trial's attempt, and notify its worker, in one step on the server.

    If no worker runs the attempt, it ends in the same step. *word* is the decision's key in ``EFFECTS``.
    """
    effect, attempt = EFFECTS[word], trial.attempt.number
    decision = DecisionTaken(
        trial=trial.id,
        attempt=attempt,
        sequence=sequence,
        action=word,
        intent=effect.intent,
        reason=reason,
        at=to.at,
        cursor=to.cursor,
        by=by,
        restart=restart,
        request=request,
    )
    # An attempt that no worker runs can't have completed.
    end = AttemptEnd.STOPPED if effect.end is AttemptEnd.COMPLETED else effect.end
    ended = AttemptEnded(trial=trial.id, attempt=attempt, end=end, at=to.at, error=reason, cursor=to.cursor)
    if trial.outside:
        return record(to, decision, ended)
    packed = [Written(event, event.encode()) for event in (decision, ended)]
    answer = to.journal.intend(trial.id, attempt, effect.intent, packed[0].data, packed[1].data)
    return packed if answer == "unclaimed" else packed[:1]


def plan_requeues(experiment: Experiment, reason: str) -> Iterator[Requeue]:
    """Yield a ``Requeue`` for each attempt under way that has no decision yet."""
    for trial in list(experiment.trials.values()):
        if trial.is_busy and trial.attempt.end is None and trial.decision is None:
            yield Requeue(trial, reason)


def plan_stops(experiment: Experiment, *, by: str, reason: str, spare_running: bool = False) -> Iterator[Decide]:
    """Yield a decision to stop for each unfinished trial whose end is not decided yet.

    Trials with a decision to pause are stopped too. With *spare_running*, running trials are left alone.
    """
    for trial in list(experiment.trials.values()):
        decided = trial.decision.action if trial.decision is not None and trial.attempt.end is None else None
        is_spared = spare_running and (trial.status is TrialStatus.RUNNING or decided is not None)
        if not trial.status.is_terminal and decided in (None, Action.PAUSE) and not is_spared:
            yield Decide(trial=trial, action=Action.STOP, by=by, reason=reason)


def restage(trial: Trial, wanted: Restart, *, request: str = "") -> Stage:
    """Return the action that stages a trial's next attempt, as *wanted* describes it."""
    return Stage(
        trial=trial.id,
        config=wanted.config,
        by=wanted.by,
        reason=wanted.reason,
        checkpoint=wanted.checkpoint,
        source=wanted.source,
        timeout_s=trial.timeout_s,
        request=request,
        outside=trial.outside,
    )


def stage_resumed(
    experiment: Experiment,
    trial: Trial,
    *,
    by: str,
    reason: str,
    config: Config | None = None,
    source: TrialId | None = None,
    checkpoint: CheckpointId = _NO_CHECKPOINT,
    request: str = "",
) -> Stage:
    """Return the action that resumes a paused trial.

    Args:
        config: the new config. By default the trial's own.
        source: the trial that *checkpoint* comes from. By default the trial itself.
        checkpoint: the checkpoint to start from. By default the newest of *source*.

    Raises:
        InvalidTransition: the trial isn't paused.
        ConfigurationError: *source* has no checkpoint.
    """
    check_paused(trial)
    if not checkpoint:
        checkpoint, source = newest_checkpoint(trial) if source is None else (checkpoint_of(experiment, source), source)
    config = trial.config if config is None else config
    return restage(trial, Restart(config, checkpoint, source, by=by, reason=reason), request=request)


def newest_checkpoint(trial: Trial) -> tuple[CheckpointId, TrialId | None]:
    """Return a trial's newest checkpoint, or an empty id, and the other trial that saved it."""
    return trial.checkpoint, trial.attempt.source if trial.checkpoint == trial.attempt.checkpoint else None


def decided_checkpoint(trial: Trial) -> tuple[CheckpointId, TrialId | None]:
    """Return the checkpoint that a trial had at the report on which it was paused.

    The result has the form of ``newest_checkpoint``'s.

    Raises:
        ConfigurationError: the trial was not paused on a report.
    """
    named = trial.pause_point
    if named is None:
        raise ConfigurationError(
            f"trial {trial.id} was not paused on a report that next_report returned: leave out checkpoint='decided'"
        )
    return named, trial.attempt.source if named == trial.attempt.checkpoint else None


def checkpoint_of(experiment: Experiment, source: TrialId) -> CheckpointId:
    """Return the newest checkpoint of the trial *source*, for another trial that starts from it.

    Raises:
        ConfigurationError: there is no such trial, or it has no checkpoint.
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
    """Check that this action may be decided on a trial whose attempt is under way.

    Raises:
        InvalidTransition: the trial's status doesn't allow it, or the trial's end is already decided.
    """
    trial.check(action.effect.status)
    if trial.decision is not None and not action.effect.replaces(trial.decision.action.effect):
        raise InvalidTransition(
            f"trial {trial.id} can't be told to {action.value}: "
            f"it has been told to {trial.decision.action.value} already ({trial.reason})"
        )


def check_paused(trial: Trial) -> None:
    """Check that a trial can be resumed.

    Raises:
        InvalidTransition: the trial isn't paused.
    """
    if trial.status is not TrialStatus.PAUSED:
        raise InvalidTransition(
            f"trial {trial.id} is {trial.status.name} and can't be resumed; only a PAUSED trial can"
        )


def next_trial_id(experiment: Experiment) -> TrialId:
    """Return the id of the next new trial: ids count from 0001."""
    return TrialId(f"{len(experiment.trials) + 1:04d}")


def newest_own(trial: Trial | None, lost: Collection[CheckpointId] = ()) -> CheckpointId:
    """Return the newest of a trial's own checkpoints that is not lost, or an empty id."""
    own = () if trial is None else reversed(trial.checkpoints)
    return next((checkpoint for checkpoint in own if checkpoint not in lost), _NO_CHECKPOINT)


def _too_large(trial: TrialId, config: Config, size: int) -> str:
    sizes = {name: len(encode_value({name: value})) for name, value in config.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    return (
        f"the config of trial {trial} has {size:,} bytes and the most is {MAX_CONFIG_BYTES:,}; its largest value is "
        f"{name_in_words(largest)} with {sizes[largest]:,}: give trials the name of a file that has it"
    )
