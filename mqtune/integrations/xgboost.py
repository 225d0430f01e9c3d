"""Reports from XGBoost inside a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mqtune.extend import importing
from mqtune.integrations.in_trials import CallbackReports, Metrics, fetched_checkpoint

with importing("xgboost", "xgboost"):
    from xgboost import Booster
    from xgboost.callback import TrainingCallback

_FILE: Final = "model.ubj"


class MqtuneCallback(TrainingCallback):
    """Reports each round of ``xgboost.train``, or of an estimator's ``fit``.

    Args:
        metrics: the names of metrics, such as ``valid-rmse`` for ``evals=[(…, "valid")]``; None for all. ``{"loss":
            "valid-rmse"}`` reports ``valid-rmse`` as ``loss``.
        checkpoint_every: save a checkpoint with every n-th report; 0 saves only on request.

    Attributes:
        checkpoint: path of the trial's initial checkpoint, for ``xgb_model=``, or None.
        rounds: number of rounds in that checkpoint. Train that many fewer.

    Raises:
        ConfigurationError: *checkpoint_every* is negative; or, during training, a metric is missing.
    """

    def __init__(self, metrics: Metrics = None, *, checkpoint_every: int = 0) -> None:
        super().__init__()
        self._reports = CallbackReports(metrics, checkpoint_every)
        folder = fetched_checkpoint()
        self.checkpoint = None if folder is None else str(folder / _FILE)
        self.rounds = 0 if folder is None else Booster(model_file=self.checkpoint).num_boosted_rounds()

    def after_iteration(
        self, model: Booster, epoch: int, evals_log: Mapping[str, Mapping[str, Sequence[object]]]
    ) -> bool:
        """Report a round. Return False, as ``StopTrial`` ends the training."""
        values = {
            f"{data}-{metric}": history[-1]
            for data, metrics in evals_log.items()
            for metric, history in metrics.items()
        }

        def save(folder: Path) -> None:
            model.save_model(folder / _FILE)

        self._reports.make(values, save)
        return False
