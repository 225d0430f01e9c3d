"""mqtune: hyperparameter tuning over many machines with nothing but Celery and Redis."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from mqtune.version import __version__

if TYPE_CHECKING:
    from mqtune.callback import Callback
    from mqtune.resources import Resources
    from mqtune.results import Results
    from mqtune.schedulers import ASHA, FIFO
    from mqtune.searchers import GridSearcher, PointsFirst, RandomSearcher
    from mqtune.space import (
        choice,
        grid_search,
        lograndint,
        loguniform,
        normal,
        qloguniform,
        qrandint,
        quniform,
        randint,
        sample_from,
        uniform,
    )
    from mqtune.trainable.session import StopTrial, report
    from mqtune.trial import Action, Decision, TrialStatus
    from mqtune.tuner import Tuner

__all__ = [
    "ASHA",
    "FIFO",
    "Action",
    "Callback",
    "Decision",
    "GridSearcher",
    "PointsFirst",
    "RandomSearcher",
    "Resources",
    "Results",
    "StopTrial",
    "TrialStatus",
    "Tuner",
    "__version__",
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "normal",
    "qloguniform",
    "qrandint",
    "quniform",
    "randint",
    "report",
    "sample_from",
    "uniform",
]

# A trial process imports mqtune for ``report`` alone, and must not wait for redis and celery: names are found when used.
_HOMES: Final[dict[str, str]] = {
    **dict.fromkeys(("ASHA", "FIFO"), "mqtune.schedulers"),
    **dict.fromkeys(("GridSearcher", "PointsFirst", "RandomSearcher"), "mqtune.searchers"),
    **dict.fromkeys(("StopTrial", "report"), "mqtune.trainable.session"),
    **dict.fromkeys(("Action", "Decision", "TrialStatus"), "mqtune.trial"),
    "Callback": "mqtune.callback",
    "Resources": "mqtune.resources",
    "Results": "mqtune.results",
    "Tuner": "mqtune.tuner",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mqtune' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "mqtune.space")), name)
    globals()[name] = value
    return value
