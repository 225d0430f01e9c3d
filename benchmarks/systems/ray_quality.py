"""Ray Tune's OptunaSearch and ASHA, called as its controller calls them, at the times of simulated slots."""

from __future__ import annotations

import itertools
import logging
import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from benchmarks.measurement import Context, Variant
from benchmarks.quality.slots import Record, run_on_slots
from benchmarks.quality.tasks import EPOCHS, Task
from benchmarks.systems.optuna_quality import suggested
from benchmarks.work import quality

__all__ = ["VARIANTS"]


class Searched:
    """What its controller tells searcher and scheduler of each trial, in its order."""

    def __init__(self, task: Task, seed: int) -> None:
        import optuna
        from ray.tune.schedulers import ASHAScheduler
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(logging.ERROR)
        self._search = OptunaSearch(partial(space_of, task), metric="loss", mode="min", seed=seed)
        self._scheduler = ASHAScheduler(
            metric="loss", mode="min", max_t=EPOCHS, grace_period=1, reduction_factor=3, brackets=1
        )
        self._numbers = itertools.count()

    def start(self) -> tuple[Any, dict[str, Any]]:
        trial = SimpleNamespace(trial_id=f"{next(self._numbers):05d}")
        config = self._search.suggest(trial.trial_id)
        self._scheduler.on_trial_add(None, trial)
        return trial, config

    def report(self, trial: Any, epoch: int, loss: float) -> bool:
        result = {"loss": loss, "training_iteration": epoch, "trial_id": trial.trial_id}
        decision = self._scheduler.on_trial_result(None, trial, result)
        if decision != self._scheduler.STOP:
            self._search.on_trial_result(trial.trial_id, result)
            return True
        self._search.on_trial_complete(trial.trial_id, result)
        return False


def space_of(task: Task, trial: Any) -> dict[str, Any]:
    """Return a trial's config, as functions of Ray's users do that have conditions; Ray pickles what it is called by."""
    return task.config(partial(suggested, trial))


def _run(_: Context, task: Task, seed: int, budget_s: float) -> Record:
    warnings.simplefilter("ignore")
    return run_on_slots(Searched(task, seed), task, seed, budget_s)


VARIANTS: Final = (
    Variant(
        name="OptunaSearch + ASHA",
        settings="OptunaSearch(), ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3), called at simulated times",
        measure=quality.measure(_run),
        deadline_s=quality.DEADLINE_S,
    ),
)
