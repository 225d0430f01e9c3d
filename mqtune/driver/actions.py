"""What a driver does to trials: each command is checked first, then journaled, then carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mqtune.backends.base import BackendSession
from mqtune.core.clock import Clock
from mqtune.core.codec import encode_value
from mqtune.core.errors import CheckpointGone, ConfigurationError, InvalidTransition
from mqtune.core.events import (
    AttemptEnded,
    CheckpointsDropped,
    Cursor,
    DecisionTaken,
    DriverStarted,
    Event,
    ExperimentEnded,
    Labelled,
    TrialClosed,
    TrialStaged,
)
from mqtune.core.experiment import Experiment
from mqtune.core.labels import NO_LABELS, Labels
from mqtune.core.status import TrialStatus
from mqtune.core.text import name_in_words
from mqtune.core.trial import Action, AttemptEnd, CheckpointId, Config, Intent, Trial, TrialId, is_in_memory, trial_of
from mqtune.journal.base import Assignment, Cleared, DriverSide

__all__ = ["Commands", "check_decision", "check_paused", "next_trial_id"]

NO_CHANGES: Final[Mapping[str, Any]] = {}
_INTENTS = {
    Action.STOP: Intent.STOP,
    Action.PAUSE: Intent.PAUSE,
    Action.COMPLETE: Intent.COMPLETE,
    Action.ABANDON: Intent.ABANDON,
    # For its worker it is a stop; the decision says what becomes of the trial.
    Action.FAIL: Intent.STOP,
}
#: What a trial becomes for each of them.
_AIMS = {
    Action.STOP: TrialStatus.EARLY_STOPPED,
    Action.PAUSE: TrialStatus.PAUSED,
    Action.COMPLETE: TrialStatus.COMPLETED,
    Action.ABANDON: TrialStatus.ABANDONED,
    Action.FAIL: TrialStatus.FAILED,
}
#: The decisions, not carried out yet, in whose place each of them may be taken.
_MAY_OVERRIDE = {
    Action.PAUSE: frozenset[Action](),
    Action.STOP: frozenset({Action.PAUSE}),
    Action.COMPLETE: frozenset({Action.PAUSE}),
    Action.FAIL: frozenset({Action.PAUSE}),
    Action.ABANDON: frozenset({Action.PAUSE, Action.STOP, Action.COMPLETE, Action.FAIL}),
}

#: The most bytes that a config may have, packed, with all else that stages an attempt: driver and Redis remember those of all.
MAX_CONFIG_BYTES: Final = 2**20


class Commands:
    """The driver's hand; every event that it writes carries the driver's cursor.

    Args:
        journal: the experiment's.
        backend: where attempts run.
        experiment: the fold, to which each event is applied once it is journaled.
        clock: tells the time of events.
        cursor: how far the driver has come.
        on_staged: hears of each staged attempt.
        on_event: applies an event that ends an attempt or a trial, and tells those who wait for it.
    """

    def __init__(
        self,
        journal: DriverSide,
        backend: BackendSession,
        experiment: Experiment,
        *,
        clock: Clock,
        cursor: Callable[[], Cursor],
        on_staged: Callable[[Trial], None],
        on_event: Callable[[Event], None],
    ) -> None:
        self._journal = journal
        self._backend = backend
        self._experiment = experiment
        self._clock = clock
        self._cursor = cursor
        self._on_staged = on_staged
        self._on_event = on_event

    def stage(
        self,
        trial: TrialId,
        config: Config,
        *,
        by: str,
        suggested: bool = False,
        reason: str = "",
        checkpoint: CheckpointId = CheckpointId(""),  # noqa: B008 - a string
        source: TrialId | None = None,
        ttl_s: float | None = None,
        labels: Labels = NO_LABELS,
    ) -> Trial:
        """Stage the next attempt of a trial, or the first of a new one, and offer it to the slots.

        Raises:
            InvalidTransition: it can't run now.
            ConfigurationError: the config is larger than ``MAX_CONFIG_BYTES``.
        """
        known = self._experiment.trials.get(trial)
        if known is not None:
            known.check(TrialStatus.STAGED)
        attempt = 1 if known is None else len(known.attempts) + 1
        if is_in_memory(checkpoint) and checkpoint not in self._experiment.trials[trial_of(checkpoint)].checkpoints:
            # Redis has lost it since it was named.
            checkpoint, source = _newest(known), None
        event = TrialStaged(
            trial=trial,
            attempt=attempt,
            config=config,
            at=self._clock.time(),
            cursor=self._cursor(),
            suggested=suggested,
            reason=reason,
            by=by,
            checkpoint=checkpoint,
            source=source or "",
            ttl_s=ttl_s,
            tags=list(labels.tags),
            notes=labels.notes,
        )
        try:
            packed = event.encode()
        except TypeError as error:
            raise ConfigurationError(f"the config of trial {trial} can't be sent to a worker: {error}") from None
        if len(packed) > MAX_CONFIG_BYTES:
            raise ConfigurationError(_too_large(trial, config, len(packed)))
        try:
            self._journal.stage(trial, attempt, Assignment(config, checkpoint, ttl_s), packed)
        except CheckpointGone:
            return self.stage(
                trial,
                config,
                by=by,
                suggested=suggested,
                reason=reason,
                checkpoint=_newest(known),
                ttl_s=ttl_s,
                labels=labels,
            )
        self._experiment.apply(event)
        self._backend.publish(trial, attempt, config)
        staged = self._experiment.trials[trial]
        self._on_staged(staged)
        return staged

    def again(self, trial: Trial, *, by: str, reason: str) -> Trial:
        """Stage another attempt of a trial from where it was: its newest checkpoint, else from scratch."""
        source = trial.attempt.source if trial.checkpoint == trial.attempt.checkpoint else None
        return self.stage(
            trial.id,
            trial.config,
            by=by,
            reason=reason,
            checkpoint=trial.checkpoint,
            source=source,
            ttl_s=trial.ttl_s,
        )

    def resume(
        self,
        trial: Trial,
        *,
        by: str,
        reason: str,
        config: Config | None = None,
        source: TrialId | None = None,
        checkpoint: CheckpointId = CheckpointId(""),  # noqa: B008 - a string
    ) -> Trial:
        """Stage a paused trial again, with another config if one is given, and from another trial's checkpoint.

        Without *checkpoint* it goes on from the newest, of *source* or its own.

        Raises:
            InvalidTransition: it isn't paused.
            ConfigurationError: *source* has no checkpoint.
        """
        check_paused(trial)
        if not checkpoint:
            if source is None and config is None:
                return self.again(trial, by=by, reason=reason)
            checkpoint = trial.checkpoint if source is None else self.checkpoint_of(source)
            if source is None and checkpoint == trial.attempt.checkpoint:
                source = trial.attempt.source
        return self.stage(
            trial.id,
            trial.config if config is None else config,
            by=by,
            reason=reason,
            checkpoint=checkpoint,
            source=source,
            ttl_s=trial.ttl_s,
        )

    def checkpoint_of(self, source: TrialId) -> CheckpointId:
        """Return the checkpoint from which another trial may start.

        Raises:
            ConfigurationError: there is no such trial, or it has none.
        """
        trial = self._experiment.trials.get(source)
        if trial is None:
            raise ConfigurationError(
                f"there is no trial {source!r} to start from; there are {len(self._experiment.trials)}"
            )
        if not trial.checkpoint:
            raise ConfigurationError(
                f"trial {source} has no checkpoint to start from; "
                "save one with mqtune.report(metrics, checkpoint=…), or start the config from scratch"
            )
        return trial.checkpoint

    def decide(
        self,
        trial: Trial,
        action: Action,
        *,
        by: str,
        reason: str,
        sequence: int = 0,
        restart: dict[str, Any] | None = None,
    ) -> None:
        """Have a trial stopped, paused, completed, failed or abandoned; one that is not under way ends where it is.

        Raises:
            InvalidTransition: its status doesn't allow it, or its end is decided already; nothing was done.
        """
        attempt = trial.attempt
        if attempt.end is not None:
            self.close(trial, _AIMS[action], by=by, reason=reason)
            return
        check_decision(trial, action)
        self._end_attempt(
            trial, _INTENTS[action], action.value, by=by, reason=reason, sequence=sequence, restart=restart or {}
        )

    def hand_back(self, trial: Trial, reason: str) -> None:
        """End a trial's attempt so that a later driver can run the trial again; once."""
        if trial.attempt.intent is Intent.HAND_BACK:
            return
        self._end_attempt(trial, Intent.HAND_BACK, "hand_back", by="driver", reason=reason, sequence=0, restart={})

    def _end_attempt(
        self,
        trial: Trial,
        intent: Intent,
        action: str,
        *,
        by: str,
        reason: str,
        sequence: int,
        restart: dict[str, Any],
    ) -> None:
        """Journal a decision and have it carried out; both happen in one step, on the server."""
        attempt, now, cursor = trial.attempt, self._clock.time(), self._cursor()
        decision = DecisionTaken(
            trial=trial.id,
            attempt=attempt.number,
            sequence=sequence,
            action=action,
            intent=intent,
            reason=reason,
            at=now,
            cursor=cursor,
            by=by,
            restart=restart,
        )
        end = _ENDS.get(intent, AttemptEnd.STOPPED)
        ended = AttemptEnded(trial=trial.id, attempt=attempt.number, end=end, at=now, error=reason, cursor=cursor)
        answer = self._journal.intend(trial.id, attempt.number, intent, decision.encode(), ended.encode())
        self._on_event(decision)
        if answer == "unclaimed":
            self._on_event(ended)

    def close(self, trial: Trial, status: TrialStatus, *, by: str, reason: str) -> None:
        """End, or pause, a trial that has no attempt under way.

        Raises:
            InvalidTransition: its status doesn't allow it; nothing was done.
        """
        trial.check(status)
        event = TrialClosed(
            trial=trial.id,
            status=status.value,
            reason=reason,
            by=by,
            at=self._clock.time(),
            cursor=self._cursor(),
        )
        self._journal.close_trial(trial.id, trial.attempt.number, event.encode())
        self._on_event(event)

    def save(self, trial: Trial) -> None:
        """Have a running trial save a checkpoint as soon as it can.

        Raises:
            InvalidTransition: it doesn't run.
        """
        if not self._journal.request_save(trial.id, trial.attempt.number):
            raise InvalidTransition(
                f"trial {trial.id} is {trial.status.name} and can't save a checkpoint; only a RUNNING one can"
            )

    def clear(self, cleared: Sequence[Cleared]) -> None:
        """Let trials in lockstep go on."""
        self._journal.clear(cleared)

    def drop(self, checkpoints: Sequence[CheckpointId]) -> None:
        """Give checkpoints up, for ever."""
        event = CheckpointsDropped(checkpoints=list(checkpoints), at=self._clock.time(), cursor=self._cursor())
        self._journal.drop_checkpoints(checkpoints, event.encode())
        self._on_event(event)

    def begin(
        self,
        driver: str,
        version: str,
        *,
        definition: bytes | None = None,
        changes: Mapping[str, Any] = NO_CHANGES,
        code_changed: Sequence[str] = (),
    ) -> None:
        """Journal that a driver begins, with which definition, *changes* and changed code if that is another than before."""
        started = DriverStarted(
            driver=driver,
            version=version,
            at=self._clock.time(),
            cursor=self._cursor(),
            changes=dict(changes),
            code_changed=list(code_changed),
        )
        self._record(started, definition)

    def end(self, outcome: str, reason: str) -> None:
        """Journal that the driver is done."""
        if self._experiment.outcome != outcome:
            self._record(ExperimentEnded(outcome=outcome, reason=reason, at=self._clock.time(), cursor=self._cursor()))

    def label(self, trial: Trial | None, labels: Labels) -> None:
        """Give a trial, or without one the experiment, these labels in place of those it has; the same again does nothing."""
        if labels == (self._experiment.labels if trial is None else trial.labels):
            return
        event = Labelled(
            trial="" if trial is None else trial.id,
            tags=list(labels.tags),
            notes=labels.notes,
            by="user",
            at=self._clock.time(),
            cursor=self._cursor(),
        )
        self._record(event)

    def _record(self, event: DriverStarted | ExperimentEnded | Labelled, definition: bytes | None = None) -> None:
        self._journal.record(event.encode(), definition=definition)
        self._experiment.apply(event)


_ENDS = {Intent.HAND_BACK: AttemptEnd.HANDED_BACK, Intent.PAUSE: AttemptEnd.PAUSED}


def check_decision(trial: Trial, action: Action) -> None:
    """Raise unless a trial whose attempt is under way can be told this.

    Raises:
        InvalidTransition: its status doesn't allow it, or its end is decided already.
    """
    trial.check(_AIMS[action])
    if trial.decision is not None and trial.decision.action not in _MAY_OVERRIDE[action]:
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
    return CheckpointId("") if trial is None else next(reversed(trial.checkpoints), CheckpointId(""))


def _too_large(trial: TrialId, config: Config, size: int) -> str:
    sizes = {name: len(encode_value({name: value})) for name, value in config.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    return (
        f"the config of trial {trial} has {size:,} bytes and the most is {MAX_CONFIG_BYTES:,}; its largest value is "
        f"{name_in_words(largest)} with {sizes[largest]:,}: give trials the name of a file that has it"
    )
