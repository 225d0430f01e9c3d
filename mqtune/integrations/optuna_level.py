"""The study of a searcher, and what TPE is shown of trials that were stopped at different times; needs the extra ``optuna``."""

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

#: How many values a time must have: as many trials as TPE leaves to chance before it has a model.
ENOUGH: Final = 10


class ModelStudy(optuna.Study):
    """A study that is asked and told, and that its sampler may stop.

    Attributes:
        is_stopped: whether the sampler has said that it is through.
    """

    def __init__(self, name: str, storage: BaseStorage, sampler: BaseSampler) -> None:
        super().__init__(name, storage, sampler)
        self.is_stopped = False

    def stop(self) -> None:
        """Have it noted; Optuna's own takes it from within ``optimize`` alone."""
        self.is_stopped = True


class LevelStorage(InMemoryStorage):
    """A study in memory that can be looked at as if all its trials had ended at the same time.

    TPE takes those that came furthest for the best, and of the first trials some come far because there is nobody yet to compare them
    with. At one time all can be compared: the latest that at least ``ENOUGH`` trials have come to. A completed trial has come to all
    times.

    A trial that has come there is shown as complete, with its first value from then on, or else its last one, also if it still
    runs. All others are shown as running, which TPE with a constant liar takes for bad ones: those that do run, those that were
    stopped before or are paused, and those that have diverged. Source: Falkner et al., "BOHB: Robust and Efficient Hyperparameter
    Optimization at Scale", ICML 2018, section 3.2, where what was stopped before is left out.

    Attributes:
        outdated: the numbers of trials that have gone on since they were paused, and are there again with what they had later.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outdated: set[int] = set()
        self._shown: list[FrozenTrial] | None = None
        #: The values of each trial, by step, since the trials were looked at.
        self._news: dict[int, dict[int, float]] = {}

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Keep a value until the trials are looked at: Optuna's own would copy all of the trial's for each one."""
        self._news.setdefault(trial_id, {})[step] = intermediate_value

    def _add_news(self) -> None:
        for trial_id, values in self._news.items():
            trial = copy.copy(super().get_trial(trial_id))
            trial.intermediate_values = {**trial.intermediate_values, **values}
            replace_trial(self, trial_id, trial)
        self._news.clear()

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial with all of its values."""
        self._add_news()
        return super().get_trial(trial_id)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Set a trial's state, once it has all of its values."""
        self._add_news()
        return super().set_trial_state_values(trial_id, state, values)

    @contextlib.contextmanager
    def at_one_time(self, study_id: int, choices: Mapping[str, object]) -> Iterator[None]:
        """Show the trials at one time, if enough have come to any: those alone that have the same choices, if these are enough.

        Else what is worse with all of its parameters would never be among the good ones, and nothing were learnt of its parameters.
        """
        trials = [each for each in self.get_all_trials(study_id, False) if each.number not in self.outdated]
        alike = [
            each for each in trials if all(each.params.get(name, choice) == choice for name, choice in choices.items())
        ]
        self._shown = self._level(alike) or self._level(trials)
        try:
            yield
        finally:
            self._shown = None

    def correct(self, trial_id: int, params: dict[str, object], distributions: Mapping[str, BaseDistribution]) -> None:
        """Give a running trial other parameters; what its sampler has noted of it stays."""
        trial = copy.copy(self.get_trial(trial_id))
        trial.params, trial.distributions = params, {name: distributions[name] for name in params}
        replace_trial(self, trial_id, trial)

    def _level(self, trials: list[FrozenTrial]) -> list[FrozenTrial] | None:
        reached = sorted((came_to for each in trials if (came_to := _came_to(each)) >= 0), reverse=True)
        if len(reached) < ENOUGH:
            return None
        return [_at(each, reached[ENOUGH - 1]) for each in trials if each.state is not TrialState.FAIL]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials as they are shown now."""
        if self._shown is None:
            self._add_news()
            return super().get_all_trials(study_id, deepcopy, states)
        return [each for each in self._shown if states is None or each.state in states]


def _came_to(trial: FrozenTrial) -> float:
    """Return the time that a trial has come to; -1 without a value that counts."""
    if trial.state is TrialState.COMPLETE:
        return math.inf
    return -1 if trial.state is TrialState.FAIL else max(trial.intermediate_values, default=-1)


def _at(trial: FrozenTrial, time: float) -> FrozenTrial:
    """Return a trial as it was at a time; as a running one if it has not come there."""
    shown, values = copy.copy(trial), trial.intermediate_values
    if _came_to(trial) < time:
        shown.state = TrialState.RUNNING
        return shown
    first = min((step for step in values if step >= time), default=None)
    if first is not None:
        shown.values = [values[first]]
    shown.state = TrialState.COMPLETE
    return shown
