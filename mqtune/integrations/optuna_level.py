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

#: How many trials a comparison needs: as many as TPE's random startup trials.
ENOUGH: Final = 10


class ModelStudy(optuna.Study):
    """A study that suggests and learns, and that its sampler may stop.

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

    TPE prefers trials with many steps. But the first trials get far only because there is nothing yet to compare them
    with. So all are compared at the same time: the latest that at least ``ENOUGH`` trials have reached. Completed
    trials have reached all times.

    A trial that has reached that time, even a running one, is shown as complete. Its value is the first from then on,
    or else its last. All others are shown as running, which TPE with a constant liar counts as bad: running, stopped
    earlier, paused, or diverged ones. Source: Falkner et al., "BOHB: Robust and Efficient Hyperparameter Optimization
    at Scale", ICML 2018, section 3.2, which leaves out trials that were stopped earlier.

    Attributes:
        outdated: numbers of paused trials that were resumed, and have newer copies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outdated: set[int] = set()
        self._shown: list[FrozenTrial] | None = None
        #: Values that are not in the trials yet, by trial and step.
        self._buffered: dict[int, dict[int, float]] = {}

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Buffer a value. Optuna's own method copies all values each time."""
        self._buffered.setdefault(trial_id, {})[step] = intermediate_value

    def _apply_buffered(self) -> None:
        for trial_id, values in self._buffered.items():
            trial = copy.copy(super().get_trial(trial_id))
            trial.intermediate_values = {**trial.intermediate_values, **values}
            replace_trial(self, trial_id, trial)
        self._buffered.clear()

    def get_trial(self, trial_id: int) -> FrozenTrial:
        self._apply_buffered()
        return super().get_trial(trial_id)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        self._apply_buffered()
        return super().set_trial_state_values(trial_id, state, values)

    @contextlib.contextmanager
    def at_one_time(self, study_id: int, choices: Mapping[str, object]) -> Iterator[None]:
        """Within the block, show all trials as of the same time.

        If enough trials have the same *choices*, only these are shown. Among all trials, worse choices would never be
        good, and TPE would learn nothing of their parameters.
        """
        trials = [frozen for frozen in self.get_all_trials(study_id, False) if frozen.number not in self.outdated]
        alike = [
            frozen
            for frozen in trials
            if all(frozen.params.get(name, choice) == choice for name, choice in choices.items())
        ]
        self._shown = self._at_common_time(alike) or self._at_common_time(trials)
        try:
            yield
        finally:
            self._shown = None

    def correct(self, trial_id: int, params: dict[str, object], distributions: Mapping[str, BaseDistribution]) -> None:
        """Replace a running trial's parameters. The sampler's attributes of the trial stay."""
        trial = copy.copy(self.get_trial(trial_id))
        trial.params, trial.distributions = params, {name: distributions[name] for name in params}
        replace_trial(self, trial_id, trial)

    def _at_common_time(self, trials: list[FrozenTrial]) -> list[FrozenTrial] | None:
        reached = sorted((time for frozen in trials if (time := _reached_time(frozen)) >= 0), reverse=True)
        if len(reached) < ENOUGH:
            return None
        return [_as_of(frozen, reached[ENOUGH - 1]) for frozen in trials if frozen.state is not TrialState.FAIL]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        if self._shown is None:
            self._apply_buffered()
            return super().get_all_trials(study_id, deepcopy, states)
        return [shown for shown in self._shown if states is None or shown.state in states]


def _reached_time(trial: FrozenTrial) -> float:
    """Return the latest time that a trial has reached; -1 without a usable value."""
    if trial.state is TrialState.COMPLETE:
        return math.inf
    return -1 if trial.state is TrialState.FAIL else max(trial.intermediate_values, default=-1)


def _as_of(trial: FrozenTrial, time: float) -> FrozenTrial:
    """Return a trial as it was at a time. It is running if it had not reached that."""
    shown, values = copy.copy(trial), trial.intermediate_values
    if _reached_time(trial) < time:
        shown.state = TrialState.RUNNING
        return shown
    first = min((step for step in values if step >= time), default=None)
    if first is not None:
        shown.values = [values[first]]
    shown.state = TrialState.COMPLETE
    return shown
