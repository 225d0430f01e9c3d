"""Reports from the Trainer of Hugging Face, inside a trial; needs the extra ``transformers``."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from mqtune.extend import ConfigurationError, install_command
from mqtune.integrations.in_trials import Metrics, Reports, fetched_checkpoint

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:  # pragma: no cover - the tests are skipped without it
    raise ConfigurationError(f"transformers can't be imported ({error}); {install_command('transformers')}") from error


class MqtuneCallback(TrainerCallback):
    """Reports each evaluation during training, with what was logged since the last one.

    Args:
        metrics: the names of metrics, such as ``eval_loss``; None for all. ``{"loss": "eval_loss"}`` reports that as ``loss``.
        checkpoint_every: with each how manyth report a checkpoint is saved, whatever ``save_strategy`` says; 0 saves only when
            a person asks for one.

    Raises:
        ConfigurationError: *checkpoint_every* is negative; or, in ``train``, there are no evaluations or no such metric.
    """

    def __init__(self, metrics: Metrics = None, *, checkpoint_every: int = 0) -> None:
        self._reports = Reports(metrics, checkpoint_every)
        self._logged: dict[str, object] = {}
        self._is_training = self._has_evaluated = False

    @property
    def checkpoint(self) -> str | None:
        """The folder that the trial starts from, for ``trainer.train(resume_from_checkpoint=…)``; None from scratch."""
        folder = fetched_checkpoint()
        return None if folder is None else str(folder)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Check that there will be evaluations."""
        if args.eval_strategy == "no":
            raise ConfigurationError(
                "MqtuneCallback reports evaluations, and there are none; give TrainingArguments(eval_strategy='epoch')"
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
        """Keep what was logged for the next report."""
        self._logged.update(logs or {})

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Have the Trainer save, if a checkpoint is due; of several data sets each is evaluated first."""
        if self._is_training and state.global_step:
            self._has_evaluated = True
            control.should_save = control.should_save or self._reports.next_saves

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Report with the checkpoint that the Trainer has saved, if one is due; a copy that nobody else wants goes."""
        saved = Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
        self._report(saved)
        if args.save_strategy == "no":
            shutil.rmtree(saved, ignore_errors=True)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Report an evaluation with which nothing was saved."""
        self._report()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Report the last evaluation, if that has not been done."""
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
