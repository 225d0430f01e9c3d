"""A loop over mqtune's workers for Ax's ``Client``, with Ax's early stopping."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

from mqtune import BackgroundTuner, Checkpoints, Failures, Local, Process, Resources, TrialStatus
from mqtune.extend import (
    ITERATION,
    AnyTrainable,
    Backend,
    ConfigurationError,
    MetricMissing,
    Trial,
    importing,
    is_number,
)
from mqtune.integrations.ax_runner import MqtuneRunner, status_of, stop_trial, why

with importing("Ax", "ax"):
    from ax.api.client import Client
    from ax.core.data import Data, DataRow
    from ax.core.trial import Trial as AxTrial
    from ax.core.trial_status import TrialStatus as Status
    from ax.exceptions.core import DataRequiredError, OptimizationComplete, SearchSpaceExhausted
    from ax.exceptions.generation_strategy import GenerationStrategyRepeatedPoints, MaxParallelismReachedException

    from mqtune.integrations.ax_private import experiment_of, uncompiled

#: The errors that Ax raises if it needs results first, and if it has no more suggestions.
_NOT_NOW: Final = (DataRequiredError, MaxParallelismReachedException)
_NO_MORE: Final = (GenerationStrategyRepeatedPoints, SearchSpaceExhausted, OptimizationComplete)

_POLL_S: Final = 0.02
#: The running calls of ``run_client``, by the ``id`` of their experiment.
_running_calls: Final[dict[int, object]] = {}


def run_client(
    client: Client,
    trainable: AnyTrainable,
    max_trials: int,
    parallelism: int | None = None,
    *,
    ahead: int = 1,
    early_stopping: bool = True,
    save_to: str | Path | None = None,
    backend: str | Local | Backend | None = None,
    name: str | None = None,
    resources: Resources | None = None,
    failures: Failures = Failures(),
    checkpoints: Checkpoints = Checkpoints(),
    process: Process = Process(),
) -> None:
    """Run trials of Ax's ``Client`` on mqtune's workers until *max_trials* have ended.

    Unlike ``Client.run_trials``, it stops trials early, by ``client.should_stop_trial_early`` at each poll with new
    reports. Each report of the client's metrics is attached, with its number as the progression. A completed trial is
    abandoned if an optimised metric is missing or its last value is not finite. A killed script can be run
    again with the client that it has saved. Its trials have continued meanwhile, and none runs twice.

    Args:
        client: a configured client, without runner and metrics of its own.
        trainable: as for ``mqtune.Tuner``. It is called with the parameters.
        max_trials: total number of trials, including the client's existing ones.
        parallelism: maximum number of trials at the same time; by default the current number of slots.
        ahead: how many trials to request before a slot is free, so that slots don't wait for the model. Such trials are
            suggested with fewer results.
        early_stopping: whether trials may be stopped early.
        save_to: file for ``Client.load_from_json_file``, saved when a trial begins or ends.
        backend: as for ``MqtuneRunner``, like all following ones.
        name: likewise.
        resources: likewise.
        failures: likewise.
        checkpoints: likewise.
        process: likewise.

    Raises:
        ConfigurationError: the client has no experiment or objective, another call runs it, or an argument is invalid.
        MetricMissing: a trial has completed, and no trial has reported an optimised or constrained metric. Running
            trials are stopped.
        MqtuneError: as ``Tuner.run``.
    """
    file = None if save_to is None else Path(save_to)
    _check_arguments(client, max_trials, parallelism, ahead, file)
    runner = MqtuneRunner(
        trainable,
        backend=backend,
        name=name,
        resources=resources,
        failures=failures,
        checkpoints=checkpoints,
        process=process,
    )
    with _reserved(client), runner:
        try:
            _AxLoop(client, runner, save_to=file, stops_early=early_stopping).run(max_trials, parallelism, ahead)
        except MetricMissing:
            runner.stop_all(experiment_of(client), "the metric is never reported")
            raise


def _check_arguments(
    client: object, max_trials: object, parallelism: object, ahead: object, save_to: Path | None
) -> None:
    if not isinstance(client, Client):
        raise ConfigurationError(f"run_client: {client!r:.80} is not an ax.api.client.Client")
    if experiment_of(client) is None or experiment_of(client).optimization_config is None:
        raise ConfigurationError(
            "run_client: the client has no objective; call configure_experiment(…) and configure_optimization(…) before"
        )
    for name, value, least in (("max_trials", max_trials, 1), ("parallelism", parallelism, 1), ("ahead", ahead, 0)):
        is_left_out = value is None and name == "parallelism"
        if not is_left_out and not (isinstance(value, int) and value >= least):
            raise ConfigurationError(f"run_client: {name}={value!r} is not a whole number of at least {least}")
    if save_to is not None and not save_to.absolute().parent.is_dir():
        raise ConfigurationError(
            f"run_client: save_to={str(save_to)!r}: there is no folder {save_to.absolute().parent}"
        )


@contextlib.contextmanager
def _reserved(client: Client) -> Iterator[None]:
    """Reserve the client's experiment within the block."""
    me, key = object(), id(experiment_of(client))
    if _running_calls.setdefault(key, me) is not me:
        raise ConfigurationError(
            "run_client: another call runs this client; wait for that, or give a higher max_trials there"
        )
    try:
        yield
    finally:
        del _running_calls[key]


