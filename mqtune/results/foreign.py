"""Experiments of other tools, imported as saved experiments with ended trials."""

from __future__ import annotations

import contextlib
import csv
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from mqtune.core.codec import VERSION, encode_value
from mqtune.core.errors import ConfigurationError
from mqtune.core.events import (
    START,
    AttemptEnded,
    AttemptStarted,
    Cursor,
    DecisionTaken,
    ExperimentCreated,
    ExperimentEnded,
    Reports,
    TrialStaged,
)
from mqtune.core.text import cell_value, names_in_words, nested, text_of_cell
from mqtune.core.trial import ITERATION, AttemptEnd, Config, Intent, Metrics, TrialId, TrialStatus, is_number
from mqtune.journal.base import Entry
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile
from mqtune.results.results import Results
from mqtune.search.space import AnySpace

_ENDS: Final = {
    TrialStatus.COMPLETED: AttemptEnd.COMPLETED,
    TrialStatus.EARLY_STOPPED: AttemptEnd.STOPPED,
    TrialStatus.FAILED: AttemptEnd.FAILED,
}
_MS: Final = 1_000


class ForeignTrial(NamedTuple):
    """A trial of another tool. Its status is COMPLETED, EARLY_STOPPED or FAILED.

    Attributes:
        reports: pairs of a time, in seconds since the epoch, and metrics.
        began: the time of its begin. If it is 0, the first report's time counts.
    """

    config: Config
    reports: Sequence[tuple[float, Metrics]]
    status: TrialStatus = TrialStatus.COMPLETED
    reason: str = ""
    began: float = 0.0
    host: str = ""


class Foreign(NamedTuple):
    """An experiment of another tool. *name* is its name in that tool."""

    tool: str
    name: str
    metric: str | list[str]
    mode: str | list[str]
    trials: Sequence[ForeignTrial]


def write_foreign(foreign: Foreign, folder: Path) -> Results:
    """Write an experiment of another tool into a new folder, as a finished one.

    Trials get ids in the order in which they began. The experiment is on no server, and can't be resumed.

    Raises:
        ConfigurationError: the experiment has no trial, a value can't be stored, or the folder exists.
        OSError: the folder can't be written.
    """
    if not foreign.trials:
        raise ConfigurationError(f"{foreign.name} has no trial that has ended")
    if folder.exists():
        raise ConfigurationError(f"{folder} already exists; give another name: --name NAME")
    try:
        entries = [*_Journal(foreign, folder.name).entries()]
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"{foreign.name} has a value that can't be stored: {error}") from error
    folder.mkdir(parents=True)
    try:
        with contextlib.closing(JournalFile(folder / JOURNAL_FILE)) as copy:
            copy.begin(entries)
        results = Results.load(folder)
        results.save()
    except BaseException:
        # A part of the folder would look like an existing experiment.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return results


class _Step(NamedTuple):
    """An event of a journal and its time. A driver's event is encoded later, with its cursor."""

    at: float
    trial: int
    event: AttemptStarted | AttemptEnded | bytes | DecisionTaken | TrialStaged


