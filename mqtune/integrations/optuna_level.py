"""A searcher's study, and TPE's view of trials that were stopped at different times."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from mqtune.integrations.optuna_private import replace_trial

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

#: As many as TPE's random startup trials.
ENOUGH: Final = 10


class ModelStudy(optuna.Study):
    """A study for ask and tell, which its sampler may stop.

    Attributes:
        is_stopped: whether the sampler has stopped it.
    """

    def __init__(self, name: str, storage: BaseStorage, sampler: BaseSampler) -> None:
        super().__init__(name, storage, sampler)
        self.is_stopped = False

    def stop(self) -> None:
        """Record the stop. Optuna's own works only within ``optimize``."""
        self.is_stopped = True


class LevelStorage(InMemoryStorage):
    """A study in memory that can show all trials as if they had ended at the same time.

    TPE prefers trials with many steps, but the first ones get far for lack of comparison. So all are compared at one
    time, the latest that at least ``ENOUGH`` trials have reached. Completed trials have reached all times.

    A trial that has reached it, even a running one, is shown as complete, with its first value from then on, or else
    its last. All others are shown as running, which TPE with a constant liar counts as bad: running, stopped earlier,
    paused, or diverged ones. Source: Falkner et al., "BOHB: Robust and Efficient Hyperparameter Optimization at Scale",
    ICML 2018, section 3.2, which leaves out trials that were stopped earlier.

    Attributes:
        outdated: numbers of paused trials that were resumed, and have newer copies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outdated: set[int] = set()
        self._shown: list[FrozenTrial] | None = None
        #: Buffered values by trial and step.
        self._news: dict[int, dict[int, float]] = {}

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Buffer a value. Optuna's own copies all values each time."""
        self._news.setdefault(trial_id, {})[step] = intermediate_value

    def _add_news(self) -> None:
        for trial_id, values in self._news.items():
            trial = copy.copy(super().get_trial(trial_id))
            trial.intermediate_values = {**trial.intermediate_values, **values}
            replace_trial(self, trial_id, trial)
        self._news.clear()

    def get_trial(self, trial_id: int) -> FrozenTrial:
        self._add_news()
        return super().get_trial(trial_id)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        self._add_news()
        return super().set_trial_state_values(trial_id, state, values)

    @contextlib.contextmanager
    def at_one_time(self, study_id: int, choices: Mapping[str, object]) -> Iterator[None]:
        """Show trials at one time: those with the same choices if enough, or else all.

        Among all trials, worse choices would never be good, and TPE would learn nothing of their parameters.
        """
        trials = [frozen for frozen in self.get_all_trials(study_id, False) if frozen.number not in self.outdated]
        alike = [
            frozen
            for frozen in trials
            if all(frozen.params.get(name, choice) == choice for name, choice in choices.items())
        ]
        self._shown = self._level(alike) or self._level(trials)
        try:
            yield
        finally:
            self._shown = None

    def correct(self, trial_id: int, params: dict[str, object], distributions: Mapping[str, BaseDistribution]) -> None:
        """Replace a running trial's parameters. Its sampler's attributes stay."""
        trial = copy.copy(self.get_trial(trial_id))
        trial.params, trial.distributions = params, {name: distributions[name] for name in params}
        replace_trial(self, trial_id, trial)

    def _level(self, trials: list[FrozenTrial]) -> list[FrozenTrial] | None:
        reached = sorted((came_to for frozen in trials if (came_to := _came_to(frozen)) >= 0), reverse=True)
        if len(reached) < ENOUGH:
            return None
        return [_at(frozen, reached[ENOUGH - 1]) for frozen in trials if frozen.state is not TrialState.FAIL]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        if self._shown is None:
            self._add_news()
            return super().get_all_trials(study_id, deepcopy, states)
        return [shown for shown in self._shown if states is None or shown.state in states]


def _came_to(trial: FrozenTrial) -> float:
    """Return the time that a trial has reached; -1 without a usable value."""
    if trial.state is TrialState.COMPLETE:
        return math.inf
    return -1 if trial.state is TrialState.FAIL else max(trial.intermediate_values, default=-1)


def _at(trial: FrozenTrial, time: float) -> FrozenTrial:
    """Return a trial as of a time; as running if it has not reached it."""
    shown, values = copy.copy(trial), trial.intermediate_values
    if _came_to(trial) < time:
        shown.state = TrialState.RUNNING
        return shown
    first = min((step for step in values if step >= time), default=None)
    if first is not None:
        shown.values = [values[first]]
    shown.state = TrialState.COMPLETE
    return shown
