"""A callback: writes one line for each report."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from mqtune import Callback
from mqtune.core.experiment import Experiment
from mqtune.core.trial import Report, Trial


class ReportLines(Callback):
    """Appends ``trial,attempt,sequence,value`` to a file for each report."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._metric = ""
        self._file: TextIO | None = None

    def on_start(self, experiment: Experiment) -> None:
        self._metric = experiment.metric
        self._file = self._path.open("a", encoding="utf-8")

    def on_report(self, trial: Trial, report: Report) -> None:
        assert self._file is not None, "on_start comes first"
        value = report.metrics.get(self._metric, "")
        print(trial.id, report.attempt, report.sequence, value, sep=",", file=self._file)

    def on_end(self) -> None:
        if self._file is not None:
            self._file.close()
