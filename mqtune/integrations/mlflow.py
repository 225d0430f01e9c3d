"""Logger for MLflow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mqtune import TrialStatus
from mqtune.extend import ConfigurationError, Experiment, Report, Trial, TrialId, importing
from mqtune.integrations.logger import TrialLogger, numbers_of, plain_config, step_of

with importing("MLflow", "mlflow"):
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, Run, RunTag
    from mlflow.exceptions import MlflowException

#: The tags of a run by which later loggers find it, and the tag with its number of reports.
_EXPERIMENT_TAG: Final = "mqtune.experiment"
_TRIAL_TAG: Final = "mqtune.trial"
_REPORTS_TAG: Final = "mqtune.reports"
_PARENT_TAG: Final = "mlflow.parentRunId"
#: MLflow's limits for one request, and for the length of a param's value.
_MOST_METRICS: Final = 1000
_MOST_PARAMS: Final = 100
_MOST_CHARS: Final = 6000
_NOT_ALLOWED: Final = re.compile(r"[^\w\-. /]", re.ASCII)
_MS: Final = 1000
_ENDS: Final = {TrialStatus.FAILED: "FAILED", TrialStatus.ABANDONED: "KILLED"}
_OUTCOMES: Final = {"finished": "FINISHED", "failed": "FAILED"}


class MLflow(TrialLogger):
    """Writes an experiment as a run of MLflow, and each trial as a child run.

    A trial's config becomes params, and its numbers become metrics. Later drivers, and a later ``write``, find runs by
    their tags and add to them. Reports and their count are sent in one request, so no report is written twice. An
    early-stopped trial is FINISHED, with a tag ``mqtune.status``. The experiment's run is KILLED after an interrupt,
    and FAILED after an error or if every trial failed. It is RUNNING again when a later driver continues. Characters
    that MLflow forbids in names become ``_``.

    Args:
        tracking_uri: the server or database; by default MLflow's own (``MLFLOW_TRACKING_URI``).
        experiment: the name of MLflow's experiment; by default mqtune's.

    Raises:
        ConfigurationError: MLflow refuses the address, when a run begins.
    """

    def __init__(self, tracking_uri: str | None = None, *, experiment: str = "") -> None:
        super().__init__()
        self._tracking_uri = tracking_uri
        self._named = experiment
        self._experiment_id = ""
        self._parent = ""
        self._runs: dict[TrialId, str] = {}
        self._connected: MlflowClient | None = None

    def setup(self, folder: Path) -> None:
        super().setup(folder)
        try:
            self._connect().search_experiments(max_results=1)
        except MlflowException as error:
            raise ConfigurationError(f"MLflow can't be used: {error}") from error

    def open(self, name: str) -> None:
        self._experiment_id = self._ensure_experiment(self._named or name)
        runs = self._find_runs(f"tags.`{_EXPERIMENT_TAG}` = '{name}'")
        self._parent = (runs[0] if runs else self._create_run(name, {_EXPERIMENT_TAG: name})).info.run_id
        self._connect().update_run(self._parent, status="RUNNING")

    def begin_trial(self, trial: Trial) -> int:
        runs = self._find_runs(f"tags.`{_PARENT_TAG}` = '{self._parent}' AND tags.`{_TRIAL_TAG}` = '{trial.id}'")
        tags = {_PARENT_TAG: self._parent, _TRIAL_TAG: trial.id}
        began_at = trial.attempts[0].queued_at if trial.attempts else None
        run = runs[0] if runs else self._create_run(trial.id, tags, began_at)
        self._runs[trial.id] = run.info.run_id
        # An earlier logger may have been killed before it wrote the params.
        self._write_params(trial, run.data.params)
        return int(run.data.tags.get(_REPORTS_TAG, 0))

    def write_reports(self, trial: Trial, reports: Sequence[Report], first: int) -> None:
        batch: list[Metric] = []
        last = first - 1
        for number, report in enumerate(reports, first):
            metrics = _metrics_of(report, number)
            if batch and len(batch) + len(metrics) > _MOST_METRICS:
                self._write_metrics(trial, batch, last)
                batch = []
            batch += metrics
            last = number
        self._write_metrics(trial, batch, last)

    def end_trial(self, trial: Trial) -> None:
        run = self._runs[trial.id]
        self._connect().set_tag(run, "mqtune.status", trial.status.value)
        if trial.reason:
            self._connect().set_tag(run, "mqtune.reason", trial.reason)
        ended_at = trial.attempts[-1].ended_at if trial.attempts else None
        ended_ms = None if ended_at is None else int(ended_at * _MS)
        self._connect().set_terminated(run, _ENDS.get(trial.status, "FINISHED"), ended_ms)

    def close(self) -> None:
        if self._parent:
            self._connect().set_terminated(self._parent, _status_of(self.ended))
            self._parent = ""

    def _connect(self) -> MlflowClient:
        """Return MLflow's client, and make it at the first call."""
        if self._connected is None:
            self._connected = MlflowClient(self._tracking_uri)
        return self._connected

    def _ensure_experiment(self, name: str) -> str:
        experiment = self._connect().get_experiment_by_name(name)
        return str(experiment.experiment_id if experiment else self._connect().create_experiment(name))

    def _find_runs(self, condition: str) -> Sequence[Run]:
        return list(self._connect().search_runs([self._experiment_id], filter_string=condition, max_results=1))

    def _create_run(self, name: str, tags: Mapping[str, str], began_at: float | None = None) -> Run:
        began_ms = None if began_at is None else int(began_at * _MS)
        return self._connect().create_run(self._experiment_id, began_ms, tags=dict(tags), run_name=name)

    def _write_params(self, trial: Trial, known: Mapping[str, str]) -> None:
        named = {_allowed_name(name): str(value)[:_MOST_CHARS] for name, value in plain_config(trial.config).items()}
        params = [Param(name, value) for name, value in named.items() if name not in known]
        for begin in range(0, len(params), _MOST_PARAMS):
            self._connect().log_batch(self._runs[trial.id], params=params[begin : begin + _MOST_PARAMS])

    def _write_metrics(self, trial: Trial, metrics: Sequence[Metric], reports: int) -> None:
        self._connect().log_batch(self._runs[trial.id], metrics=metrics, tags=[RunTag(_REPORTS_TAG, str(reports))])


def _status_of(experiment: Experiment | None) -> str:
    """Return MLflow's status for an experiment. Without an outcome it is KILLED."""
    if experiment is None or experiment.outcome not in _OUTCOMES:
        return "KILLED"
    return "FAILED" if experiment.has_only_failed else _OUTCOMES[experiment.outcome]


def _metrics_of(report: Report, number: int) -> list[Metric]:
    step, at_ms = step_of(report, number), int(report.timestamp * _MS)
    return [Metric(_allowed_name(name), value, at_ms, step) for name, value in numbers_of(report).items()]


def _allowed_name(name: str) -> str:
    return _NOT_ALLOWED.sub("_", name)
