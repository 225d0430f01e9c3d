"""mqtune: hyperparameter tuning over many machines with nothing but Celery and Redis."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from mqtune.core.version import __version__

if TYPE_CHECKING:
    from mqtune.backends.simulated import Simulated
    from mqtune.checkpoints import Checkpoint, CheckpointStore
    from mqtune.client import Client, TrialHandle
    from mqtune.core.callback import Callback
    from mqtune.core.resources import Resources
    from mqtune.core.trial import Action, Decision, TrialStatus
    from mqtune.driver.settings import Checkpoints, Failures, Local, Process, RunOptions
    from mqtune.driver.warm_start import WarmStart
    from mqtune.driver.whatif import Replay
    from mqtune.results.logs import follow_log
    from mqtune.results.results import Results
    from mqtune.schedulers.asha import ASHA, PromotionASHA
    from mqtune.schedulers.base import FIFO, Fork, Release, Resume, Scheduler, Start, Wait
    from mqtune.schedulers.hyperband import HyperBand
    from mqtune.schedulers.median import MedianStopping
    from mqtune.schedulers.moasha import MOASHA
    from mqtune.schedulers.pasha import PASHA
    from mqtune.schedulers.pbt import PBT
    from mqtune.schedulers.policy import PBTReplay, PolicyStep, policy_of
    from mqtune.schedulers.rush import RUSH
    from mqtune.schedulers.stopping.experiment_rules import (
        ExperimentPlateau,
        ReportsReceived,
        TargetReached,
        TimeLimit,
        TrialsCompleted,
        TrialsEnded,
        TrialsFailed,
        TrialsStarted,
    )
    from mqtune.schedulers.stopping.rule import StopRule
    from mqtune.schedulers.stopping.trial_rules import MaximumIteration, MetricMaximum, TrialDiverged, TrialPlateau
    from mqtune.search.base import WAIT, PastTrial, Searcher
    from mqtune.search.domains import (
        choice,
        finrange,
        grid_search,
        logfinrange,
        lograndint,
        loguniform,
        normal,
        ordinal,
        qloguniform,
        qrandint,
        quniform,
        randint,
        reverseloguniform,
        sample_from,
        uniform,
    )
    from mqtune.search.encoding import Encoding
    from mqtune.search.grid import GridSearcher
    from mqtune.search.points import PointsFirst
    from mqtune.search.random import RandomSearcher
    from mqtune.search.repeater import Repeater
    from mqtune.search.space import Space
    from mqtune.trainable.class_ import Trainable
    from mqtune.trainable.function import checkpoint_dir
    from mqtune.trainable.process.session import StopTrial
    from mqtune.trainable.reporting import ask, get_checkpoint, get_context, report, save_checkpoint, should_checkpoint
    from mqtune.tuner import BackgroundTuner, Tuner

__all__ = [
    "ASHA",
    "FIFO",
    "MOASHA",
    "PASHA",
    "PBT",
    "RUSH",
    "WAIT",
    "Action",
    "BackgroundTuner",
    "Callback",
    "Checkpoint",
    "CheckpointStore",
    "Checkpoints",
    "Client",
    "Decision",
    "Encoding",
    "ExperimentPlateau",
    "Failures",
    "Fork",
    "GridSearcher",
    "HyperBand",
    "Local",
    "MaximumIteration",
    "MedianStopping",
    "MetricMaximum",
    "PBTReplay",
    "PastTrial",
    "PointsFirst",
    "PolicyStep",
    "Process",
    "PromotionASHA",
    "RandomSearcher",
    "Release",
    "Repeater",
    "Replay",
    "ReportsReceived",
    "Resources",
    "Results",
    "Resume",
    "RunOptions",
    "Scheduler",
    "Searcher",
    "Simulated",
    "Space",
    "Start",
    "StopRule",
    "StopTrial",
    "TargetReached",
    "TimeLimit",
    "Trainable",
    "TrialDiverged",
    "TrialHandle",
    "TrialPlateau",
    "TrialStatus",
    "TrialsCompleted",
    "TrialsEnded",
    "TrialsFailed",
    "TrialsStarted",
    "Tuner",
    "Wait",
    "WarmStart",
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
    "policy_of",
    "qloguniform",
    "qrandint",
    "quniform",
    "randint",
    "report",
    "reverseloguniform",
    "sample_from",
    "save_checkpoint",
    "should_checkpoint",
    "uniform",
]

# A trial process imports mqtune for ``report`` alone, and must not wait for redis and celery: names are found when used.
_HOMES: Final[dict[str, str]] = {
    **dict.fromkeys(("ASHA", "PromotionASHA"), "mqtune.schedulers.asha"),
    **dict.fromkeys(("FIFO", "Fork", "Release", "Resume", "Scheduler", "Start", "Wait"), "mqtune.schedulers.base"),
    "HyperBand": "mqtune.schedulers.hyperband",
    "MOASHA": "mqtune.schedulers.moasha",
    "MedianStopping": "mqtune.schedulers.median",
    "PASHA": "mqtune.schedulers.pasha",
    "PBT": "mqtune.schedulers.pbt",
    **dict.fromkeys(("PBTReplay", "PolicyStep", "policy_of"), "mqtune.schedulers.policy"),
    "RUSH": "mqtune.schedulers.rush",
    "StopRule": "mqtune.schedulers.stopping.rule",
    **dict.fromkeys(
        ("MaximumIteration", "MetricMaximum", "TrialDiverged", "TrialPlateau"), "mqtune.schedulers.stopping.trial_rules"
    ),
    **dict.fromkeys(
        (
            "ExperimentPlateau",
            "ReportsReceived",
            "TargetReached",
            "TimeLimit",
            "TrialsCompleted",
            "TrialsEnded",
            "TrialsFailed",
            "TrialsStarted",
        ),
        "mqtune.schedulers.stopping.experiment_rules",
    ),
    **dict.fromkeys(("PastTrial", "Searcher", "WAIT"), "mqtune.search.base"),
    "Encoding": "mqtune.search.encoding",
    "GridSearcher": "mqtune.search.grid",
    "PointsFirst": "mqtune.search.points",
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
    **dict.fromkeys(("Action", "Decision"), "mqtune.core.trial"),
    **dict.fromkeys(("Checkpoint", "CheckpointStore"), "mqtune.checkpoints"),
    **dict.fromkeys(("Checkpoints", "Failures", "Local", "Process", "RunOptions"), "mqtune.driver.settings"),
    "Replay": "mqtune.driver.whatif",
    "WarmStart": "mqtune.driver.warm_start",
    "Callback": "mqtune.core.callback",
    "TrialStatus": "mqtune.core.trial",
    "Resources": "mqtune.core.resources",
    "Results": "mqtune.results.results",
    **dict.fromkeys(("BackgroundTuner", "Tuner"), "mqtune.tuner"),
    **dict.fromkeys(("Client", "TrialHandle"), "mqtune.client"),
    "Simulated": "mqtune.backends.simulated",
    "follow_log": "mqtune.results.logs",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mqtune' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "mqtune.search.domains")), name)
    globals()[name] = value
    return value
