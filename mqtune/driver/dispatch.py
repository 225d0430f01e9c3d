"""Who hears of what happens: the fold first, then scheduler, searcher, stop rule, kept checkpoints and callbacks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

from mqtune.backends.base import BackendSession
from mqtune.core.errors import (
    CodeDiffers,
    MetricMissing,
    MqtuneError,
    StoreUnavailable,
    TrainableNotFound,
    TrialFailed,
    UserCodeFailed,
)
from mqtune.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, DecisionTaken, Event, TrialClosed
from mqtune.core.experiment import Experiment
from mqtune.core.status import TrialStatus
from mqtune.core.trial import Action, CheckpointId, Trial, TrialId
from mqtune.driver.checkpoints import Keeping
from mqtune.driver.limits import Limits
from mqtune.driver.screening import Screening
from mqtune.results.callbacks import CallbackDispatcher
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.stopping.rule import StopRule
from mqtune.search.base import Searcher

__all__ = ["Telling", "user_code_failed"]

logger = logging.getLogger(__name__)


#: What the driver ends with when no attempt could be started because of that; else it was the trainable.
_NOT_STARTED: Final[dict[str, type[MqtuneError]]] = {kind.__name__: kind for kind in (CodeDiffers, StoreUnavailable)}


class Telling:
    """Applies events, other than reports, and tells those who wait for them, always in the same order.

    A replay tells scheduler, searcher and rule, which come back by it; callbacks hear only of what is new.
    """

    def __init__(
        self,
        experiment: Experiment,
        backend: BackendSession,
        scheduler: Scheduler,
        searcher: Searcher,
        keeping: Keeping,
        callbacks: CallbackDispatcher,
        limits: Limits,
        screening: Screening,
    ) -> None:
        self.failure: MqtuneError | None = None
        #: Whether scheduler, searcher or rule has failed, so that nothing can be decided any more.
        self.is_broken = False
        #: Why the experiment ends although there is more to do, or empty.
        self.over = ""
        #: Whether the replay is over.
        self.is_live = False
        self._experiment = experiment
        self._backend = backend
        self._scheduler = scheduler
        self._searcher = searcher
        self._keeping = keeping
        #: Where code was not the experiment's, and which, as far as that was said.
        self._said_other_code: set[tuple[str, ...]] = set()
        self._callbacks = callbacks
        self._rule = limits.rule
        self._fail_fast = limits.fail_fast
        self._screening = screening

    def apply(self, event: Event) -> None:
        """Apply an event, and tell of it.

        Raises:
            UserCodeFailed: who was told has failed; the next driver tells it again.
        """
        self._experiment.apply(event)
        if self.is_broken:
            if isinstance(event, AttemptEnded):
                self._backend.ended(event.trial, event.attempt)
            return
        match event:
            case AttemptEnded():
                self._attempt_ended(event)
            case AttemptStarted():
                self._backend.started(event.trial, event.attempt, event.queue)
                self._look_at_code(event)
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

    def failed(self, thing: object, method: str, place: str, error: Exception) -> MqtuneError:
        """Take note that scheduler, searcher or rule has raised an error, and return the one that ends the run."""
        self.is_broken = True
        self.failure = error if isinstance(error, MqtuneError) else user_code_failed(thing, method, place, error)
        return self.failure

    @contextlib.contextmanager
    def asking(self, thing: object, method: str, place: str) -> Iterator[None]:
        """Have what is raised within end the run, with who raised it and about what.

        Raises:
            UserCodeFailed: something was, and is the cause. An error of mqtune's own says enough, and goes on as it is.
        """
        try:
            yield
        except Exception as error:
            if (failure := self.failed(thing, method, place, error)) is error:
                raise
            raise failure from error

    def _ask(self, thing: Scheduler | Searcher | StopRule, method: str, trial: Trial) -> None:
        with self.asking(thing, method, f"trial {trial.id}, attempt {trial.attempt.number}"):
            getattr(thing, method)(trial)

    def staged(self, trial: Trial) -> None:
        """Tell that an attempt of *trial* was staged; the fold knows it already."""
        self._ask(self._scheduler, "on_stage", trial)
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

    def _look_at_code(self, event: AttemptStarted) -> None:
        """Say, once for each worker, that its code is not the experiment's."""
        differs = event.environment.get("differs")
        if not self.is_live or not isinstance(differs, list):
            return
        files = tuple(map(str, differs))
        if (event.worker, *files) not in self._said_other_code:
            self._said_other_code.add((event.worker, *files))
            logger.warning(
                "worker %s runs other code than this experiment's: %s there is not as it was here when the experiment began. Make "
                "them the same; code='strict' would keep such a worker from running its trials",
                event.worker,
                ", ".join(files),
            )

    def _attempt_ended(self, event: AttemptEnded) -> None:
        trial = self._experiment.trials[event.trial]
        attempt = trial.attempts[event.attempt - 1]
        self._backend.ended(trial.id, attempt.number)
        self._changed(trial)
        self._tell("on_attempt_end", trial.id, attempt)
        if attempt.could_not_start and not self._could_ever_start():
            error = _NOT_STARTED.get(attempt.error_type, TrainableNotFound)
            self.failure = error(f"trial {trial.id} could not be started: {attempt.error}")
        elif attempt.error_type == TrainableNotFound.__name__ and not self._experiment.reports:
            # A process that is spawned finds out by itself that its trainable can't be imported.
            self.failure = TrainableNotFound(f"trial {trial.id} could not be started: {trial.reason}")
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
            self._ask(self._scheduler, "on_trial_pause", trial)
            self._tell("on_trial_pause", trial.id)

    def _trial_failed(self, trial: Trial) -> None:
        is_decided = trial.decision is not None and trial.decision.action is Action.FAIL
        if trial.attempt.reports and not self._experiment.metric_seen and not is_decided:
            self.failure = MetricMissing(f"trial {trial.id}: {trial.reason}")
        elif self.is_live and self._fail_fast == "raise" and self.failure is None:
            self.failure = TrialFailed(f"trial {trial.id} failed: {trial.attempt.error or trial.reason}")
        elif self.is_live and self._fail_fast:
            self.over = f"trial {trial.id} failed: {trial.reason}"

    def _abandoned(self, trial: Trial) -> None:
        """Tell, once, that a trial is given up: as soon as that is decided, or when it has ended so by itself."""
        for thing in (self._scheduler, self._searcher, self._rule):
            if thing is not None:
                self._ask(thing, "on_abandon", trial)

    def _trial_ended(self, trial: Trial) -> None:
        if trial.status is TrialStatus.ABANDONED and (
            trial.decision is None or trial.decision.action is not Action.ABANDON
        ):
            self._abandoned(trial)
        self._screening.forget(trial)
        self._ask(self._scheduler, "on_trial_end", trial)
        self._ask(self._searcher, "on_trial_end", trial)
        if self._rule is not None:
            with self.asking(self._rule, "on_trial_end", f"trial {trial.id}"):
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


def user_code_failed(thing: object, method: str, place: str, error: Exception) -> UserCodeFailed:
    """Return the error that says that a scheduler, searcher or rule has raised one, and what to do."""
    return UserCodeFailed(
        f"{type(thing).__name__}.{method} raised {type(error).__name__}: {error} ({place}). All that came before is kept: "
        "correct it and run the same script again, which goes on from there"
    )
