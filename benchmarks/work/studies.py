"""Objectives of Optuna in two processes, over each of its storages that several processes can share."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.measurement import Figures
from benchmarks.work.base import Figure, Workload

__all__ = ["STORAGES", "WORKLOAD", "figures", "new_study"]

STUDY: Final = "run"
#: Optuna's storages, and what the table calls them.
STORAGES: Final = {"sqlite": "SQLite", "file": "JournalFile", "redis": "JournalRedis"}
OBJECTIVES: Final = {"noop": "no-op objective", "training": "10 epochs of 10 ms, pruned"}

WORKLOAD: Final = Workload(
    name="studies",
    title="objectives of Optuna, two at once, over its storages",
    sizes={"noop": 300, "training": 100},
    quick_sizes={"noop": 10, "training": 4},
    figures={
        f"{storage}_{objective}": Figure(unit="1/s", higher_is_better=True, title=f"{title} over {shown}: trials")
        for storage, shown in STORAGES.items()
        for objective, title in OBJECTIVES.items()
    },
)


def new_study(objective: str, storage: Any) -> Any:
    """Return a new study: no-op objectives have random parameters, the others Optuna's default sampler and pruner."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.RandomSampler(0) if objective == "noop" else None
    return optuna.create_study(study_name=STUDY, storage=storage, sampler=sampler, load_if_exists=True)


def figures(storage: str, objective: str, study: Any, trials: int) -> Figures:
    """Return trials over the time from the first one's beginning to the last one's end, both as the storage has them."""
    found = study.get_trials(deepcopy=False)
    states = {trial.state.name for trial in found}
    if len(found) != trials or not states <= {"COMPLETE", "PRUNED"}:
        raise RuntimeError(f"{len(found)} of {trials} trials; {states}")
    span = max(trial.datetime_complete for trial in found) - min(trial.datetime_start for trial in found)
    return {f"{storage}_{objective}": trials / span.total_seconds()}
