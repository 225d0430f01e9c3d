"""Results of an experiment: its trials and reports as values, arrays, CSV and JSON lines."""

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
from mqtune.core.entries import reports_of
from mqtune.core.entry_points import EXPORTERS, load_point
from mqtune.core.errors import ConfigurationError, MetricMissing, TrialFailed
from mqtune.core.events import Event
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
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile, incomplete, lacks_entries
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
    """Return rows as CSV. NaN is nan, infinities are inf and -inf, and missing values are empty.

    A text that a spreadsheet would read as a formula gets a leading ``'``.
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
    """Return *value* as JSON. Non-finite numbers become strings, and bytes become text.

    They are "NaN", "Infinity" and "-Infinity", as in the JSON of Protocol Buffers, and float() reads them.
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


def _plural_of(time_attr: str) -> str:
    """Return the plural of a scheduler's unit of time, such as "epochs"."""
    name = "iteration" if time_attr == ITERATION else time_attr
    return name if name.endswith("s") else f"{name}s"


def _replace_text(path: Path, parts: Iterable[str]) -> None:
    """Replace a text file in one step: readers see the old or the new. A failure keeps the old.

    Raises:
        OSError: the folder can't be written.
    """
    # A lone surrogate can't be encoded, and must not cost the whole file.
    replace_file(path, (part.encode(errors="backslashreplace") for part in parts))


TRIALS_FILE: Final = "trials.csv"
SUMMARY_FILE: Final = "results.json"


class Budget(NamedTuple):
    """The time that trials used, and the time that early stopping saved.

    A trial that was stopped early saves the rest of the time up to the scheduler's ``max_t``. If the scheduler has no
    ``max_t``, or lets trials continue after it, nothing is saved. Trials that failed, were abandoned or have not ended
    don't count.
    """

    used: float
    saved: float
    #: The unit of both times, such as "iterations".
    unit: str = "iterations"

    def __str__(self) -> str:
        return f"{self.used:,.15g} of {self.used + self.saved:,.15g} {self.unit}"


@dataclass(frozen=True, slots=True, repr=False)
class TrialResult:
    """A trial with the value by which it is ranked.

    Attributes:
        value: the ranked value. It is NaN if the trial has no value. With several metrics, it is NaN except in the
            result of ``best_by``.
        metrics: the metrics of its best report. If trials are ranked by a last value or a mean, those of its last one.
        values: with several metrics, the ranked value of each.
    """

    trial: Trial
    value: float
    metrics: Metrics
    values: Mapping[str, float] = field(default_factory=dict)
    #: Whether these metrics meet the outcome constraints.
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
        """The reason for its status, or an empty text."""
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
        """The id of its newest checkpoint, or an empty text. See ``Results.get_checkpoint``."""
        return self.trial.checkpoint

    @property
    def error(self) -> str:
        """The error of its last attempt, with a traceback if possible, or an empty text."""
        return self.attempts[-1].error if self.attempts else ""

    @property
    def log_paths(self) -> tuple[str, str]:
        """The paths of its last attempt's stdout and stderr on its worker, or empty texts."""
        return (self.attempts[-1].stdout_path, self.attempts[-1].stderr_path) if self.attempts else ("", "")

    def __repr__(self) -> str:
        values = self.values or {"value": self.value}
        shown = ", ".join(f"{name}={value:.6g}" for name, value in values.items())
        return f"<trial {self.id} {self.status.name}: {shown}, config={self.config}>"

    def _repr_html_(self) -> str:
        values = self.values or {"value": self.value}
        shown: str = import_module("mqtune.results.display").trial_html(self.trial, values)
        return shown


