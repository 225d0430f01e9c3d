"""Optuna's study, asked and told at the times of simulated slots."""

from __future__ import annotations

import heapq
import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from benchmarks.measurement import Variant
from benchmarks.quality.tasks import EPOCHS, Parameter, Task
from benchmarks.work import quality

__all__ = ["VARIANTS", "suggested"]


def suggested(trial: Any, name: str, parameter: Parameter) -> Any:
    """Return the value that a trial of Optuna's suggests for a parameter."""
    if parameter.choices:
        return trial.suggest_categorical(name, parameter.choices)
    if parameter.is_whole:
        return trial.suggest_int(name, parameter.low, parameter.high)
    return trial.suggest_float(name, parameter.low, parameter.high)


def _trial(study: Any, task: Task, seed: int, record: quality.Record, now_s: float) -> Iterator[float]:
    """Run a trial that begins at a virtual time: yield the time of each report before making it."""
    import optuna

    trial = study.ask()
    config = task.config(partial(suggested, trial))
    for epoch, (epoch_s, loss) in enumerate(task.curve(config, seed), 1):
        now_s += epoch_s
        yield now_s
        record.add(now_s, config, epoch, loss)
        trial.report(loss, epoch)
        if epoch == EPOCHS:
            study.tell(trial, loss)
        elif trial.should_prune():
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return


def _halving() -> Any:
    from optuna.pruners import SuccessiveHalvingPruner

    return SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)


def _hyperband() -> Any:
    from optuna.pruners import HyperbandPruner

    return HyperbandPruner(min_resource=1, max_resource=EPOCHS, reduction_factor=3)


def _variant(name: str, pruner: Callable[[], Any], settings: str) -> Variant:
    def run(task: Task, seed: int, budget_s: float) -> quality.Record:
        import optuna

        warnings.simplefilter("ignore")
        optuna.logging.set_verbosity(logging.ERROR)
        sampler = optuna.samplers.TPESampler(seed=seed)
        study = optuna.create_study(study_name="quality", sampler=sampler, pruner=pruner())
        record = quality.Record()
        trials = [_trial(study, task, seed, record, 0.0) for _ in range(quality.SLOTS)]
        due = [(next(trial), slot) for slot, trial in enumerate(trials)]
        heapq.heapify(due)
        while due[0][0] <= budget_s:
            now_s, slot = due[0]
            due_s = next(trials[slot], None)
            if due_s is None:
                trials[slot] = _trial(study, task, seed, record, now_s)
                due_s = next(trials[slot])
            heapq.heapreplace(due, (due_s, slot))
        return record

    return quality.variant(name, f"ask and tell at simulated times, study in memory; TPESampler(), {settings}", run)


VARIANTS: Final = (
    _variant("TPE + halving", _halving, "SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)"),
    _variant("TPE + Hyperband", _hyperband, "HyperbandPruner(1, 27, 3)"),
)
