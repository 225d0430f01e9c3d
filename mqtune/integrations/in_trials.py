"""The shared part of callbacks for training libraries, which run inside trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mqtune import checkpoint_dir, get_checkpoint, report, should_checkpoint
from mqtune.extend import ConfigurationError

#: The metrics to report: one name, several names, None for all, or new names for some: ``{"loss": "val_loss"}``.
Metrics = str | Sequence[str] | Mapping[str, str] | None


class CallbackReports:
    """Makes the reports of a training library's callback.

    ``StopTrial`` may be raised by ``make``, or elsewhere in the library.

    Args:
        metrics: the metrics to report; None for all.
        checkpoint_every: save a checkpoint with every n-th report; 0 saves only on request.

    Raises:
        ConfigurationError: *checkpoint_every* is negative.
    """

    def __init__(self, metrics: Metrics, checkpoint_every: int) -> None:
        if checkpoint_every < 0:
            raise ConfigurationError(f"checkpoint_every={checkpoint_every}: give 1 for each report, or 0 for none")
        names = [metrics] if isinstance(metrics, str) else metrics
        self._names = names if names is None or isinstance(names, Mapping) else {name: name for name in names}
        self._every = checkpoint_every
        self._made = 0

    @property
    def next_saves(self) -> bool:
        """Whether the next report should have a checkpoint."""
        return should_checkpoint() or (self._every > 0 and (self._made + 1) % self._every == 0)

    def make(self, values: Mapping[str, object], save: Callable[[Path], object] | None) -> None:
        """Report the selected metrics, with a checkpoint if one is due.

        Args:
            values: all metrics by name.
            save: writes a checkpoint into a folder; None if there can be no checkpoint.

        Raises:
            ConfigurationError: a selected metric is missing.
            StopTrial: the trial should end.
        """
        row = self._select(values)
        if save is not None and self.next_saves:
            with checkpoint_dir() as folder:
                save(folder)
        self._made += 1
        report(row)

    def _select(self, values: Mapping[str, object]) -> dict[str, object]:
        if self._names is None:
            return dict(values)
        for name in self._names.values():
            if name not in values:
                available = ", ".join(sorted(values)) or "none"
                raise ConfigurationError(f"there is no metric {name!r} to report; there are: {available}")
        return {ours: values[theirs] for ours, theirs in self._names.items()}


def fetched_checkpoint() -> Path | None:
    """Return the folder of the trial's initial checkpoint. Return None without one.

    Raises:
        ConfigurationError: the checkpoint is a dict.
        CheckpointGone, CheckpointBroken, StoreUnavailable: as ``mqtune.get_checkpoint``.
    """
    checkpoint = get_checkpoint()
    return None if checkpoint is None else checkpoint.path