class Results:
    """The results of an experiment. Those of a running tuner are always up to date.

    Values are those of the experiment's metric. A trial that was abandoned, or has only NaN as values, is never the
    best.

    With several metrics there is no single best trial: ``pareto_front`` has the trials that no other dominates, and
    ``best_by`` returns the best one by one metric. A trial is ranked by its last report that has a number other than
    NaN for each metric.
    """

    def __init__(self, experiment: Experiment, folder: Path, written: Readable | None = None) -> None:
        self.experiment = experiment
        self.folder = folder
        self._copy = written if written is not None else JournalFile(folder / JOURNAL_FILE)
        self._warned_of: set[TrialId] = set()
        say_in_one_line()

    @classmethod
    def load(cls, experiment: str | Path) -> Results:
        """Read an experiment, ended or not, from its folder on this machine, without a broker.

        *experiment* is its name, or its folder.

        Raises:
            ConfigurationError: the experiment is not on this machine, or its journal is still empty.
            CopyIncomplete: the folder lacks entries that its driver could not write, for instance on a full disk. They
                are in Redis: read them with ``mqtune.Client(url).experiment(name).results(folder)``.
            MessageVersionError: a later version of mqtune wrote the journal.
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
        """The last driver's end: "finished", "interrupted" or "failed". Empty if running or killed."""
        return self.experiment.outcome

    @cached_property
    def definition(self) -> dict[str, Any]:
        """The experiment's definition: space, metric, scheduler and so on, as plain values."""
        return created_event(first_events(self._copy), self.folder).definition

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, in the order in which they were first queued, each with its best value."""
        return list(self)

    @property
    def errors(self) -> list[TrialResult]:
        """The trials that failed, each with a reason, an error and log paths."""
        return [result for result in self if result.status is TrialStatus.FAILED]

    @property
    def tags(self) -> tuple[str, ...]:
        return self.experiment.labels.tags

    @property
    def notes(self) -> str:
        return self.experiment.labels.notes

    def find(self, *tags: str, notes: str = "") -> list[TrialResult]:
        """Return the trials with all these tags, and this text in their notes (ignoring case)."""
        return [result for result in self if result.trial.labels.match(tags, notes)]

    def __repr__(self) -> str:
        experiment = self.experiment
        counts = [f"{count} {status.value.replace('_', ' ')}" for status, count in experiment.counts.items() if count]
        best = experiment.best
        leaders = "" if best is None else f"; best {experiment.metric}={best.best_value:g} in trial {best.id}"
        if front := experiment.pareto_front:
            leaders = f"; {len(front)} on the Pareto front"
        return f"<Results of {self.name}: {len(self)} trials{': ' * bool(counts)}{', '.join(counts)}{leaders}>"

    def _repr_html_(self) -> str:
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
            KeyError: the trial does not exist.
        """
        return self._result(self.experiment.trials[TrialId(trial_id)])

    def _result(self, trial: Trial) -> TrialResult:
        several = self.experiment.objective.metrics if trial.point else ()
        values = {name: trial.best_metrics[name] for name in several}
        return TrialResult(trial, trial.best_value, trial.best_metrics, values, self.experiment.is_feasible(trial))

    @property
    def best(self) -> TrialResult:
        """The trial with the best value of all its reports, as from ``best_trial("all")``.

        Raises:
            MetricMissing: no trial has a value.
            ConfigurationError: the experiment has several metrics.
        """
        return self.best_trial()

    @property
    def pareto_front(self) -> list[TrialResult]:
        """The trials that no other dominates, the best by the first metric first.

        A trial dominates another if it is at least as good by every metric and better by one. With one metric, the list
        has the best trial alone.
        """
        return [self._result(trial) for trial in self._best_or_front()]

    def _best_or_front(self) -> list[Trial]:
        best = self.experiment.best
        return self.experiment.pareto_front if best is None else [best]

    def best_by(self, metric: str) -> TrialResult:
        """Return the best trial by one metric. Equally good ones are ranked by the other metrics.

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
        index = objective.metrics.index(metric)
        best = min(front, key=lambda trial: (trial.point[index], trial.point))
        return replace(self._result(best), value=best.best_metrics[metric])

    def raise_if_failed(self) -> None:
        """Raise an error if no trial has a result or every trial failed, for a script's exit code.

        Raises:
            TrialFailed: trials failed. The error names the first one.
            MetricMissing: no trial failed, and no trial has a value.
        """
        experiment = self.experiment
        has_result = self._best_or_front() or (experiment.accept_no_report and experiment.counts[TrialStatus.COMPLETED])
        if has_result and not experiment.has_only_failed:
            return
        if self.errors:
            first = self.errors[0]
            raise TrialFailed(
                f"experiment {self.name!r} has {'only failed trials' if has_result else 'no result'}: "
                f"{len(self.errors)} of {len(self)} trials failed, the first, {first.id}: {first.reason}; "
                f"all errors are in {self.folder / ERROR_FILE}"
            )
        raise MetricMissing(self._why_no_best())

    def best_trial(self, scope: str = "all") -> TrialResult:
        """Return the best trial. Of equally good ones, return the first.

        A trial that failed after it reported its value counts, and a warning is logged. A report that violates an
        outcome constraint does not count. With "all", another report of its trial may count.

        Args:
            scope: the value by which trials are ranked. "all" is a trial's best value, for trials that are stopped
                early or keep their best checkpoint. "last" is the value of its last report, for the final model (Ray
                Tune's default). "avg" is the mean of its values. "last-5-avg", with any number, is the mean of its last
                5 values, or of all if it has fewer; it is NaN if one of them is NaN.

        Raises:
            MetricMissing: no trial has a value.
            ConfigurationError: *scope* is invalid, or the experiment has several metrics.
            CopyIncomplete: as ``reports``, if *scope* is a mean of the last values.
        """
        if not (objective := self.experiment.objective).is_single:
            raise ConfigurationError(
                f"experiment {self.name!r} optimises {objective}, and no trial is the best by all of them; use "
                "results.pareto_front for the trials that no other dominates, or "
                f"results.best_by({objective.metrics[0]!r}) for the best by one metric"
            )
        value_of = self._values(checked_scope("", scope))
        candidates = [self.experiment.best] if scope == "all" else self.experiment.trials.values()
        results = [
            TrialResult(trial, value_of(trial), trial.best_metrics if scope == "all" else trial.last_metrics)
            for trial in candidates
            if trial is not None and not trial.is_abandoned
        ]
        valued = [trial for trial in results if not math.isnan(trial.value) and objective.is_feasible(trial.metrics)]
        if not valued:
            raise MetricMissing(self._why_no_best())
        best = (min if self.experiment.mode == "min" else max)(valued, key=lambda result: result.value)
        if best.status is TrialStatus.FAILED and best.id not in self._warned_of:
            self._warned_of.add(best.id)
            logger.warning("the best trial %s has FAILED after it reported its value: %s", best.id, best.reason)
        return best

    def _values(self, scope: str) -> Callable[[Trial], float]:
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
            return f"experiment {self.name!r} has no best trial: no trial meets {shown}"
        if experiment.metric_seen:
            return (
                f"experiment {self.name!r} has no best trial: each value of {metrics} is NaN, or of an abandoned trial"
            )
        keys = sorted({key for trial in experiment.trials.values() for key in trial.last_metrics})
        return (
            f"experiment {self.name!r} has no best trial: no report has {metrics}; reports have {names_in_words(keys)}"
        )

    @property
    def budget(self) -> Budget:
        """The time that trials used and that early stopping saved, usually in epochs."""
        scheduler = self.definition["scheduler"]
        used: float = 0
        saved: float = 0
        for trial in self.experiment.trials.values():
            if trial.status not in (TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED):
                continue
            # Late reports were run, too.
            last = trial.late_metrics or trial.last_metrics
            reported = last.get(scheduler.get("time_attr", ITERATION))
            counted = trial.attempt.reports + trial.late_reports
            time = reported if is_number(reported) and math.isfinite(reported) else counted
            used += time
            if trial.status is TrialStatus.EARLY_STOPPED and scheduler.get("stop_last_trials", True):
                saved += max(0, scheduler.get("max_t", time) - time)
        return Budget(used, saved, _plural_of(scheduler.get("time_attr", ITERATION)))

    def get_checkpoint(
        self, trial_id: str | None = None, which: Which = "newest", *, target: str | Path | None = None
    ) -> Checkpoint:
        """Return a checkpoint of a trial, by default of the best one. A folder is copied here.

        Args:
            which: "newest", or "best" for the checkpoint with the best value. Deleted ones don't count.
            target: the new folder for the copy. The default is in the experiment's folder.

        Raises:
            ConfigurationError: the trial has no checkpoint.
            CheckpointGone: the checkpoint was deleted, or was in a Redis that is gone.
            CheckpointBroken: its content has changed.
            StoreUnavailable: the store can't be read from this machine.
            KeyError: the trial does not exist.
        """
        trial = (self.best if trial_id is None else self[trial_id]).trial
        name = checkpoint_of(self.experiment, trial, which)
        store = store_beside(self.definition.get("store", ""), self.folder)
        return fetch_checkpoint(trial, name, store=store, folder=self.folder, target=target)

    def events(self) -> Iterator[Event | Report]:
        """Yield all events and reports as the driver processed them. Memory use does not grow."""
        return saved_events(self._copy)

    def repeated(self) -> list[Repeated]:
        """Return the configs of a ``Repeater``, the best mean first. Without a Repeater, return [].

        Configs with fewer values than others, as some trials failed or have not ended, come last.

        Raises:
            CopyIncomplete: as ``reports``.
        """
        from mqtune.search.repeater import Repeater  # noqa: PLC0415  - it imports NumPy, as array()

        searcher = self.definition["searcher"]
        if searcher["searcher"] != Repeater.kind:
            return []
        return repeated_configs(self.experiment, searcher["over"], self._values_of_reports("last-1-avg"))

    def policy(self, trial_id: str) -> list[PolicyStep]:
        """Return the configs of a trial over time, for ``mqtune.schedulers.PBTReplay``."""
        time_attr = self.definition["scheduler"].get("time_attr", ITERATION)
        return policy_of(self.events(), trial_id, time_attr=time_attr)

    def reports(self, trial_id: str | None = None) -> Iterator[RecordedReport]:
        """Yield all reports, or one trial's, as the driver processed them. Memory use does not grow.

        One trial's reports are read in a small part of the time for all.

        Raises:
            CopyIncomplete: some entries could not be written to the folder's copy, and the run is over.
        """
        created_event(first_events(self._copy), self.folder)
        of_trial = None if trial_id is None else reports_of(self._copy.read(), TrialId(trial_id))
        for event in of_trial or saved_events(self._copy):
            if isinstance(event, Report):
                # The attempt counts accepted reports. Later ones came too late, or are not yet processed.
                attempt = self._attempt_of(event)
                is_late = attempt is not None and event.sequence > attempt.reports
                if attempt is not None and not (is_late and attempt.is_open):
                    yield RecordedReport(*event, is_late)

    def _attempt_of(self, report: Report) -> Attempt | None:
        trial = self.experiment.trials.get(report.trial)
        return trial.attempts[report.attempt - 1] if trial and report.attempt <= len(trial.attempts) else None

    def to_csv(self, path: str | Path) -> None:
        """Write one row per trial. NaN is nan, infinities are inf and -inf, missing values empty."""
        _replace_text(Path(path), [self.csv()])

    def to_jsonl(self, path: str | Path) -> None:
        """Write one JSON object per report. ``late`` marks reports that came after a decision.

        NaN and the infinities are the strings "NaN", "Infinity" and "-Infinity", which float() reads.
        """
        _replace_text(Path(path), self.jsonl())

    def csv(self) -> str:
        """Return the text that ``to_csv`` writes."""
        return csv_text(trial_rows(self.experiment))

    def jsonl(self) -> Iterator[str]:
        """Yield the lines that ``to_jsonl`` writes."""
        return (f"{json_text(report._asdict())}\n" for report in self.reports())

    def array(self, name: str, trial_id: str | None = None) -> NDArray[np.float64]:
        """Return a metric or hyperparameter as an array of floats. Other values are NaN.

        The array has one value for each trial, in the order of ``trials``: from the trial's best report, or else from
        its config. Nested values have names such as ``layers.width``. With a trial's id, it has one value for each of
        that trial's reports, without late ones.

        Raises:
            KeyError: the trial does not exist.
            CopyIncomplete: as ``reports``.
        """
        import numpy as np  # noqa: PLC0415  - `mqtune show` and `mqtune list` must not wait for it

        if trial_id is None:
            values = [{**dict(flatten(trial.config)), **dict(flatten(trial.metrics))}.get(name) for trial in self]
        else:
            reports = self.reports(self[trial_id].id)
            values = [dict(flatten(report.metrics)).get(name) for report in reports if not report.late]
        return np.array([value if is_number(value) else math.nan for value in values], dtype=float)

    def to_optuna_study(self) -> Any:
        """Return an ``optuna.Study`` in memory with all trials and reports, for Optuna's tools.

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
        import_module("mqtune.results.plots.picture").require("matplotlib", "plotly")
        plots: Plots = import_module("mqtune.results.plots.plots").Plots(self)
        return plots

    def dataframe(self, rows: Rows = "trials", *, library: Library = "pandas") -> Any:
        """Return a data frame of pandas or polars, with one row per trial, attempt or report.

        Columns are ``config.lr``, ``config.net.width``, ``metrics.loss`` and so on. A trial's metrics are those of its
        best report. Times are seconds since the epoch (UTC). Missing values are null.

        Args:
            rows: "trials", "attempts" or "reports". Reports are in the order in which the driver processed them, and
                ``late`` ones came after a decision.
            library: "pandas" or "polars".

        Raises:
            ConfigurationError: *rows* or *library* is invalid.
            MqtuneError: the library is not installed.
            CopyIncomplete: as ``reports``.
        """
        checks.one_of("dataframe", "rows", rows, ("trials", "attempts", "reports"))
        if rows == "trials":
            return frame_of(trial_rows(self.experiment), library)
        return frame_of(attempt_rows(self.experiment) if rows == "attempts" else report_rows(self.reports()), library)

    def summary(self) -> dict[str, object]:
        """Return a summary of the experiment in plain values."""
        experiment, best, budget = self.experiment, self.experiment.best, self.budget
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
            "budget": {"used": budget.used, "saved": budget.saved},
            "progress": progress_of(experiment, self.definition),
            "best": None if best is None else {**_summary(best), "value": best.best_value},
            **(
                {} if experiment.objective.is_single else {"pareto_front": list(map(_summary, experiment.pareto_front))}
            ),
        }

    def save(self) -> None:
        """Write ``trials.csv`` and ``results.json`` into the folder, each in one step."""
        self.to_csv(self.folder / TRIALS_FILE)
        _replace_text(self.folder / SUMMARY_FILE, [json_text(self.summary(), indent=2), "\n"])
