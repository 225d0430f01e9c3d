"""Adapters to other libraries. Each is imported only on demand, and most need an extra."""

from __future__ import annotations

from mqtune.core.lazy import facade_of

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
