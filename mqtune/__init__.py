"""mqtune: hyperparameter tuning over many machines with nothing but Celery and Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqtune.core.lazy import found_when_used
from mqtune.core.version import __version__

if TYPE_CHECKING:
    from mqtune import checkpoints as checkpoints, results as results, schedulers as schedulers, search as search
    from mqtune.backends.simulated import Simulated
    from mqtune.background import BackgroundTuner
    from mqtune.checkpoints import Checkpoint
    from mqtune.client import Client, TrialHandle
    from mqtune.core import errors as errors
    from mqtune.core.callback import Callback
    from mqtune.core.resources import Resources
    from mqtune.core.trial import TrialStatus
    from mqtune.driver.setup.options import Checkpoints, Failures, Local, Process, RunOptions
    from mqtune.results.logs import follow_log
    from mqtune.results.results import Results
    from mqtune.results.warm_start import WarmStart
    from mqtune.schedulers.asha import ASHA, PromotionASHA
    from mqtune.schedulers.base import FIFO
    from mqtune.schedulers.hyperband import HyperBand
    from mqtune.schedulers.median import MedianStopping
    from mqtune.schedulers.moasha import MOASHA
    from mqtune.schedulers.pasha import PASHA
    from mqtune.schedulers.pbt import PBT
    from mqtune.schedulers.rush import RUSH
    from mqtune.schedulers.stopping.experiment_rules import ExperimentPlateau, TargetReached, TimeLimit
    from mqtune.schedulers.stopping.trial_rules import MetricMaximum, TrialDiverged, TrialPlateau
    from mqtune.schedulers.wilcoxon import WilcoxonStopping
    from mqtune.search.domains import (
        choice,
        finrange,
        grid_search,
        logfinrange,
        lograndint,
        loguniform,
        normal,
        ordinal,
        qlograndint,
        qloguniform,
        qrandint,
        qrandn,
        quniform,
        randint,
        reverseloguniform,
        sample_from,
        uniform,
    )
    from mqtune.search.grid import GridSearcher
    from mqtune.search.points import InitialPoints
    from mqtune.search.random import RandomSearcher
    from mqtune.search.repeater import Repeater
    from mqtune.search.space import Space
    from mqtune.trainable.class_ import Trainable
    from mqtune.trainable.function import checkpoint_dir
    from mqtune.trainable.process.session import StopTrial
    from mqtune.trainable.reporting import ask, get_checkpoint, get_context, report, save_checkpoint, should_checkpoint
    from mqtune.trainable.script_arguments import Script
    from mqtune.tuner import Tuner

__all__ = [
    "ASHA",
    "FIFO",
    "MOASHA",
    "PASHA",
    "PBT",
    "RUSH",
    "BackgroundTuner",
    "Callback",
    "Checkpoint",
    "Checkpoints",
    "Client",
    "ExperimentPlateau",
    "Failures",
    "GridSearcher",
    "HyperBand",
    "InitialPoints",
    "Local",
    "MedianStopping",
    "MetricMaximum",
    "Process",
    "PromotionASHA",
    "RandomSearcher",
    "Repeater",
    "Resources",
    "Results",
    "RunOptions",
    "Script",
    "Simulated",
    "Space",
    "StopTrial",
    "TargetReached",
    "TimeLimit",
    "Trainable",
    "TrialDiverged",
    "TrialHandle",
    "TrialPlateau",
    "TrialStatus",
    "Tuner",
    "WarmStart",
    "WilcoxonStopping",
    "__version__",
    "ask",
    "checkpoint_dir",
    "choice",
    "finrange",
    "follow_log",
    "get_checkpoint",
    "get_context",
    "grid_search",
    "logfinrange",
    "lograndint",
    "loguniform",
    "normal",
    "ordinal",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "report",
    "reverseloguniform",
    "sample_from",
    "save_checkpoint",
    "should_checkpoint",
    "uniform",
]

# Each name is imported at its first use. A trial's process imports mqtune only for ``report``, and must not wait for
# the imports of redis and celery.
_HOMES: Final[dict[str, str]] = {
    **dict.fromkeys(("ASHA", "PromotionASHA"), "mqtune.schedulers.asha"),
    "FIFO": "mqtune.schedulers.base",
    "HyperBand": "mqtune.schedulers.hyperband",
    "MOASHA": "mqtune.schedulers.moasha",
    "MedianStopping": "mqtune.schedulers.median",
    "PASHA": "mqtune.schedulers.pasha",
    "PBT": "mqtune.schedulers.pbt",
    "RUSH": "mqtune.schedulers.rush",
    "WilcoxonStopping": "mqtune.schedulers.wilcoxon",
    **dict.fromkeys(("MetricMaximum", "TrialDiverged", "TrialPlateau"), "mqtune.schedulers.stopping.trial_rules"),
    **dict.fromkeys(("ExperimentPlateau", "TargetReached", "TimeLimit"), "mqtune.schedulers.stopping.experiment_rules"),
    "GridSearcher": "mqtune.search.grid",
    "InitialPoints": "mqtune.search.points",
    "RandomSearcher": "mqtune.search.random",
    "Repeater": "mqtune.search.repeater",
    "Space": "mqtune.search.space",
    **dict.fromkeys(
        ("ask", "get_checkpoint", "get_context", "report", "save_checkpoint", "should_checkpoint"),
        "mqtune.trainable.reporting",
    ),
    "StopTrial": "mqtune.trainable.process.session",
    "checkpoint_dir": "mqtune.trainable.function",
    "Trainable": "mqtune.trainable.class_",
    "Script": "mqtune.trainable.script_arguments",
    "Checkpoint": "mqtune.checkpoints",
    **dict.fromkeys(("Checkpoints", "Failures", "Local", "Process", "RunOptions"), "mqtune.driver.setup.options"),
    "WarmStart": "mqtune.results.warm_start",
    "Callback": "mqtune.core.callback",
    "TrialStatus": "mqtune.core.trial",
    "Resources": "mqtune.core.resources",
    "Results": "mqtune.results.results",
    "BackgroundTuner": "mqtune.background",
    "Tuner": "mqtune.tuner",
    **dict.fromkeys(("Client", "TrialHandle"), "mqtune.client"),
    "Simulated": "mqtune.backends.simulated",
    "follow_log": "mqtune.results.logs",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__getattr__ = found_when_used(
    __name__,
    {
        **dict.fromkeys(__all__, "mqtune.search.domains"),
        **_HOMES,
        **{name: f"mqtune.{name}" for name in ("checkpoints", "results", "schedulers", "search")},
        "errors": "mqtune.core.errors",
    },
    checked_early=("mqtune.schedulers", "mqtune.search"),
)
