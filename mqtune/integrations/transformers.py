"""Reports from Hugging Face's Trainer inside a trial."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from mqtune.extend import ConfigurationError, importing
from mqtune.integrations.in_trials import CallbackReports, Metrics, fetched_checkpoint

with importing("transformers", "transformers"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class MqtuneCallback(TrainerCallback):
    """Reports each evaluation during training, with all logs since the last one.

    Args:
        metrics: the names of metrics, such as ``eval_loss``; None for all. ``{"loss": "eval_loss"}`` reports
            ``eval_loss`` as ``loss``.
        checkpoint_every: save a checkpoint with every n-th report, whatever ``save_strategy``; 0 saves only on request.

    Raises:
        ConfigurationError: *checkpoint_every* is negative; or, in ``train``, evaluations or a metric are missing.
    """

    def __init__(self, metrics: Metrics = None, *, checkpoint_every: int = 0) -> None:
        self._reports = CallbackReports(metrics, checkpoint_every)
        self._logged: dict[str, object] = {}
        self._is_training = self._has_evaluated = False

    @property
    def checkpoint(self) -> str | None:
        """Folder of the trial's initial checkpoint, for ``resume_from_checkpoint=``, or None."""
        folder = fetched_checkpoint()
        return None if folder is None else str(folder)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Check that evaluations are enabled."""
        if args.eval_strategy == "no":
            raise ConfigurationError(
                "MqtuneCallback reports evaluations, but eval_strategy='no' makes none; give "
                "TrainingArguments(eval_strategy='epoch')"
            )
        self._is_training = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, object] | None = None,
        **_: object,
    ) -> None:
        """Keep the logs for the next report."""
        self._logged.update(logs or {})

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Request a save if a checkpoint is due. The Trainer saves after evaluating the last data set."""
        if self._is_training and state.global_step:
            self._has_evaluated = True
            control.should_save = control.should_save or self._reports.next_saves

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Report, with the Trainer's checkpoint if one is due.

        With ``save_strategy="no"`` nobody else needs the Trainer's checkpoint, so it is deleted.
        """
        saved = Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
        self._report(saved)
        if args.save_strategy == "no":
            shutil.rmtree(saved, ignore_errors=True)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Report an evaluation that was not followed by a save."""
        self._report()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Report the last evaluation, if not yet reported."""
        self._report()
        self._is_training = False

    def _report(self, saved: Path | None = None) -> None:
        if not self._has_evaluated:
            return
        logged, self._logged, self._has_evaluated = self._logged, {}, False

        def save(folder: Path) -> None:
            if saved is not None:
                shutil.copytree(saved, folder, dirs_exist_ok=True)

        self._reports.make(logged, None if saved is None else save)
