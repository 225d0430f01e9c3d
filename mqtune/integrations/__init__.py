"""Adapters to other libraries. Each is imported only on demand, and most need an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.integrations.ax import AxSearcher as AxSearcher
    from mqtune.integrations.ax_early_stopping import AxEarlyStopping as AxEarlyStopping
    from mqtune.integrations.ax_space import space_of as space_of
    from mqtune.integrations.in_trials import CallbackReports as CallbackReports
    from mqtune.integrations.logger import TrialLogger as TrialLogger
    from mqtune.integrations.mlflow import MLflow as MLflow
    from mqtune.integrations.opentelemetry import OpenTelemetry as OpenTelemetry
    from mqtune.integrations.optuna import OptunaSearcher as OptunaSearcher
    from mqtune.integrations.optuna_errors import failure_of as failure_of, name_of as name_of
    from mqtune.integrations.optuna_optimize import MARK as MARK, StudyTrials as StudyTrials
    from mqtune.integrations.optuna_private import (
        close_databases as close_databases,
        is_stopped as is_stopped,
        storage_of as storage_of,
    )
    from mqtune.integrations.optuna_space import distributions_of as distributions_of
    from mqtune.integrations.optuna_storage import DeferredStorage as DeferredStorage
    from mqtune.integrations.optuna_study import study_of as study_of
    from mqtune.integrations.optuna_trial import (
        ASKED as ASKED,
        CALL as CALL,
        TOOK as TOOK,
        as_trainable as as_trainable,
    )
    from mqtune.integrations.sklearn import Rounds as Rounds
    from mqtune.integrations.syne_tune import SyneTuneScheduler as SyneTuneScheduler, config_space as config_space
    from mqtune.integrations.syne_tune_backend import MqtuneBackend as MqtuneBackend
    from mqtune.integrations.syne_tune_model import SlowSearcher as SlowSearcher, is_quick as is_quick
    from mqtune.integrations.tensorboard import TensorBoard as TensorBoard
    from mqtune.integrations.wandb import WandB as WandB

#: The names that unit tests may use, by the module that defines them.
_NAMES = {
    "ax": ("AxSearcher",),
    "ax_early_stopping": ("AxEarlyStopping",),
    "ax_space": ("space_of",),
    "in_trials": ("CallbackReports",),
    "logger": ("TrialLogger",),
    "mlflow": ("MLflow",),
    "opentelemetry": ("OpenTelemetry",),
    "optuna": ("OptunaSearcher",),
    "optuna_errors": ("failure_of", "name_of"),
    "optuna_optimize": ("MARK", "StudyTrials"),
    "optuna_private": ("close_databases", "is_stopped", "storage_of"),
    "optuna_space": ("distributions_of",),
    "optuna_storage": ("DeferredStorage",),
    "optuna_study": ("study_of",),
    "optuna_trial": ("ASKED", "CALL", "TOOK", "as_trainable"),
    "sklearn": ("Rounds",),
    "syne_tune": ("SyneTuneScheduler", "config_space"),
    "syne_tune_backend": ("MqtuneBackend",),
    "syne_tune_model": ("SlowSearcher", "is_quick"),
    "tensorboard": ("TensorBoard",),
    "wandb": ("WandB",),
}
__getattr__ = facade_of(__name__, _NAMES)
