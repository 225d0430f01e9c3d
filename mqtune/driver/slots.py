"""What a free slot is used for: a retry, a restart, a config that a user added, or what the scheduler chooses."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from mqtune.backends.base import BackendSession
from mqtune.core.codec import encode_value
from mqtune.core.errors import ConfigurationError
from mqtune.core.events import TrialStaged
from mqtune.core.experiment import Experiment
from mqtune.core.labels import NO_LABELS, Labels
from mqtune.core.status import TrialStatus
from mqtune.core.trial import CheckpointId, Config, Trial, TrialId, trial_of
from mqtune.driver.actions import Commands, next_trial_id
from mqtune.schedulers.base import Fork, Release, Resume, Scheduler, Start, Wait
from mqtune.search.base import Searcher

__all__ = ["Addition", "Filling"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Addition:
    """A trial that a user wants next; from a checkpoint of *source* if there is one."""

    config: Config
    source: TrialId | None = None
    checkpoint: CheckpointId = CheckpointId("")  # noqa: RUF009 - a string
    ttl_s: float | None = None
    labels: Labels = NO_LABELS


class Filling:
    """Keeps the slots busy.

    Args:
        experiment: the fold.
        backend: says how many slots there are.
        scheduler: chooses.
        searcher: has new configs; a replay brings it to where it was.
        commands: stages.
        max_trials: how many trials the searcher is asked for; None for as many as it has.
        max_concurrent: how many attempts may be live at once; None for as many as there are slots.
        ttl_s: how long the attempts of the searcher's trials may run.
        may_go_on: whether more may be started, asked before each.
        hold: has somebody name a checkpoint, which is then kept, or with an empty one none any more.
        asking: has what scheduler or searcher raise within it end the run, with who raised it and about what.
    """

    def __init__(
        self,
        experiment: Experiment,
        backend: BackendSession,
        scheduler: Scheduler,
        searcher: Searcher,
        commands: Commands,
        *,
        max_trials: int | None,
        max_concurrent: int | None,
        ttl_s: float | None,
        may_go_on: Callable[[], bool],
        hold: Callable[[Hashable, CheckpointId], None],
        asking: Callable[[object, str, str], AbstractContextManager[None]],
    ) -> None:
        self.exhausted = False
        #: Why the scheduler left a slot free when it was last asked.
        self.waits_for = ""
        self._experiment = experiment
        self._backend = backend
        self._scheduler = scheduler
        self._searcher = searcher
        self._commands = commands
        self._max_trials = max_trials
        self._max_concurrent = max_concurrent
        self._ttl_s = ttl_s
        self._may_go_on = may_go_on
        self._hold = hold
        self._asking = asking
        self._added: deque[Addition] = deque()
        self._suggested = 0
        # Ahead of the free slots, one more each waits for the slots that a worker frees next.
        self._ahead = 2 if scheduler.asks_ahead and not searcher.adaptive else 1

    def add(self, addition: Addition) -> None:
        """Have a trial tried next, before the searcher's."""
        self._added.append(addition)
        # Its source may end before a slot is free.
        self._hold(("addition", id(addition)), addition.checkpoint)

    @property
    def has_more(self) -> bool:
        """Whether something is left to start that needs no scheduler's choice, or the searcher may have another config."""
        experiment = self._experiment
        return bool(experiment.to_retry or experiment.to_restart or self._added) or self._wants_more

    @property
    def _wants_more(self) -> bool:
        return not self.exhausted and (self._max_trials is None or self._suggested < self._max_trials)

    def fill(self) -> None:
        """Stage attempts until each slot has one, and perhaps another that waits for it."""
        experiment = self._experiment
        slots = self._backend.slots
        room = slots * self._ahead
        if self._max_concurrent is not None:
            room = min(room, self._max_concurrent)
        while experiment.live < room and self._may_go_on() and self._stage_next():
            pass

    def _stage_next(self) -> bool:
        """Stage one attempt, or release a trial; False when there is nothing to do now."""
        experiment, commands = self._experiment, self._commands
        if experiment.to_retry:
            trial = experiment.trials[experiment.to_retry[0]]
            commands.again(trial, by="driver", reason=trial.reason)
            return True
        if experiment.to_restart:
            self._restart(experiment.trials[experiment.to_restart[0]])
            return True
        with self._asking(self._scheduler, "choose", f"after trial {len(experiment.trials)} of the experiment"):
            choice = self._scheduler.choose(can_start=bool(self._added) or self._wants_more)
            self._check(choice)
        match choice:
            case Start():
                return self._start()
            case Resume(trial_id, reason, config, source, named):
                # A scheduler may have named it a while ago.
                is_there = bool(named) and named in experiment.trials[trial_of(named)].checkpoints
                commands.resume(
                    experiment.trials[trial_id],
                    by="scheduler",
                    reason=reason,
                    config=config,
                    source=source,
                    checkpoint=named if is_there else CheckpointId(""),
                )
            case Fork(source, config, reason):
                checkpoint = commands.checkpoint_of(source)
                commands.stage(
                    next_trial_id(experiment),
                    config,
                    by="scheduler",
                    reason=reason,
                    checkpoint=checkpoint,
                    source=source,
                    ttl_s=self._ttl_s,
                )
            case Release(trial_id, reason):
                commands.close(experiment.trials[trial_id], TrialStatus.EARLY_STOPPED, by="scheduler", reason=reason)
            case Wait(reason):
                self.waits_for = reason
                return False
        return True

    def _check(self, choice: object) -> None:
        """Check what the scheduler chose, before anything is done about it.

        Raises:
            ConfigurationError: nothing can be done about it.
        """
        who = type(self._scheduler).__name__
        if not isinstance(choice, Start | Resume | Fork | Release | Wait):
            raise ConfigurationError(
                f"{who}.choose() returned {choice!r}; it may return Start, Resume, Fork, Release or Wait"
            )
        named = [choice.trial] if isinstance(choice, Resume | Release) else []
        named += [choice.source] if isinstance(choice, Resume | Fork) and choice.source is not None else []
        for id_ in named:
            if id_ not in self._experiment.trials:
                raise ConfigurationError(
                    f"{who}.choose() returned {choice!r}; there is no trial {id_!r}, but {len(self._experiment.trials)}"
                )
        if not isinstance(choice, Start) and not isinstance(choice.reason, str):
            raise ConfigurationError(f"{who}.choose() returned {choice!r}, whose reason is no text")

    def _restart(self, trial: Trial) -> None:
        wanted: dict[str, Any] = trial.restart or {}
        self._commands.stage(
            trial.id,
            wanted["config"],
            by=wanted["by"],
            reason=wanted["reason"],
            checkpoint=CheckpointId(wanted["checkpoint"]),
            source=TrialId(wanted["source"]) if wanted["source"] else None,
            ttl_s=trial.ttl_s,
        )

    def _start(self) -> bool:
        if self._added:
            added = self._added.popleft()
            self._commands.stage(
                next_trial_id(self._experiment),
                added.config,
                by="user",
                checkpoint=added.checkpoint,
                source=added.source,
                ttl_s=added.ttl_s if added.ttl_s is not None else self._ttl_s,
                labels=added.labels,
            )
            self._hold(("addition", id(added)), CheckpointId(""))
            return True
        config = self._suggestion(f"trial {next_trial_id(self._experiment)}") if self._wants_more else None
        if config is None:
            self.exhausted = self.exhausted or self._wants_more
            self.waits_for = "the searcher has no other config"
            return False
        self._suggested += 1
        self._commands.stage(next_trial_id(self._experiment), config, by="searcher", suggested=True, ttl_s=self._ttl_s)
        return True

    def _suggestion(self, place: str) -> Config | None:
        with self._asking(self._searcher, "suggest", place):
            config = self._searcher.suggest()
            if not isinstance(config, dict | None):
                raise ConfigurationError(
                    f"{type(self._searcher).__name__}.suggest() returned {config!r:.80} for {place}; it may return a dict, or None"
                )
            try:
                encode_value(config)
            except TypeError as error:
                raise ConfigurationError(
                    f"{type(self._searcher).__name__}.suggest() returned a config for {place} that no worker can be sent: {error}"
                ) from None
            return config

    def replay(self, event: TrialStaged) -> None:
        """Have the searcher suggest what it had suggested when this was written."""
        if event.attempt != 1 or not event.suggested:
            return
        suggested = self._suggestion(f"trial {event.trial}")
        self._suggested += 1
        if suggested != event.config:
            logger.warning(
                "trial %s: the searcher now suggests %r, the journal has %r and counts",
                event.trial,
                suggested,
                event.config,
            )