class _AxLoop:
    """Requests trials from a client, and reports their results to it."""

    def __init__(self, client: Client, runner: MqtuneRunner, *, save_to: Path | None, stops_early: bool) -> None:
        self._stops_early = stops_early
        self._client = client
        self._experiment = experiment_of(client)
        self._runner = runner
        self._save_to = save_to
        #: How many reports of each trial are attached, by its index.
        self._attached: dict[int, int] = {}
        #: Whether Ax needs a trial's end before its next suggestion, and whether it has no more suggestions.
        self._waits = self._is_exhausted = False

    def run(self, max_trials: int, parallelism: int | None, ahead: int) -> None:
        self._runner.run_multiple(self._running)
        while True:
            begin = time.monotonic()
            self._process_results()
            if self._wants_trial(max_trials, parallelism, ahead):
                self._start_trial()
            elif self._running or self._waits:
                # Attaching gets slower with more data. This way it takes at most half of the time.
                time.sleep(max(_POLL_S, time.monotonic() - begin))
            else:
                return

    @property
    def _running(self) -> list[AxTrial]:
        return list(self._experiment.trials_by_status[Status.RUNNING])

    def _wants_trial(self, max_trials: int, parallelism: int | None, ahead: int) -> bool:
        if self._waits or self._is_exhausted or len(self._experiment.trials) >= max_trials:
            return False
        most_running = parallelism or self._tuner.do(lambda tuner: max(tuner.slots, 1))
        return len(self._running) < most_running + ahead

    def _start_trial(self) -> None:
        try:
            with uncompiled():
                proposed = self._client.get_next_trials(1)
        except _NOT_NOW:
            proposed = {}
        except _NO_MORE:
            self._is_exhausted = True
            return
        self._waits = not proposed and bool(self._running)
        self._is_exhausted = not proposed and not self._waits
        trials = [self._experiment.trials[index] for index in proposed]
        for index, metadata in self._runner.run_multiple(trials).items():
            self._experiment.trials[index].update_run_metadata(metadata)
        self._save()

    @property
    def _tuner(self) -> BackgroundTuner:
        return self._runner.tuner_of(self._experiment)

    def _process_results(self) -> None:
        records = {trial.index: self._record(trial) for trial in self._running}
        # An ended trial has no further reports.
        ended = [index for index, record in records.items() if record.status.is_terminal]
        reported = self._attach(records)
        for index in ended:
            self._record_end(index, records[index])
        stopped = [index for index in reported if index not in ended and self._stop_if_ax_asks(index, records[index])]
        if ended or stopped:
            self._waits = False
            self._save()

    def _record(self, trial: AxTrial) -> Trial:
        """Return a trial's record in mqtune."""
        (record,) = self._runner.arms(trial).values()
        if record is None:
            raise ConfigurationError(f"trial {trial.index}: {why(record)}")
        return record

    def _attach(self, records: Mapping[int, Trial]) -> list[int]:
        """Attach new reports. Return the indices of their trials."""
        rows = {index: self._new_rows(index, record) for index, record in records.items()}
        new_rows = [index for index, new in rows.items() if new]
        if new_rows:
            self._experiment.attach_data(Data(data_rows=chain.from_iterable(rows.values())))
        return new_rows

    def _new_rows(self, index: int, record: Trial) -> list[DataRow]:
        reports = self._tuner.reports(record)[self._attached.get(index, 0) :]
        self._attached[index] = self._attached.get(index, 0) + len(reports)
        arm = self._experiment.trials[index].arm.name
        return [
            DataRow(index, arm, name, metric.signature, float(value), math.nan, step=float(report.metrics[ITERATION]))
            for report in reports
            for name, metric in self._experiment.metrics.items()
            if is_number(value := report.metrics.get(name)) and math.isfinite(value)
        ]

    def _stop_if_ax_asks(self, index: int, record: Trial) -> bool:
        """Stop a trial early if Ax decides so. Return whether it was stopped."""
        if not self._stops_early or not self._client.should_stop_trial_early(index):
            return False
        if not stop_trial(self._tuner, record, "Ax stopped it early"):
            return False
        self._attach({index: record})
        self._client.mark_trial_early_stopped(index)
        return True

    def _record_end(self, index: int, record: Trial) -> None:
        match status_of(record):
            case Status.FAILED:
                self._client.mark_trial_failed(index, why(record))
            case Status.ABANDONED:
                self._client.mark_trial_abandoned(index)
            case _ if self._lacks_data(index, record):
                self._client.mark_trial_abandoned(index)
                self._check_metrics(record)
            case Status.COMPLETED:
                self._client.complete_trial(index)
            case _:
                self._client.mark_trial_early_stopped(index)

    def _lacks_data(self, index: int, record: Trial) -> bool:
        """Return whether an optimised or constrained metric is missing, or its last value not finite."""
        names = self._experiment.optimization_config.metric_names
        last = [value for name in names if is_number(value := record.last_metrics.get(name))]
        known = self._experiment.lookup_data(trial_indices=[index]).metric_names
        return not names <= known or not all(map(math.isfinite, last))

    def _check_metrics(self, record: Trial) -> None:
        """Check that some trial has reported each optimised or constrained metric."""
        had = {name for report in self._tuner.reports(record) for name in report.metrics}
        missing = sorted(self._experiment.optimization_config.metric_names - self._experiment.data.metric_names - had)
        is_by_hand = record.history[-1].by == "user"
        if missing and record.status is TrialStatus.COMPLETED and not is_by_hand:
            raise MetricMissing(
                f"run_client: no trial has reported {missing[0]!r}; trial {record.id}, which has completed, reported "
                f"{', '.join(sorted(had)) or 'nothing'}: correct the name in configure_optimization(…), or in the "
                "trainable"
            )

    def _save(self) -> None:
        """Save the client atomically."""
        if self._save_to is not None:
            written = self._save_to.with_name(f"{self._save_to.name}.new")
            self._client.save_to_json_file(str(written))
            written.replace(self._save_to)
