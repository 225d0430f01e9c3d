"""Optuna's study, asked and told at the times of simulated slots."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from benchmarks.measurement import Context, Variant
from benchmarks.quality.slots import Record, run_on_slots
from benchmarks.quality.tasks import EPOCHS, Parameter, Task
from benchmarks.work import quality

__all__ = ["VARIANTS", "suggested"]


class Study:
    """Trials of a study, with the space asked for as objectives do."""

    def __init__(self, task: Task, seed: int, pruner: Any) -> None:
        import optuna

        optuna.logging.set_verbosity(logging.ERROR)
        sampler = optuna.samplers.TPESampler(seed=seed)
        self._study = optuna.create_study(study_name="quality", sampler=sampler, pruner=pruner)
        self._task = task

    def start(self) -> tuple[Any, dict[str, Any]]:
        trial = self._study.ask()
        return trial, self._task.config(partial(suggested, trial))

    def report(self, trial: Any, epoch: int, loss: float) -> bool:
        import optuna

        trial.report(loss, epoch)
        if epoch == EPOCHS:
            self._study.tell(trial, loss)
        elif trial.should_prune():
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return False
        return True


def suggested(trial: Any, name: str, parameter: Parameter) -> Any:
    """Return what a trial of Optuna's has for a parameter."""
    if parameter.choices:
        return trial.suggest_categorical(name, parameter.choices)
    if parameter.is_whole:
        return trial.suggest_int(name, parameter.low, parameter.high)
    return trial.suggest_float(name, parameter.low, parameter.high)


def _halving() -> Any:
    from optuna.pruners import SuccessiveHalvingPruner

    return SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)


def _hyperband() -> Any:
    from optuna.pruners import HyperbandPruner

    return HyperbandPruner(min_resource=1, max_resource=EPOCHS, reduction_factor=3)


def _variant(name: str, pruner: Callable[[], Any], settings: str) -> Variant:
    def run(_: Context, task: Task, seed: int, budget_s: float) -> Record:
        warnings.simplefilter("ignore")
        return run_on_slots(Study(task, seed, pruner()), task, seed, budget_s)

    return Variant(
        name=name,
        settings=f"ask and tell at simulated times, study in memory; TPESampler(), {settings}",
        measure=quality.measure(run),
        deadline_s=quality.DEADLINE_S,
    )


VARIANTS: Final = (
    _variant("TPE + halving", _halving, "SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)"),
    _variant("TPE + Hyperband", _hyperband, "HyperbandPruner(1, 27, 3)"),
)
