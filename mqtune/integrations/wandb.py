"""Logger for Weights & Biases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from mqtune import TrialStatus
from mqtune.extend import Report, Trial, TrialId, importing
from mqtune.integrations.logger import TrialLogger, numbers_of, plain_config

with importing("wandb", "wandb"):
    import wandb

_NOT_ALLOWED: Final = re.compile(r"[^\w\-]", re.ASCII)


class WandB(TrialLogger):
    """Writes each trial as a run of Weights & Biases, in a group with the experiment's name.

    A run's id combines the names of experiment and trial, so a later driver continues the run. Its steps are the
    numbers of the reports, and each report is written once. Offline, each driver writes unfinished runs again into a
    new folder. ``wandb sync`` then skips known steps.

    Args:
        project: the project.
        entity: the user or team that owns the project; by default your own.
        mode: "online" or "offline"; by default wandb's own (``WANDB_MODE``).
        folder: folder for wandb's files; by default the experiment's folder.
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
        self._given_folder = None if folder is None else Path(folder)
        self._folder = self._given_folder
        self._group = ""
        self._runs: dict[TrialId, wandb.Run] = {}

    def setup(self, folder: Path) -> None:
        super().setup(folder)
        self._folder = self._given_folder or folder
        self._folder.mkdir(parents=True, exist_ok=True)

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
            dir=self._folder,
            resume="allow",
            reinit="create_new",
            # Statistics of the driver's process are irrelevant to a trial.
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
