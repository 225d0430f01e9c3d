"""Who hears of what happens: the fold first, then scheduler, searcher, stop rule, kept checkpoints and callbacks."""

from __future__ import annotations

from mqtune.backends.base import Backend
from mqtune.callbacks.dispatch import CallbackDispatcher
from mqtune.errors import MetricMissing, MqtuneError, StoreUnavailable, TrainableNotFound, TrialFailed
from mqtune.experiment import Experiment
from mqtune.keeping import Keeping
from mqtune.limits import Limits
from mqtune.messages import AttemptEnded, AttemptStarted, CheckpointSaved, DecisionTaken, Event, TrialClosed
from mqtune.schedulers.base import Scheduler
from mqtune.searchers.base import Searcher
from mqtune.status import TrialStatus
from mqtune.trial import Action, CheckpointId, Trial, TrialId

__all__ = ["Telling"]


class Telling:
    """Applies events, other than reports, and tells those who wait for them, always in the same order.

    A replay tells scheduler, searcher and rule, which come back by it; callbacks hear only of what is new.
    """

    def __init__(
        self,
        experiment: Experiment,
        backend: Backend,
        scheduler: Scheduler,
        searcher: Searcher,
        keeping: Keeping,
        callbacks: CallbackDispatcher,
        limits: Limits,
    ) -> None:
        self.failure: MqtuneError | None = None
        #: Why the experiment ends although there is more to do, or empty.
        self.over = ""
        #: Whether the replay is over.
        self.is_live = False
        self._experiment = experiment
        self._backend = backend
        self._scheduler = scheduler
        self._searcher = searcher
        self._keeping = keeping
        self._callbacks = callbacks
        self._rule = limits.rule
        self._fail_fast = limits.fail_fast

    def apply(self, event: Event) -> None:
        """Apply an event, and tell of it."""
        self._experiment.apply(event)
        match event:
            case AttemptEnded():
                self._attempt_ended(event)
            case AttemptStarted():
                self._backend.started(event.trial, event.attempt, event.queue)
                self._tell("on_trial_start", event.trial)
            case DecisionTaken():
                trial = self._experiment.trials[event.trial]
                if trial.is_abandoned:
                    self._abandoned(trial)
                self._changed(trial)
                if trial.decision is not None:
                    self._tell("on_decision", event.trial, trial.decision)
            case TrialClosed():
                self._trial_rests(self._experiment.trials[event.trial])
            case CheckpointSaved():
                self.saved(self._experiment.trials[event.trial], CheckpointId(event.checkpoint))
            case _:
                pass

    def staged(self, trial: Trial) -> None:
        """Tell that an attempt of *trial* was staged; the fold knows it already."""
        self._scheduler.on_stage(trial)
        self._changed(trial)
        self._tell("on_stage", trial.id)
        if len(trial.attempts) > 1 and trial.history[-2].status is TrialStatus.PAUSED:
            self._tell("on_trial_resume", trial.id)

    def restored(self, entries: int, missing: int) -> None:
        """Tell that Redis had lost entries of the journal, and that they were put back."""
        self._keeping.look_for_lost()
        self._callbacks.tell("on_restore", entries, missing)

    def saved(self, trial: Trial, checkpoint: CheckpointId) -> None:
        """Tell that *trial* has a checkpoint; the fold knows it already."""
        self._tell("on_checkpoint", trial.id, checkpoint)
        self._changed(trial)

    def _attempt_ended(self, event: AttemptEnded) -> None:
        trial = self._experiment.trials[event.trial]
        attempt = trial.attempts[event.attempt - 1]
        self._backend.ended(trial.id, attempt.number)
        self._changed(trial)
        self._tell("on_attempt_end", trial.id, attempt)
        if attempt.could_not_start and not self._could_ever_start():
            error = StoreUnavailable if attempt.error_type == StoreUnavailable.__name__ else TrainableNotFound
            self.failure = error(f"trial {trial.id} could not be started: {attempt.error}")
        if trial.status is TrialStatus.FAILED:
            self._trial_failed(trial)
        self._trial_rests(trial)

    def _could_ever_start(self) -> bool:
        """Whether any worker had all that an attempt needs; else it is the trainable, or the store, and not a worker."""
        trials = self._experiment.trials.values()
        return bool(self._experiment.reports) or any(a.environment for trial in trials for a in trial.attempts)

    def _trial_rests(self, trial: Trial) -> None:
        """Tell what has become of a trial whose process is gone."""
        if trial.status.is_terminal:
            self._trial_ended(trial)
        elif trial.status is TrialStatus.PAUSED:
            self._changed(trial)
            self._scheduler.on_trial_pause(trial)
            self._tell("on_trial_pause", trial.id)

    def _trial_failed(self, trial: Trial) -> None:
        if trial.attempt.reports and not self._experiment.metric_seen:
            self.failure = MetricMissing(f"trial {trial.id}: {trial.reason}")
        elif self.is_live and self._fail_fast == "raise" and self.failure is None:
            self.failure = TrialFailed(f"trial {trial.id} failed: {trial.attempt.error or trial.reason}")
        elif self.is_live and self._fail_fast:
            self.over = f"trial {trial.id} failed: {trial.reason}"

    def _abandoned(self, trial: Trial) -> None:
        """Tell, once, that a trial is given up: as soon as that is decided, or when it has ended so by itself."""
        self._scheduler.on_abandon(trial)
        self._searcher.on_abandon(trial)
        if self._rule is not None:
            self._rule.on_abandon(trial)

    def _trial_ended(self, trial: Trial) -> None:
        if trial.status is TrialStatus.ABANDONED and (
            trial.decision is None or trial.decision.action is not Action.ABANDON
        ):
            self._abandoned(trial)
        self._scheduler.on_trial_end(trial)
        self._searcher.on_trial_end(trial)
        if self._rule is not None:
            try:
                self._rule.on_trial_end(trial)
            except MetricMissing as error:
                self.failure = error
        self._changed(trial)
        self._tell("on_trial_end", trial.id)

    def _changed(self, trial: Trial) -> None:
        # After a replay everything is looked through once.
        if self.is_live:
            self._keeping.changed(trial)

    def _tell(self, method: str, trial: TrialId, *more: object) -> None:
        """Tell callbacks, once the replay is over: what happened before is not told again."""
        if self.is_live and self._callbacks.hears(method):
            self._callbacks.tell(method, self._experiment.trials[trial], *more)
