"""Reports from Keras 3 inside a trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mqtune.extend import ConfigurationError, install_command
from mqtune.integrations.in_trials import CallbackReports, Metrics, fetched_checkpoint

try:
    from keras.callbacks import BackupAndRestore, Callback
except ImportError as error:  # pragma: no cover - the tests are skipped without it
    raise ConfigurationError(
        f"keras can't be imported ({error}); {install_command('keras')} and a backend, and set KERAS_BACKEND to its "
        "name: tensorflow (Keras's default), torch or jax"
    ) from error


class MqtuneCallback(Callback):
    """Reports each epoch's logs. ``fit`` resumes from the trial's checkpoint.

    A checkpoint has the files of ``BackupAndRestore``: weights, optimizer state, and epoch.

    Args:
        metrics: the names of metrics; None for all. ``{"loss": "val_loss"}`` reports ``val_loss`` as ``loss``.
        checkpoint_every: save a checkpoint with every n-th report; 0 saves only on request.

    Raises:
        ConfigurationError: *checkpoint_every* is negative; or, in ``fit``, a metric is missing.
    """

    def __init__(self, metrics: Metrics = None, *, checkpoint_every: int = 0) -> None:
        super().__init__()
        self._reports = CallbackReports(metrics, checkpoint_every)

    def on_train_begin(self, logs: Mapping[str, object] | None = None) -> None:
        """Restore the trial's checkpoint, if it has one."""
        folder = fetched_checkpoint()
        if folder is not None:
            self._backup(folder).on_train_begin()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, object] | None = None) -> None:
        """Report the epoch's logs."""
        self._reports.make(logs or {}, lambda folder: self._backup(folder).on_epoch_end(epoch))

    def _backup(self, folder: Path) -> BackupAndRestore:
        backup = BackupAndRestore(str(folder))
        backup.set_model(self.model)
        return backup
