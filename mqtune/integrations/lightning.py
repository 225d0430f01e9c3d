"""Reports from PyTorch Lightning inside a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from mqtune.extend import ConfigurationError, importing
from mqtune.integrations.in_trials import CallbackReports, Metrics, fetched_checkpoint

with importing("lightning", "lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer

_FILE: Final = "lightning.ckpt"


class MqtuneCallback(Callback):
    """Reports the module's logged metrics after each epoch or validation.

    Metrics that the module logs in its own ``on_train_epoch_end`` come too late for that epoch's report.

    Args:
        metrics: the names of metrics; None for all. ``{"loss": "val_loss"}`` reports ``val_loss`` as ``loss``.
        on: "epoch" reports at the end of each epoch, "validation" at the end of each validation during training.
        checkpoint_every: save a checkpoint with every n-th report; 0 saves only on request.

    Raises:
        ConfigurationError: an argument is invalid; or, during training, a metric was not logged.
    """

    def __init__(
        self, metrics: Metrics = None, *, on: Literal["epoch", "validation"] = "epoch", checkpoint_every: int = 0
    ) -> None:
        super().__init__()
        if on not in {"epoch", "validation"}:
            raise ConfigurationError(f"on={on!r}: give 'epoch' or 'validation'")
        self._on = on
        self._reports = CallbackReports(metrics, checkpoint_every)

    @property
    def checkpoint(self) -> str | None:
        """Path of the trial's initial checkpoint, for ``trainer.fit(model, ckpt_path=…)``, or None."""
        folder = fetched_checkpoint()
        return None if folder is None else str(folder / _FILE)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the epoch's metrics, unless reports are made by validation."""
        if self._on == "epoch":
            self._report(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report, if reports are made by validation. Skip sanity checks and ``trainer.validate``."""
        if self._on == "validation" and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._report(trainer)

    def _report(self, trainer: Trainer) -> None:
        def save(folder: Path) -> None:
            trainer.save_checkpoint(folder / _FILE)

        self._reports.make(trainer.callback_metrics, save)
