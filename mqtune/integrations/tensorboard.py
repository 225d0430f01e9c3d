"""Logger for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mqtune.extend import Report, Trial, TrialId, importing, replace_file
from mqtune.integrations.logger import TrialLogger, numbers_of, plain_config, step_of

with importing("tensorboardX", "tensorboard"):
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.summary import hparams

#: Suffix of the files that this logger writes. It never deletes others.
_SUFFIX: Final = ".mqtune"
#: The file with the number of reports of an ended trial.
_DONE_FILE: Final = "mqtune.json"


class TensorBoard(TrialLogger):
    """Writes each trial as a run of TensorBoard, in ``FOLDER/EXPERIMENT/TRIAL``.

    ``tensorboard --logdir FOLDER`` shows them. A run has a curve of each metric, over iterations and times of reports,
    and data for the plugin HParams. If a driver is killed, the next one rewrites unfinished runs from the journal.

    Args:
        folder: the log folder, for any number of experiments.

    Raises:
        OSError: a file can't be written.
    """

    def __init__(self, folder: str | Path = "runs") -> None:
        super().__init__()
        self._root = Path(folder)
        self._of_experiment = self._root
        self._writers: dict[TrialId, EventsWriter] = {}

    def setup(self, folder: Path) -> None:
        super().setup(folder)
        self._root.mkdir(parents=True, exist_ok=True)

    def open(self, name: str) -> None:
        self._of_experiment = self._root / name

    def begin_trial(self, trial: Trial) -> int:
        folder = self._of_experiment / trial.id
        if (done := _reports_in(folder / _DONE_FILE)) == trial.reports and trial.status.is_terminal:
            return done
        (folder / _DONE_FILE).unlink(missing_ok=True)
        for outdated in folder.glob(f"*{_SUFFIX}"):
            outdated.unlink()
        return 0

    def write_reports(self, trial: Trial, reports: Sequence[Report], first: int) -> None:
        writer = self._writer(trial.id)
        for number, report in enumerate(reports, first):
            points = [Summary.Value(tag=name, simple_value=value) for name, value in numbers_of(report).items()]
            step = step_of(report, number)
            writer.write_event(Event(wall_time=report.timestamp, step=step, summary=Summary(value=points)))
        writer.flush()

    def end_trial(self, trial: Trial) -> None:
        folder = self._of_experiment / trial.id
        if _reports_in(folder / _DONE_FILE) == trial.reports:
            return
        last = Report(trial.id, len(trial.attempts), 0, trial.last_timestamp, trial.last_metrics)
        writer = self._writer(trial.id)
        for summary in hparams(plain_config(trial.config), numbers_of(last)):
            writer.write_event(Event(wall_time=trial.last_timestamp, summary=summary))
        self._writers.pop(trial.id).close()
        replace_file(folder / _DONE_FILE, [json.dumps({"reports": trial.reports}).encode()])

    def close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()

    def _writer(self, trial: TrialId) -> EventsWriter:
        if trial not in self._writers:
            folder = self._of_experiment / trial
            folder.mkdir(parents=True, exist_ok=True)
            # tensorboardX's other writers start a thread and a queue for each file.
            self._writers[trial] = EventsWriter(str(folder / "events"), _SUFFIX)
        return self._writers[trial]


def _reports_in(path: Path) -> int | None:
    """Return the number of reports in an ended trial's files; None if unknown."""
    try:
        return int(json.loads(path.read_bytes())["reports"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
