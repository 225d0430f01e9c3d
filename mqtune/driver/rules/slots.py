"""The slot filler chooses the next attempt for a free slot.

That is a retry, a restart, a trial that a user has added, or the scheduler's choice, in this order.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from mqtune.backends.base import BackendSession
from mqtune.core.clock import Clock
from mqtune.core.errors import ConfigurationError, NothingResumes
from mqtune.core.events import Event, TrialStaged
from mqtune.core.experiment import Experiment
from mqtune.core.labels import NO_LABELS, Labels
from mqtune.core.trial import CheckpointId, Config, Restart, Trial, TrialId, TrialStatus, trial_of
from mqtune.driver.hooks import DriverHooks
from mqtune.driver.ports import Appetite
from mqtune.driver.rules.deciders import Deciders
from mqtune.driver.setup.settings import Settings
from mqtune.driver.writing.actions import (
    Close,
    Stage,
    checkpoint_of,
    newest_checkpoint,
    next_trial_id,
    restage,
    stage_resumed,
)
from mqtune.driver.writing.heartbeat import Heartbeat
from mqtune.journal.server.room import JournalRoom
from mqtune.schedulers.base import Choice, Fork, Release, Resume, Start, Wait
from mqtune.search.base import WAIT

#: Largest number of trials that a message names.
_SHOWN: Final = 5
#: A pause with less time left than this is over, in seconds. A clock with floats may never reach its exact end.
_OVER_S: Final = 0.001


@dataclass(frozen=True, slots=True, eq=False)
class Addition:
    """A trial that a user has added and that waits for a slot."""

    config: Config
    #: The other trial that *checkpoint* belongs to, or None.
    source: TrialId | None = None
    #: The checkpoint to start from. If empty, the trial starts from scratch.
    checkpoint: CheckpointId = CheckpointId("")  # noqa: RUF009 - a string
    timeout_s: float | None = None
    labels: Labels = NO_LABELS
    #: The id of the request that has added it. Empty without a request.
    request: str = ""
    key: str = ""


class SlotFiller:
    """Chooses attempts for free slots. Returns actions, and carries out none itself."""

    def __init__(
        self,
        experiment: Experiment,
        backend: BackendSession,
        deciders: Deciders,
        settings: Settings,
        clock: Clock,
        heartbeat: Heartbeat,
        hooks: DriverHooks,
    ) -> None:
        #: Whether the searcher has no more configs.
        self.exhausted = settings.is_open
        #: Why a slot stayed free when it was last to be filled, in words.
        self.waits_for = ""
        #: Whether a slot waits for a config that the searcher works out in the background.
        self.is_suggestion_due = False
        #: Whether the experiment has no space, so that only a program adds trials.
        self.is_open = settings.is_open
        self.max_trials = settings.max_trials
        self.max_concurrent = settings.run.max_concurrent
        self._experiment = experiment
        self._heartbeat = heartbeat
        self._hooks = hooks
        self._clock = clock
        self._backend = backend
        self._deciders = deciders
        self._scheduler = deciders.scheduler
        self._timeout_s = settings.process.timeout_s
        self._added: deque[Addition] = deque()
        #: Number of configs that the searcher has suggested.
        self._suggested = 0
        #: Whether there was no attempt to start when a slot was last to be filled.
        self._is_sated = False
        #: Number of attempts for each slot. A second one waits in the queue, so that a slot need not wait for the
        #: driver.
        self._per_slot = 2 if self._scheduler.asks_ahead and not deciders.searcher.adaptive else 1

    @property
    def journal_room(self) -> JournalRoom:
        """The journal's size and its limit. While it is full, no attempt is staged."""
        return self._heartbeat.room

    def add(self, addition: Addition) -> None:
        """Queue a user's trial, to start before the searcher's next one."""
        self._added.append(addition)

    @property
    def has_more(self) -> bool:
        """Whether a retry, restart or added trial waits, or the searcher may have another config."""
        experiment = self._experiment
        return bool(experiment.to_retry or experiment.to_restart or self._added) or self._wants_more

    def may_stage(self) -> bool:
        """Return whether another attempt may be staged now.

        Its number is limited by the slots, ``max_concurrent``, the services and the journal's size. In an open
        experiment retries and restarts don't wait for free slots: they would wait behind all added trials.
        """
        if self.journal_room.is_full:
            return False
        comes_first = self.is_open and (self._experiment.to_restart or self._to_retry() is not None)
        by_slots = math.inf if comes_first else self._backend.slots * self._per_slot
        most = by_slots if self.max_concurrent is None else min(by_slots, self.max_concurrent)
        return self._experiment.live < min(most, self._hooks.capacity())

    def has_slots(self) -> bool:
        """Return whether any slot, free or busy, may be used now."""
        return not self.journal_room.is_full and self._backend.slots > 0 and self._hooks.capacity() > 0

    def appetite(self) -> Appetite:
        """Return how many attempts would run if there were slots for them."""
        # A requeued attempt runs again. Without free slots, the scheduler was not asked.
        has_more = (
            not self._is_sated
            or bool(self._experiment.to_retry)
            or any(trial.attempt.intent.hands_back for trial in self._experiment.busy.values())
        )
        return Appetite(self.max_concurrent, has_more)

    def _pause_left_s(self, trial: Trial) -> float:
        """Return the rest of a trial's pause before its retry, in seconds. 0 if a clock was wrong."""
        pause_s = trial.retry_pause_s
        left_s = (trial.attempt.ended_at or 0.0) + pause_s - self._clock.time() if pause_s else 0.0
        return left_s if _OVER_S < left_s < 2 * pause_s else 0.0

    def _to_retry(self) -> Trial | None:
        """Return the first trial whose retry is due, or None."""
        waiting = map(self._experiment.trials.__getitem__, self._experiment.to_retry)
        return next((trial for trial in waiting if not self._pause_left_s(trial)), None)

    def next_retry_s(self) -> float:
        """Return the seconds until the next retry is due. Infinite if no retry waits."""
        pauses = (self._pause_left_s(self._experiment.trials[id_]) for id_ in self._experiment.to_retry)
        return min(filter(None, pauses), default=math.inf)

    @property
    def is_expecting(self) -> bool:
        """Whether a config that the searcher works out, or a retry after its pause, will come."""
        return self.is_suggestion_due or bool(self._experiment.to_retry)

    @property
    def why_no_more(self) -> str:
        """Why no further attempt is started, in words. Empty if attempts are started.

        The reason is as of the last attempt to fill a slot.
        """
        if self.journal_room.is_full:
            return self.journal_room.shortage
        if self.max_concurrent is not None and self._experiment.live >= self.max_concurrent:
            return f"its limit max_concurrent={self.max_concurrent} is reached"
        if self._experiment.to_retry and self._to_retry() is None:
            trial = self._experiment.trials[self._experiment.to_retry[0]]
            return f"trial {trial.id} waits: {trial.why_it_pauses}"
        is_over = self.max_trials is not None and self._suggested >= self.max_trials and not self._added
        if is_over and not self.exhausted:
            return f"all of max_trials={self.max_trials} have begun"
        return self._hooks.reason() or self.waits_for

    @property
    def why_none(self) -> str:
        """Why the searcher suggests no further config, in words."""
        if self.is_open:
            return "nothing is searched without a space"
        return (
            "the searcher has no other config" if self.exhausted else f"all of max_trials={self.max_trials} have begun"
        )

    @property
    def _wants_more(self) -> bool:
        return not self.exhausted and (self.max_trials is None or self._suggested < self.max_trials)

    def next(self) -> Stage | Close | None:
        """Return the action for a free slot, or None if there is nothing to start now.

        A ``Close`` action uses no slot: it ends a paused trial that the scheduler releases.

        Raises:
            UserCodeFailed: scheduler or searcher has raised an error.
            ConfigurationError: the scheduler's choice or the searcher's config is invalid.
        """
        action = self._choose()
        self._is_sated = action is None and not self.is_expecting
        return action

    def _choose(self) -> Stage | Close | None:
        experiment = self._experiment
        self.is_suggestion_due, self.waits_for = False, ""
        if (trial := self._to_retry()) is not None:
            return restage(trial, Restart(trial.config, *newest_checkpoint(trial), by="driver", reason=trial.reason))
        if experiment.to_restart:
            trial = experiment.trials[experiment.to_restart[0]]
            return restage(trial, trial.restart or Restart(trial.config))
        with self._deciders.asking(
            self._scheduler, "choose", f"after trial {len(experiment.trials)} of the experiment"
        ):
            choice = self._scheduler.choose(can_start=bool(self._added) or self._wants_more)
            self._check_choice(choice)
        return self._action_for(choice)

    def _action_for(self, choice: Choice) -> Stage | Close | None:
        experiment = self._experiment
        match choice:
            case Start():
                return self.staging(self._added.popleft()) if self._added else self.suggestion()
            case Resume(trial_id, reason, config, source, _) if experiment.trials[trial_id].outside and (
                config is not None or source is not None
            ):
                # The person evaluates the config with which the trial began.
                why = f"{reason}; nobody outside evaluates another config, or continues from another trial's checkpoint"
                return Close(
                    trial=experiment.trials[trial_id], status=TrialStatus.EARLY_STOPPED, by="scheduler", reason=why
                )
            case Resume(trial_id, reason, config, source, named):
                # The checkpoint may have been deleted since the scheduler noted it.
                exists = bool(named) and named in experiment.trials[trial_of(named)].checkpoints
                return stage_resumed(
                    experiment,
                    experiment.trials[trial_id],
                    by="scheduler",
                    reason=reason,
                    config=config,
                    source=source,
                    checkpoint=named if exists else CheckpointId(""),
                )
            case Fork(source, config, reason):
                return Stage(
                    trial=next_trial_id(experiment),
                    config=config,
                    by="scheduler",
                    reason=reason,
                    checkpoint=checkpoint_of(experiment, source),
                    source=source,
                    timeout_s=self._timeout_s,
                )
            case Release(trial_id, reason):
                trial = experiment.trials[trial_id]
                return Close(trial=trial, status=TrialStatus.EARLY_STOPPED, by="scheduler", reason=reason)
            case Wait(reason):
                self.waits_for = reason
                return None

    def nothing_resumes(self) -> NothingResumes:
        """Return the error for a scheduler that starts and resumes nothing while nothing runs."""
        paused = [trial.id for trial in self._experiment.trials.values() if trial.status is TrialStatus.PAUSED]
        shown = ", ".join(paused[:_SHOWN]) + (", …" if len(paused) > _SHOWN else "")
        waiting = f"{len(paused)} trials are paused ({shown})" if paused else "no trial is paused"
        return NothingResumes(
            f"{waiting}, nothing runs, and {type(self._scheduler).__name__} starts and "
            f"resumes nothing: {self.waits_for or 'it starts new trials only'}; resume or abandon them"
        )

    def _check_choice(self, choice: object) -> None:
        """Check that the scheduler's choice is valid.

        Raises:
            ConfigurationError: its type is wrong, it names a missing trial, or its reason is not text.
        """
        who = type(self._scheduler).__name__
        if not isinstance(choice, Start | Resume | Fork | Release | Wait):
            raise ConfigurationError(f"{who}.choose() returned {choice!r}; return Start, Resume, Fork, Release or Wait")
        named = [choice.trial] if isinstance(choice, Resume | Release) else []
        named += [choice.source] if isinstance(choice, Resume | Fork) and choice.source is not None else []
        for id_ in named:
            if id_ not in self._experiment.trials:
                raise ConfigurationError(
                    f"{who}.choose() returned {choice!r}; there is no trial {id_!r}: the experiment has "
                    f"{len(self._experiment.trials)} trials"
                )
        if not isinstance(choice, Start) and not isinstance(choice.reason, str):
            raise ConfigurationError(f"{who}.choose() returned {choice!r}, whose reason is not text")

    def staging(self, added: Addition) -> Stage:
        """Return the action that stages an added trial."""
        return Stage(
            trial=next_trial_id(self._experiment),
            config=added.config,
            by="user",
            checkpoint=added.checkpoint,
            source=added.source,
            timeout_s=added.timeout_s if added.timeout_s is not None else self._timeout_s,
            labels=added.labels,
            holder=added,
            request=added.request,
            key=added.key,
        )

    def suggestion(self) -> Stage | None:
        """Return the action that stages the searcher's next config.

        Return None if the searcher needs time or has no more configs, or if ``max_trials`` are reached.
        """
        self.is_suggestion_due = False
        new = next_trial_id(self._experiment)
        suggestion = self._deciders.suggest(new) if self._wants_more else None
        if suggestion is WAIT:
            self.waits_for = "choosing the next config"
            self.is_suggestion_due = True
            return None
        if suggestion is None:
            self.exhausted = self.exhausted or self._wants_more
            self.waits_for = "a trial to be added" if self.is_open else "the searcher has no other config"
            return None
        self._suggested += 1
        return Stage(trial=new, config=suggestion, by="searcher", suggested=True, timeout_s=self._timeout_s)

    def hear(self, event: Event) -> tuple[()]:
        """Count the searcher's suggestions in a replay."""
        if isinstance(event, TrialStaged) and event.attempt == 1 and event.suggested:
            self._suggested += 1
        return ()
