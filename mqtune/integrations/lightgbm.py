"""Reports from LightGBM inside a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mqtune.extend import importing
from mqtune.integrations.in_trials import CallbackReports, Metrics, fetched_checkpoint

with importing("lightgbm", "lightgbm"):
    from lightgbm import Booster
    from lightgbm.callback import CallbackEnv

_FILE: Final = "model.txt"


class MqtuneCallback:
    """Reports each round of ``lightgbm.train``, or of an estimator's ``fit``.

    Args:
        metrics: the names of metrics, such as ``valid-l2`` for ``valid_names=["valid"]``; None for all. ``{"loss":
            "valid-l2"}`` reports ``valid-l2`` as ``loss``.
        checkpoint_every: save a checkpoint with every n-th report; 0 saves only on request.

    Attributes:
        checkpoint: path of the trial's initial checkpoint, for ``init_model=``, or None.
        rounds: number of rounds in that checkpoint. Train that many fewer.

    Raises:
        ConfigurationError: *checkpoint_every* is negative; or, during training, a metric is missing.
    """

    #: LightGBM calls callbacks in this order. Early stopping has 30, and would end the training before a later report.
    order: Final = 25
    before_iteration: Final = False

    def __init__(self, metrics: Metrics = None, *, checkpoint_every: int = 0) -> None:
        self._reports = CallbackReports(metrics, checkpoint_every)
        folder = fetched_checkpoint()
        self.checkpoint = None if folder is None else str(folder / _FILE)
        self.rounds = 0 if folder is None else Booster(model_file=self.checkpoint).current_iteration()

    def __call__(self, env: CallbackEnv) -> None:
        """Report the metrics of a round."""
        values = {f"{data}-{metric}": value for data, metric, value, *_ in env.evaluation_result_list or []}

        def save(folder: Path) -> None:
            env.model.save_model(folder / _FILE)

        self._reports.make(values, save)
