"""Results of an experiment: its best trial, all trials and reports, as values, arrays, CSV and JSON lines."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mqtune.checkpoints import Checkpoint, store_beside
from mqtune.core import checks
from mqtune.core.entry_points import EXPORTERS, load_point
from mqtune.core.errors import ConfigurationError, MetricMissing, TrialFailed
from mqtune.core.events import Event, reports_of
from mqtune.core.experiment import Experiment
from mqtune.core.machine import replace_file
from mqtune.core.names import OF_RESULTS, naming
from mqtune.core.scope import ScopedValue, checked_scope
from mqtune.core.text import cell_text, flatten, names_in_words, say_in_one_line
from mqtune.core.trial import (
    ITERATION,
    Attempt,
    CheckpointId,
    Config,
    Metrics,
    Report,
    Trial,
    TrialId,
    TrialStatus,
    is_number,
)
from mqtune.journal.copy import JOURNAL_FILE, JournalFile, incomplete, lacks_entries
from mqtune.results.callbacks import ERROR_FILE
from mqtune.results.checkpoints import Which, checkpoint_of, fetch_checkpoint
from mqtune.results.experiments import (
    Readable,
    RecordedReport,
    created_event,
    find_experiment,
    first_events,
    saved_events,
)
from mqtune.results.frames import Library, Row, Rows, attempt_rows, frame_of, in_order, report_rows, trial_rows
from mqtune.results.kept_state import fold_copy
from mqtune.results.progress import deciders_of, progress_of
from mqtune.results.repeated import Repeated, repeated_configs
from mqtune.schedulers.policy import PolicyStep, policy_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mqtune.results.plots.plots import Plots

logger = logging.getLogger(__name__)


def _summary(trial: Trial) -> Row:
    return {"trial": trial.id, "status": trial.status.value, "config": trial.config, "metrics": trial.best_metrics}


def csv_text(rows: Sequence[Row]) -> str:
    """Return rows as CSV under one header; NaN is nan, infinities are inf and -inf, and a missing value is empty.

    A text that a spreadsheet would take for a formula has a ``'`` before it.
    """
    names = in_order({name: None for row in rows for name in row})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell_text, names))
    writer.writerows([_cell(row.get(name, "")) for name in names] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    value = json_text(value) if isinstance(value, list | tuple | bytes) else value
    return cell_text(value) if isinstance(value, str) else value


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return *value* as JSON; NaN and the infinities become "NaN", "Infinity" and "-Infinity", bytes become text.

    JSON has no such numbers; the JSON of Protocol Buffers writes them this way too, and float() reads them.
    """
    return json.dumps(_standard(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _standard(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    # Comprehensions would need twice the frames, and metrics may be nested 500 levels deep.
    if isinstance(value, Mapping):
        return dict(zip(map(str, value), map(_standard, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return list(map(_standard, value))
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _write(path: Path, parts: Iterable[str]) -> None:
    """Write a file in one step: who reads it sees the old one or the new one, and a failure leaves the old one.

    Raises:
        OSError: the folder can't be written.
    """
    # A surrogate, as from an argument that was no UTF-8, must not cost the whole file.
    replace_file(path, (part.encode(errors="backslashreplace") for part in parts))


TRIALS_FILE: Final = "trials.csv"
SUMMARY_FILE: Final = "results.json"


class Budget(NamedTuple):
    """The time that trials used, and that early stopping saved: what was left of the scheduler's ``max_t``, or 0 without one.

    Trials that failed, were abandoned or have not ended are left out.
    """

    used: float
    saved: float


@dataclass(frozen=True, slots=True, repr=False)
class TrialResult:
    """A trial, the value of the metric that it is ranked by (NaN if it has none), and the metrics reported with it.

    Where the experiment has several metrics, *values* has those of each, by name, and *value* is NaN unless one was asked for.
    """

    trial: Trial
    value: float
    metrics: Metrics
    values: Mapping[str, float] = field(default_factory=dict)
    #: Whether these metrics keep to the experiment's outcome constraints.
    is_feasible: bool = True

    @property
    def id(self) -> TrialId:
        return self.trial.id

    @property
    def config(self) -> Config:
        return self.trial.config

    @property
    def status(self) -> TrialStatus:
        return self.trial.status

    @property
    def reason(self) -> str:
        """Why it has this status, or an empty string."""
        return self.trial.reason

    @property
    def tags(self) -> tuple[str, ...]:
        return self.trial.labels.tags

    @property
    def notes(self) -> str:
        return self.trial.labels.notes

    @property
    def attempts(self) -> list[Attempt]:
        """Its attempts, each with worker, times, end, error and log paths."""
        return self.trial.attempts

    @property
    def checkpoint(self) -> CheckpointId:
        """The id of its newest checkpoint, or an empty string; ``Results.get_checkpoint`` returns its content."""
        return self.trial.checkpoint

    @property
    def error(self) -> str:
        """The error of its last attempt, as a traceback if there is one, or an empty string."""
        return self.attempts[-1].error if self.attempts else ""

    @property
    def log_paths(self) -> tuple[str, str]:
        """The paths of its last attempt's stdout and stderr, on the worker that ran it; empty if it never ran."""
        return (self.attempts[-1].stdout_path, self.attempts[-1].stderr_path) if self.attempts else ("", "")

    def __repr__(self) -> str:
        values = self.values or {"value": self.value}
        shown = ", ".join(f"{name}={value:.6g}" for name, value in values.items())
        return f"<trial {self.id} {self.status.name}: {shown}, config={self.config}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        values = self.values or {"value": self.value}
        shown: str = import_module("mqtune.results.display").trial_html(self.trial, values)
        return shown


class Results:
    """The results of an experiment; those of a running tuner are always up to date.

    Values are values of the experiment's metric. A trial whose value is NaN, that has none, or that was abandoned, is never
    the best.

    Where the experiment has several metrics, no trial is the best by all of them: ``pareto_front`` has the trials that no other beats,
    and ``best_by`` the best one by a metric. A trial counts with its last report that has a number other than NaN for each of them.
    """

    def __init__(self, experiment: Experiment, folder: Path, written: Readable | None = None) -> None:
        self.experiment = experiment
        self.folder = folder
        self._copy = written if written is not None else JournalFile(folder / JOURNAL_FILE)
        #: The failed trials that were warned of as the best.
        self._told_of: set[TrialId] = set()
        say_in_one_line()

    @classmethod
    def load(cls, experiment: str | Path) -> Results:
        """Read an experiment, ended or not, from its folder on this machine; no broker is needed.

        Args:
            experiment: its name, or its folder.

        Raises:
            ConfigurationError: there is no such experiment on this machine, or its journal is still empty.
            CopyIncomplete: the folder lacks entries that its driver could not write, as of a full disk. They are in Redis:
                ``mqtune.Client(url).experiment(name).results(folder)`` reads them there.
            MessageVersionError: a later version of mqtune wrote it.
        """
        folder = find_experiment(experiment)
        fold, written = fold_copy(folder)
        if lacks_entries(folder / JOURNAL_FILE, written.end):
            raise incomplete(folder / JOURNAL_FILE, fold.name)
        return cls(fold, folder, written)

    if not TYPE_CHECKING:
        __getattr__ = naming(OF_RESULTS)

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def outcome(self) -> str:
        """The outcome of the last driver: finished, interrupted or failed; empty while one runs, or if it was killed."""
        return self.experiment.outcome

    @cached_property
    def definition(self) -> dict[str, Any]:
        """The experiment's definition: space, metric, scheduler and so on, as plain values."""
        return created_event(first_events(self._copy), self.folder).definition

    # Trials.

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, in the order in which they were first staged, each with its best value."""
        return list(self)

    @property
    def errors(self) -> list[TrialResult]:
        """The trials that failed; each has a reason, an error and log paths."""
        return [result for result in self if result.status is TrialStatus.FAILED]

    @property
    def tags(self) -> tuple[str, ...]:
        return self.experiment.labels.tags

    @property
    def notes(self) -> str:
        return self.experiment.labels.notes

    def find(self, *tags: str, notes: str = "") -> list[TrialResult]:
        """Return the trials that have all of these tags, and this text in their notes, whatever its case."""
        return [result for result in self if result.trial.labels.match(tags, notes)]

    def __repr__(self) -> str:
        experiment = self.experiment
        counts = [f"{count} {status.value.replace('_', ' ')}" for status, count in experiment.counts.items() if count]
        best = experiment.best
        ahead = "" if best is None else f"; best {experiment.metric}={best.best_value:g} in trial {best.id}"
        if front := experiment.pareto_front:
            ahead = f"; {len(front)} on the Pareto front"
        return f"<Results of {self.name}: {len(self)} trials{': ' * bool(counts)}{', '.join(counts)}{ahead}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        shown: str = import_module("mqtune.results.display").experiment_html(self.experiment)
        return shown

    def __len__(self) -> int:
        return len(self.experiment.trials)

    def __iter__(self) -> Iterator[TrialResult]:
        for trial in list(self.experiment.trials.values()):
            yield self._result(trial)

    def __getitem__(self, trial_id: str) -> TrialResult:
        """Return the trial with this id.

        Raises:
            KeyError: there is no such trial.
        """
        return self._result(self.experiment.trials[TrialId(trial_id)])

    def _result(self, trial: Trial) -> TrialResult:
        several = self.experiment.objective.metrics if trial.point else ()
        values = {name: trial.best_metrics[name] for name in several}
        return TrialResult(trial, trial.best_value, trial.best_metrics, values, self.experiment.is_feasible(trial))

    @property
    def best(self) -> TrialResult:
        """The trial that reported the best value, with the metrics of that report: ``best_trial("all")``.

        Raises:
            MetricMissing: no trial has a value.
            ConfigurationError: the experiment has several metrics.
        """
        return self.best_trial()

    @property
    def pareto_front(self) -> list[TrialResult]:
        """The trials that no other is at least as good as by every metric and better than by one; the best by the first metric first.

        With one metric, the best trial alone, if there is one.
        """
        return [self._result(trial) for trial in self._ahead()]

    def _ahead(self) -> list[Trial]:
        best = self.experiment.best
        return self.experiment.pareto_front if best is None else [best]

    def best_by(self, metric: str) -> TrialResult:
        """Return the best trial by one of the experiment's metrics; of equal ones, the one that is better by the others.

        Raises:
            MetricMissing: no trial has a value.
            ConfigurationError: the experiment does not optimise *metric*.
        """
        objective = self.experiment.objective
        if metric not in objective.metrics:
            raise ConfigurationError(f"best_by({metric!r}): experiment {self.name!r} optimises {objective}")
        if objective.is_single:
            return self.best
        front = self.experiment.pareto_front
        if not front:
            raise MetricMissing(self._why_no_best())
        place = objective.metrics.index(metric)
        best = min(front, key=lambda trial: (trial.point[place], trial.point))
        return replace(self._result(best), value=best.best_metrics[metric])

    def raise_if_failed(self) -> None:
        """Raise an error if no trial has a result or every trial failed, so that a script exits with a code other than 0.

        Raises:
            TrialFailed: trials failed. The error names the first one.
            MetricMissing: none failed, and no trial has a value.
        """
        experiment = self.experiment
        has_result = self._ahead() or (experiment.accept_no_report and experiment.counts[TrialStatus.COMPLETED])
        if has_result and not experiment.has_only_failed:
            return
        if self.errors:
            first = self.errors[0]
            raise TrialFailed(
                f"experiment {self.name!r} has {'only failed trials' if has_result else 'no result'}: "
                f"{len(self.errors)} of {len(self)} trials failed, the first, {first.id}: {first.reason}; all errors are in {self.folder / ERROR_FILE}"
            )
        raise MetricMissing(self._why_no_best())

    def best_trial(self, scope: str = "all") -> TrialResult:
        """Return the best trial; of equal ones, the first. A trial that failed afterwards counts too, with a warning.

        One that violates an outcome constraint does not: with its best report that keeps to them it counts by "all", and if its last
        report does by the other scopes.

        Args:
            scope: the value that a trial is ranked by: "all", the best one that it reported, which the live table shows and
                which suits trials that are stopped early or keep their best checkpoint; "last", that of its last report,
                the model that it ended with (Ray Tune's default); "avg", the mean of its values; "last-5-avg", with any number,
                the mean of the last values that it reported, of fewer if it has no more, and NaN if one of them is.

        Raises:
            MetricMissing: no trial has a value.
            ConfigurationError: *scope* is none of these, or the experiment has several metrics.
            CopyIncomplete: as ``reports``, of the mean of the last values.
        """
        if not (objective := self.experiment.objective).is_single:
            raise ConfigurationError(
                f"experiment {self.name!r} optimises {objective}, and no trial is the best by all of them: results.pareto_front has "
                f"those that no other beats, results.best_by({objective.metrics[0]!r}) the best by one"
            )
        value_of = self._values(checked_scope("", scope))
        ahead = [self.experiment.best] if scope == "all" else self.experiment.trials.values()
        results = [
            TrialResult(trial, value_of(trial), trial.best_metrics if scope == "all" else trial.last_metrics)
            for trial in ahead
            if trial is not None and not trial.is_abandoned
        ]
        valued = [each for each in results if not math.isnan(each.value) and objective.is_feasible(each.metrics)]
        if not valued:
            raise MetricMissing(self._why_no_best())
        best = (min if self.experiment.mode == "min" else max)(valued, key=lambda result: result.value)
        if best.status is TrialStatus.FAILED and best.id not in self._told_of:
            self._told_of.add(best.id)
            logger.warning("the best trial %s has FAILED after it reported its value: %s", best.id, best.reason)
        return best

    def _values(self, scope: str) -> Callable[[Trial], float]:
        """Return what gives the value that a trial is ranked by."""
        match scope:
            case "all":
                return lambda trial: trial.best_value
            case "avg":
                return lambda trial: trial.average
            case "last":
                return self._last_value
        values = self._values_of_reports(scope)
        return lambda trial: values.get(trial.id, math.nan)

    def _last_value(self, trial: Trial) -> float:
        value = trial.last_metrics.get(self.experiment.metric)
        return value if is_number(value) else math.nan

    def _values_of_reports(self, scope: str) -> dict[TrialId, float]:
        """Return the values that trials are ranked by, of those that have one; all reports are read for that."""
        experiment = self.experiment
        ranked = {trial: ScopedValue(scope, experiment.mode) for trial in experiment.trials}
        values = {}
        for report in self.reports():
            value = report.metrics.get(experiment.metric)
            if is_number(value) and not report.late:
                values[report.trial] = ranked[report.trial].add(value)
        return values

    def _why_no_best(self) -> str:
        experiment = self.experiment
        metrics = experiment.objective
        if not experiment.reports:
            failed = ""
            if self.errors:
                first = self.errors[0]
                failed = f", and {len(self.errors)} failed, the first, {first.id}: {first.reason} (see results.errors)"
            return f"experiment {self.name!r} has no best trial: its {len(self)} trials have not reported{failed}"
        if metrics.constraints and any(trial.best_metrics for trial in experiment.trials.values()):
            shown = " and ".join(map(str, metrics.constraints))
            return f"experiment {self.name!r} has no best trial: none of its trials keeps to {shown}"
        if experiment.metric_seen:
            return f"experiment {self.name!r} has no best trial: no value of {metrics} that counts is a number"
        keys = sorted({key for trial in experiment.trials.values() for key in trial.last_metrics})
        return f"experiment {self.name!r} has no best trial: no report has {metrics}; they have {names_in_words(keys)}"

    @property
    def budget(self) -> Budget:
        """The time that trials used and that early stopping saved, in units of the scheduler's time, usually epochs."""
        scheduler = self.definition["scheduler"]
        used: float = 0
        saved: float = 0
        for trial in self.experiment.trials.values():
            if trial.status not in (TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED):
                continue
            # Late reports, between the decision to stop a trial and its end, were run too.
            last = trial.late_metrics or trial.last_metrics
            reported = last.get(scheduler.get("time_attr", ITERATION))
            counted = trial.attempt.reports + trial.late_reports
            time = reported if is_number(reported) and math.isfinite(reported) else counted
            used += time
            if trial.status is TrialStatus.EARLY_STOPPED:
                saved += max(0, scheduler.get("max_t", time) - time)
        return Budget(used, saved)

    def get_checkpoint(
        self, trial_id: str | None = None, which: Which = "newest", *, target: Path | None = None
    ) -> Checkpoint:
        """Return a checkpoint of a trial, by default of the best one; a folder is copied to this machine.

        Args:
            trial_id: the trial's id.
            which: "newest", or "best": of those that still exist, the one with the best value.
            target: the new folder to copy to; by default one below the experiment's.

        Raises:
            MqtuneError: as ``mqtune.results.checkpoints.fetch_checkpoint``.
            KeyError: there is no such trial.
        """
        trial = (self.best if trial_id is None else self[trial_id]).trial
        name = checkpoint_of(self.experiment, trial, which)
        store = store_beside(self.definition.get("store", ""), self.folder)
        return fetch_checkpoint(trial, name, store=store, folder=self.folder, target=target)

    def events(self) -> Iterator[Event | Report]:
        """Yield all events, reports one by one, in the order in which the driver processed them; memory stays flat."""
        return saved_events(self._copy)

    def repeated(self) -> list[Repeated]:
        """Return the configs of a ``Repeater`` with the means of their repetitions, the best first; without one none.

        Those with fewer values than others, as some trials failed or have not ended, come last.

        Raises:
            CopyIncomplete: as ``reports``.
        """
        from mqtune.search.repeater import Repeater  # noqa: PLC0415 - it brings NumPy, as array()

        searcher = self.definition["searcher"]
        if searcher["searcher"] != Repeater.kind:
            return []
        return repeated_configs(self.experiment, searcher["over"], self._values_of_reports("last-1-avg"))

    def policy(self, trial_id: str) -> list[PolicyStep]:
        """Return the configs that a trial went through under population-based training, for ``mqtune.schedulers.PBTReplay``."""
        time_attr = self.definition["scheduler"].get("time_attr", ITERATION)
        return policy_of(self.events(), trial_id, time_attr=time_attr)

    # Reports and files.

    def reports(self, trial_id: str | None = None) -> Iterator[RecordedReport]:
        """Yield all reports, or one trial's, in the order in which the driver processed them; memory stays flat.

        One trial's take a small part of the time of all.

        Raises:
            CopyIncomplete: some entries could not be written to the folder's copy, and the run is over.
        """
        created_event(first_events(self._copy), self.folder)
        of = None if trial_id is None else reports_of(self._copy.read(), TrialId(trial_id))
        for event in of or saved_events(self._copy):
            if isinstance(event, Report):
                # The attempt counts the accepted reports; later ones came after the decision to end it, or are not folded yet.
                attempt = self._attempt_of(event)
                is_late = attempt is not None and event.sequence > attempt.reports
                if attempt is not None and not (is_late and attempt.is_open):
                    yield RecordedReport(*event, is_late)

    def _attempt_of(self, report: Report) -> Attempt | None:
        """Return the attempt that has made a report; None if the journal is ahead of what a running tuner has folded."""
        trial = self.experiment.trials.get(report.trial)
        return trial.attempts[report.attempt - 1] if trial and report.attempt <= len(trial.attempts) else None

    def to_csv(self, path: str | Path) -> None:
        """Write one row per trial; NaN and the infinities are nan, inf and -inf, and a missing value is empty."""
        _write(Path(path), [self.csv()])

    def to_jsonl(self, path: str | Path) -> None:
        """Write one JSON object per report; late ones are marked.

        JSON has no NaN: it and the infinities are the strings "NaN", "Infinity" and "-Infinity", as in the JSON of
        Protocol Buffers; Python's float() reads them.
        """
        _write(Path(path), self.jsonl())

    def csv(self) -> str:
        """Return the text that ``to_csv`` writes."""
        return csv_text(trial_rows(self.experiment))

    def jsonl(self) -> Iterator[str]:
        """Yield the lines that ``to_jsonl`` writes."""
        return (f"{json_text(report._asdict())}\n" for report in self.reports())

    def array(self, name: str, trial_id: str | None = None) -> NDArray[np.float64]:
        """Return a metric or hyperparameter as an array of floats, NaN where it is missing or not a number.

        There is one value for each trial, in the order of ``trials``: from the report with the trial's best value, or else
        from its config. Nested values have names such as ``layers.width``. With a trial's id, there is one value for each
        of its reports, late ones left out.

        Args:
            name: the metric, or the hyperparameter.
            trial_id: the trial's id; by default all trials.

        Raises:
            KeyError: there is no such trial.
            CopyIncomplete: as ``reports``.
        """
        import numpy as np  # noqa: PLC0415 - `mqtune show` and `mqtune list` must not wait for it

        if trial_id is None:
            found = [{**dict(flatten(each.config)), **dict(flatten(each.metrics))}.get(name) for each in self]
        else:
            reports = self.reports(self[trial_id].id)
            found = [dict(flatten(each.metrics)).get(name) for each in reports if not each.late]
        return np.array([value if is_number(value) else math.nan for value in found], dtype=float)

    def to_optuna_study(self) -> Any:
        """Return an ``optuna.Study`` in memory with all trials and reports, for Optuna's plots, importances and dashboard.

        Raises:
            ConfigurationError: Optuna is not installed.
        """
        study_of = load_point(EXPORTERS, "optuna").study_of
        events = saved_events(self._copy)
        return study_of(created_event(events, self.folder), events)

    @property
    def plot(self) -> Plots:
        """The experiment's pictures: ``results.plot.curves().save("curves.png")``.

        Raises:
            ConfigurationError: neither Matplotlib nor Plotly is installed.
        """
        plots: Plots = import_module("mqtune.results.plots.plots").Plots(self)
        return plots

    def dataframe(self, rows: Rows = "trials", *, library: Library = "pandas") -> Any:
        """Return a data frame of pandas, or of polars, with one row per trial, attempt or report.

        Configs are in columns such as ``config.lr`` and ``config.net.width``, metrics in ``metrics.loss``: those of a trial are of the
        report with its best value. Times are seconds since the epoch (UTC). What a row lacks is null.

        Args:
            rows: "trials", "attempts" or "reports"; reports in the order in which the driver processed them, ``late`` where one
                came after a decision.
            library: "pandas" or "polars".

        Raises:
            ConfigurationError: there are no such rows, or no such library.
            MqtuneError: the library is not installed.
            CopyIncomplete: as ``reports``.
        """
        checks.one_of("dataframe", "rows", rows, ("trials", "attempts", "reports"))
        if rows == "trials":
            return frame_of(trial_rows(self.experiment), library)
        return frame_of(attempt_rows(self.experiment) if rows == "attempts" else report_rows(self.reports()), library)

    def summary(self) -> dict[str, object]:
        """Return a summary of the experiment in plain values."""
        experiment, best = self.experiment, self.experiment.best
        return {
            "name": self.name,
            "outcome": experiment.outcome,
            "reason": experiment.reason,
            "created_at": experiment.created_at,
            "owner": experiment.owner._asdict(),
            "metric": experiment.objective.metric,
            "mode": experiment.objective.mode,
            **deciders_of(self.definition)._asdict(),
            **experiment.objective.kept_constraints,
            "trials": len(self),
            "statuses": experiment.statuses,
            "reports": experiment.reports,
            "tags": list(self.tags),
            "notes": self.notes,
            "unreadable_reports": experiment.unreadable,
            "budget": self.budget._asdict(),
            "progress": progress_of(experiment, self.definition),
            "best": None if best is None else {**_summary(best), "value": best.best_value},
            **(
                {} if experiment.objective.is_single else {"pareto_front": list(map(_summary, experiment.pareto_front))}
            ),
        }

    def save(self) -> None:
        """Write ``trials.csv`` and ``results.json`` into the folder, each in one step."""
        self.to_csv(self.folder / TRIALS_FILE)
        _write(self.folder / SUMMARY_FILE, [json_text(self.summary(), indent=2), "\n"])