class _Journal:
    def __init__(self, foreign: Foreign, name: str) -> None:
        self._foreign = foreign
        self._name = name
        self._cursor = START
        self._ms, self._count = 0, 0

    def entries(self) -> Iterator[Entry]:
        trials = sorted(self._foreign.trials, key=_begin)
        began = _begin(trials[0])
        yield self._entry(began, ExperimentCreated(name=self._name, definition=self._definition(), at=began).encode())
        steps = [step for number, trial in enumerate(trials, 1) for step in self._steps(number, trial)]
        last = began
        # The sort is stable: a trial's events at the same time stay in order.
        for step in sorted(steps, key=lambda step: step.at):
            last = step.at
            yield self._entry_of(step)
        ended = ExperimentEnded(outcome="finished", reason="", at=last, cursor=self._cursor)
        yield self._entry(last, ended.encode())

    def _definition(self) -> dict[str, object]:
        return {
            "metric": self._foreign.metric,
            "mode": self._foreign.mode,
            "max_failures": 0,
            "max_trials": len(self._foreign.trials),
            "accept_no_report": True,
            "scheduler": {"scheduler": "fifo"},
            "searcher": {"searcher": self._foreign.tool},
            "space": AnySpace().describe(),
        }

    def _steps(self, number: int, trial: ForeignTrial) -> Iterator[_Step]:
        id_, at = TrialId(f"{number:04d}"), _begin(trial)
        staged = TrialStaged(trial=id_, attempt=1, config=trial.config, at=at, cursor=START, by=self._foreign.tool)
        started = AttemptStarted(trial=id_, attempt=1, worker=self._foreign.tool, host=trial.host, devices=[], at=at)
        yield _Step(at, number, staged)
        yield _Step(at, number, started)
        for sequence, (time, metrics) in enumerate(trial.reports, 1):
            # Clocks may have been set back.
            at = max(at, time)
            report = [at, {ITERATION: sequence, **metrics}]
            yield _Step(at, number, encode_value([VERSION, Reports.KIND, [[id_, 1, sequence, [report]]]]))
        if trial.status is TrialStatus.EARLY_STOPPED:
            yield _Step(at, number, self._decision(id_, len(trial.reports), trial.reason, at))
        yield _Step(at, number, self._end(id_, trial, at))

    def _end(self, id_: TrialId, trial: ForeignTrial, at: float) -> AttemptEnded:
        kind, colon, error = trial.reason.partition(": ")
        if not colon:
            kind, error = "Error", trial.reason or f"it has failed in {self._foreign.tool}"
        if trial.status is not TrialStatus.FAILED:
            kind = error = ""
        return AttemptEnded(trial=id_, attempt=1, end=_ENDS[trial.status], at=at, error_type=kind, error=error)

    def _decision(self, id_: TrialId, sequence: int, reason: str, at: float) -> DecisionTaken:
        return DecisionTaken(
            trial=id_,
            attempt=1,
            sequence=sequence,
            action="stop",
            intent=Intent.STOP,
            reason=reason,
            at=at,
            cursor=START,
            by=self._foreign.tool,
        )

    def _entry_of(self, step: _Step) -> Entry:
        event = step.event
        if isinstance(event, DecisionTaken | TrialStaged):
            return self._entry(step.at, replace(event, cursor=self._cursor).encode())
        is_report = isinstance(event, bytes)
        entry = self._entry(step.at, event if isinstance(event, bytes) else event.encode())
        self._cursor = Cursor(entry.id, 1 if is_report else 0)
        return entry

    def _entry(self, at: float, data: bytes) -> Entry:
        ms = max(self._ms, round(at * _MS))
        self._count = self._count + 1 if ms == self._ms else 0
        self._ms = ms
        return Entry(f"{ms}-{self._count}", data)


def _begin(trial: ForeignTrial) -> float:
    return trial.began or (trial.reports[0][0] if trial.reports else 0.0)


_STATUSES: Final = {status.value: status for status in _ENDS}
_OTHERS: Final = frozenset({"trial", "status", "reason", "started_at", "ended_at"})


def read_csv(path: Path, metric: str, mode: str) -> Foreign:
    """Read trials from a CSV file with a row for each: its config and its result.

    Columns are ``config.NAME`` and ``metrics.NAME``, as in mqtune's exports. Or one column has the metric, and the
    others are the config. A ``status`` column may have completed, early_stopped or failed. Rows with another status are
    left out.

    Raises:
        ConfigurationError: the metric or the mode is not given, the metric has no column, or the file can't be read.
    """
    if not metric or not mode:
        raise ConfigurationError(f"{path} doesn't say which metric to optimise: give --metric NAME --mode min, or max")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            table.fieldnames = names = [text_of_cell(name) for name in table.fieldnames or ()]
            rows = [
                {name: text_of_cell(text) for name, text in row.items() if name and isinstance(text, str)}
                for row in table
            ]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigurationError(f"{path} can't be read: {error}") from error
    if metric not in names and f"metrics.{metric}" not in names:
        raise ConfigurationError(f"{path} has no column {metric!r}; its columns are {names_in_words(names)}")
    # Rows without times get the time of the file's last change.
    at = path.stat().st_mtime
    trials = [trial for row in rows if (trial := _trial_of(row, metric, at)) is not None]
    return Foreign("csv", path.stem, metric, mode, trials)


def _trial_of(row: Mapping[str, str], metric: str, at: float) -> ForeignTrial | None:
    status = _STATUSES.get(row.get("status") or TrialStatus.COMPLETED.value)
    if status is None:
        return None
    values = {name: cell_value(text) for name, text in row.items() if text}
    metrics = _without_prefix(values, "metrics.")
    if not metrics and metric in values:
        # The metric's own column, also in an export.
        metrics = {metric: values[metric]}
    if any(name.startswith("config.") for name in row):
        config = _without_prefix(values, "config.")
    else:
        others = {metric, *_OTHERS}
        config = {n: value for n, value in values.items() if n not in others and not n.startswith("metrics.")}
    if not metrics and not row.get("status"):
        return None
    began, ended = (_number(values.get(name)) or at for name in ("started_at", "ended_at"))
    reports = [(ended, nested(metrics))] if metrics else []
    return ForeignTrial(nested(config), reports, status, row.get("reason", ""), began)


def _number(value: object) -> float:
    return float(value) if is_number(value) else 0.0


def _without_prefix(values: Mapping[str, object], prefix: str) -> dict[str, object]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
