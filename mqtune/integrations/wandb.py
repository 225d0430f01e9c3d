"""An experiment in Weights & Biases: each trial a run of the experiment's group; needs the extra ``wandb``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from mqtune import TrialStatus
from mqtune.extend import ConfigurationError, Report, Trial, TrialId, install_command
from mqtune.integrations.logger import TrialLogger, numbers_of, plain_config

try:
    import wandb
except ImportError as error:  # pragma: no cover - the tests are skipped without it
    raise ConfigurationError(f"wandb can't be imported ({error}); {install_command('wandb')}") from error

#: What no id of a run may have.
_NOT_ALLOWED: Final = re.compile(r"[^\w\-]", re.ASCII)


class WandB(TrialLogger):
    """Writes each trial as a run of Weights & Biases, in a group that has the experiment's name.

    A run's id is made of the names of experiment and trial, so that a later driver goes on with it; its steps are the numbers of the
    reports, and no step is there twice. Offline, each driver writes the runs of trials that have not ended anew, into folders of its own:
    ``wandb sync`` leaves out the steps that a run has already.

    Args:
        project: the project.
        entity: the user or team that it belongs to; by default your own.
        mode: "online", "offline", or by default as wandb says (``WANDB_MODE``).
        folder: where wandb keeps its files: below the experiment's folder by default.
    """

    def __init__(
        self,
        project: str = "mqtune",
        *,
        entity: str | None = None,
        mode: Literal["online", "offline"] | None = None,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__()
        self._project = project
        self._entity = entity
        self._mode = mode
        self._keeps_in = None if folder is None else Path(folder)
        self._group = ""
        self._runs: dict[TrialId, wandb.Run] = {}

    def setup(self, folder: Path) -> None:
        super().setup(folder)
        if self._keeps_in is None:
            self._keeps_in = folder
        self._keeps_in.mkdir(parents=True, exist_ok=True)

    def open(self, name: str) -> None:
        self._group = name

    def begin_trial(self, trial: Trial) -> int:
        run = self._runs[trial.id] = wandb.init(
            project=self._project,
            entity=self._entity,
            group=self._group,
            name=trial.id,
            id=_NOT_ALLOWED.sub("-", f"{self._group}-{trial.id}"),
            config=plain_config(trial.config),
            mode=self._mode,
            dir=self._keeps_in,
            resume="allow",
            # One process has the runs of all trials.
            reinit="create_new",
            # The driver's own machine, code and output say nothing of a trial.
            settings=wandb.Settings(
                x_disable_stats=True, x_disable_meta=True, console="off", save_code=False, silent=True
            ),
        )
        return max(0, int(run.step) - 1)

    def write_reports(self, trial: Trial, reports: Sequence[Report], first: int) -> None:
        run = self._runs[trial.id]
        for number, report in enumerate(reports, first):
            run.log({**numbers_of(report), "_timestamp": report.timestamp}, step=number)

    def end_trial(self, trial: Trial) -> None:
        run = self._runs.pop(trial.id)
        run.summary.update({"mqtune.status": trial.status.value, "mqtune.reason": trial.reason})
        run.finish(exit_code=int(trial.status in (TrialStatus.FAILED, TrialStatus.ABANDONED)))

    def close(self) -> None:
        while self._runs:
            self._runs.popitem()[1].finish()
