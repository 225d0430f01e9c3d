"""``optuna_optimize`` on the work: the study here, with its storage, and its trials on two slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from benchmarks.measurement import Context, Figures, Skip, Variant
from benchmarks.systems import optuna_studies
from benchmarks.systems.mqtune_running import SETTINGS, SLOTS
from benchmarks.work import studies

__all__ = ["VARIANTS"]


def _measure(storage: str) -> Callable[[Context], Figures]:
    def measure(context: Context) -> Figures:
        found: Figures = {}
        for objective in studies.OBJECTIVES:
            (context.folder / objective).mkdir()
            with optuna_studies.opened(storage, context.folder / objective) as open_storage:
                found |= _run(storage, objective, open_storage, context.sizes[objective])
        return found

    return measure


def _run(storage: str, objective: str, open_storage: Callable[[], Any], trials: int) -> Figures:
    from benchmarks import objectives

    try:
        from mqtune.integrations.optuna_optimize import optuna_optimize
    except ImportError as error:
        raise Skip(str(error)) from None
    import mqtune

    study = studies.new_study(objective, open_storage())
    optuna_optimize(study, getattr(objectives, objective), n_trials=trials, backend=mqtune.Local(slots=SLOTS))
    return studies.figures(storage, objective, study, trials)


VARIANTS: Final = tuple(
    Variant(
        name=shown,
        settings=f"optuna_optimize; {SETTINGS}; {optuna_studies.SETTINGS[storage]}",
        measure=_measure(storage),
    )
    for storage, shown in studies.STORAGES.items()
)
