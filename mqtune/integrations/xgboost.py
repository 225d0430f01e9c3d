"""Reports from XGBoost, inside a trial; needs the extra ``xgboost``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mqtune.extend import ConfigurationError, install_command
from mqtune.integrations.in_trials import Metrics, Reports, fetched_checkpoint

try:
    from xgboost import Booster
    from xgboost.callback import TrainingCallback
except ImportError as error:  # pragma: no cover - the tests are skipped without it
    raise ConfigurationError(f"xgboost can't be imported ({error}); {install_command('xgboost')}") from error

_FILE: Final = "model.ubj"


class MqtuneCallback(TrainingCallback):
    """Reports each round of ``xgboost.train``, or of an estimator's ``fit``.

    Args:
        metrics: the names of metrics, such as ``valid-rmse`` for ``evals=[(…, "valid")]``; None for all.
            ``{"loss": "valid-rmse"}`` reports that as ``loss``.
        checkpoint_every: with each how manyth report a checkpoint is saved; 0 saves only when a person asks for one.

    Attributes:
        checkpoint: the file that the trial starts from, for ``xgb_model=``; None if it starts from scratch.
        rounds: how many rounds that has already: train for so many less.

    Raises:
        ConfigurationError: *checkpoint_every* is negative; or, during training, there is no such metric.
    """

    def __init__(self, metrics: Metrics = None, *, checkpoint_every: int = 0) -> None:
        super().__init__()
        self._reports = Reports(metrics, checkpoint_every)
        folder = fetched_checkpoint()
        self.checkpoint = None if folder is None else str(folder / _FILE)
        self.rounds = 0 if folder is None else Booster(model_file=self.checkpoint).num_boosted_rounds()

    def after_iteration(
        self, model: Booster, epoch: int, evals_log: Mapping[str, Mapping[str, Sequence[object]]]
    ) -> bool:
        """Report, and never ask XGBoost to stop: StopTrial does."""
        values = {
            f"{data}-{metric}": history[-1]
            for data, metrics in evals_log.items()
            for metric, history in metrics.items()
        }

        def save(folder: Path) -> None:
            model.save_model(folder / _FILE)

        self._reports.make(values, save)
        return False
