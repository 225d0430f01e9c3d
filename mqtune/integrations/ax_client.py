"""A loop over mqtune's workers for Ax's ``Client``, with Ax's early stopping; needs the extra ``ax``."""

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
    install_command,
    is_number,
)
from mqtune.integrations.ax_runner import MqtuneRunner, status_of, stop_trial, why

try:
    from ax.api.client import Client
    from ax.core.data import Data, DataRow
    from ax.core.trial import Trial as AxTrial
    from ax.core.trial_status import TrialStatus as Status
    from ax.exceptions.core import DataRequiredError, OptimizationComplete, SearchSpaceExhausted
    from ax.exceptions.generation_strategy import GenerationStrategyRepeatedPoints, MaxParallelismReachedException

    from mqtune.integrations.ax_private import experiment_of, uncompiled
except ImportError as error:
    raise ConfigurationError(f"Ax can't be imported ({error}); {install_command('ax')}") from error

#: What Ax raises where it suggests nothing before another trial has ended, and where it suggests nothing more.
_NOT_NOW: Final = (DataRequiredError, MaxParallelismReachedException)
_NO_MORE: Final = (GenerationStrategyRepeatedPoints, SearchSpaceExhausted, OptimizationComplete)

#: The time between two looks at the trials, in seconds.
_POLL_S: Final = 0.02
#: The clients' experiments that a call has in hand, by their identities.
_in_hand: Final[dict[int, object]] = {}


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
    """Run trials of Ax's ``Client`` on mqtune's workers until there are *max_trials*, and all of them have ended.

    Unlike ``Client.run_trials`` it stops trials early, by ``client.should_stop_trial_early`` at each look at what they have
    reported. All reports are attached, with the number of the report as the progression, for the metrics that the client
    knows. A trial that completes without one that is optimised, or whose last value of it is not finite, is abandoned.

    A script that was killed goes on with what it has saved: trials that ran meanwhile are those that run, and are not
    doubled.

    Args:
        client: the client, configured; it has neither runner nor metrics of its own.
        trainable: as for ``mqtune.Tuner``; it is called with the parameters.
        max_trials: how many trials there are to be in all, with those that the client has already.
        parallelism: how many run at once; by default as many as there are slots, whenever a trial is asked for.
        ahead: how many more are asked for before there is a slot, so that none waits for the model. They know less.
        early_stopping: whether trials may be stopped early.
        save_to: a file to which the client is saved whenever a trial begins or ends, for ``Client.load_from_json_file``.
        backend: as for ``MqtuneRunner``, and so are all others.
        name: likewise.
        resources: likewise.
        failures: likewise.
        checkpoints: likewise.
        process: likewise.

    Raises:
        ConfigurationError: the client has no experiment, or no objective; another call runs it; or an argument can't be meant.
        MetricMissing: a trial has completed, and none has ever reported a metric that is optimised or constrained. What still
            runs is stopped.
        MqtuneError: as ``Tuner.run``.
    """
    file = None if save_to is None else Path(save_to)
    _check(client, max_trials, parallelism, ahead, file)
    runner = MqtuneRunner(
        trainable,
        backend=backend,
        name=name,
        resources=resources,
        failures=failures,
        checkpoints=checkpoints,
        process=process,
    )
    with _alone(client), runner:
        try:
            _Loop(client, runner, save_to=file, stops_early=early_stopping).run(max_trials, parallelism, ahead)
        except MetricMissing:
            runner.stop_all(experiment_of(client), "the metric is never reported")
            raise


def _check(client: object, max_trials: object, parallelism: object, ahead: object, save_to: Path | None) -> None:
    """Check the arguments, before anything runs.

    Raises:
        ConfigurationError: one of them can't be meant.
    """
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
def _alone(client: Client) -> Iterator[None]:
    """Have the client's experiment in hand.

    Raises:
        ConfigurationError: another call has.
    """
    me, key = object(), id(experiment_of(client))
    if _in_hand.setdefault(key, me) is not me:
        raise ConfigurationError(
            "run_client: another call runs this client; wait for that, or give a higher max_trials there"
        )
    try:
        yield
    finally:
        del _in_hand[key]


class _Loop:
    """Asks for trials, and tells the client of what becomes of them."""

    def __init__(self, client: Client, runner: MqtuneRunner, *, save_to: Path | None, stops_early: bool) -> None:
        self._stops_early = stops_early
        self._client = client
        self._experiment = experiment_of(client)
        self._runner = runner
        self._save_to = save_to
        #: How many reports of each trial were attached.
        self._attached: dict[int, int] = {}
        #: Whether Ax has nothing to suggest until another trial ends, or at all.
        self._waits = self._is_exhausted = False

    def run(self, max_trials: int, parallelism: int | None, ahead: int) -> None:
        """Run trials until there are so many, and all have ended; those that the client has as running go on first."""
        self._runner.run_multiple(self._running)
        while True:
            begin = time.monotonic()
            self._take_in()
            if self._asks(max_trials, parallelism, ahead):
                self._ask()
            elif self._running or self._waits:
                # Attaching takes the longer the more there is: half of the time at most.
                time.sleep(max(_POLL_S, time.monotonic() - begin))
            else:
                return

    @property
    def _running(self) -> list[AxTrial]:
        return list(self._experiment.trials_by_status[Status.RUNNING])

    def _asks(self, max_trials: int, parallelism: int | None, ahead: int) -> bool:
        if self._waits or self._is_exhausted or len(self._experiment.trials) >= max_trials:
            return False
        at_once = parallelism or self._driven.do(lambda tuner: max(tuner.slots, 1))
        return len(self._running) < at_once + ahead

    def _ask(self) -> None:
        try:
            with uncompiled():
                found = self._client.get_next_trials(1)
        except _NOT_NOW:
            found = {}
        except _NO_MORE:
            self._is_exhausted = True
            return
        self._waits = not found and bool(self._running)
        self._is_exhausted = not found and not self._waits
        trials = [self._experiment.trials[index] for index in found]
        for index, metadata in self._runner.run_multiple(trials).items():
            self._experiment.trials[index].update_run_metadata(metadata)
        self._save()

    @property
    def _driven(self) -> BackgroundTuner:
        return self._runner.driven(self._experiment)

    def _take_in(self) -> None:
        """Tell the client what its trials have reported, and which have ended."""
        records = {trial.index: self._record(trial) for trial in self._running}
        # What has ended has reported all before.
        ended = [index for index, record in records.items() if record.status.is_terminal]
        reported = self._attach(records)
        for index in ended:
            self._end(index, records[index])
        stopped = [index for index in reported if index not in ended and self._stop(index, records[index])]
        if ended or stopped:
            self._waits = False
            self._save()

    def _record(self, trial: AxTrial) -> Trial:
        """Return a trial's record at mqtune.

        Raises:
            ConfigurationError: there is none any more.
        """
        (record,) = self._runner.arms(trial).values()
        if record is None:
            raise ConfigurationError(f"trial {trial.index}: {why(record)}")
        return record

    def _attach(self, records: Mapping[int, Trial]) -> list[int]:
        """Attach what trials have reported since they were last looked at, and return those that have."""
        rows = {index: self._new_rows(index, record) for index, record in records.items()}
        found = [index for index, new in rows.items() if new]
        if found:
            self._experiment.attach_data(Data(data_rows=chain.from_iterable(rows.values())))
        return found

    def _new_rows(self, index: int, record: Trial) -> list[DataRow]:
        reports = self._driven.reports(record)[self._attached.get(index, 0) :]
        self._attached[index] = self._attached.get(index, 0) + len(reports)
        arm = self._experiment.trials[index].arm.name
        return [
            DataRow(index, arm, name, metric.signature, float(value), math.nan, step=float(report.metrics[ITERATION]))
            for report in reports
            for name, metric in self._experiment.metrics.items()
            if is_number(value := report.metrics.get(name)) and math.isfinite(value)
        ]

    def _stop(self, index: int, record: Trial) -> bool:
        """Stop a trial early if Ax says so."""
        if not self._stops_early or not self._client.should_stop_trial_early(index):
            return False
        if not stop_trial(self._driven, record, "Ax stopped it early"):
            return False
        self._attach({index: record})
        self._client.mark_trial_early_stopped(index)
        return True

    def _end(self, index: int, record: Trial) -> None:
        """Tell the client how a trial has ended."""
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
        """Whether a trial has brought no value of what is optimised, or has diverged."""
        names = self._experiment.optimization_config.metric_names
        last = [value for name in names if is_number(value := record.last_metrics.get(name))]
        known = self._experiment.lookup_data(trial_indices=[index]).metric_names
        return not names <= known or not all(map(math.isfinite, last))

    def _check_metrics(self, record: Trial) -> None:
        """Check that what is optimised or constrained is ever reported.

        Raises:
            MetricMissing: this trial has completed by itself, and no trial has reported a number for one of the metrics.
        """
        had = {name for report in self._driven.reports(record) for name in report.metrics}
        missing = sorted(self._experiment.optimization_config.metric_names - self._experiment.data.metric_names - had)
        is_by_hand = record.history[-1].by == "user"
        if missing and record.status is TrialStatus.COMPLETED and not is_by_hand:
            raise MetricMissing(
                f"run_client: no trial has reported {missing[0]!r}; trial {record.id}, which has completed, reported "
                f"{', '.join(sorted(had)) or 'nothing'}: correct the name in configure_optimization(…), or in the trainable"
            )

    def _save(self) -> None:
        """Save the client, in one step: who reads the file has the one before or this one."""
        if self._save_to is not None:
            written = self._save_to.with_name(f"{self._save_to.name}.new")
            self._client.save_to_json_file(str(written))
            written.replace(self._save_to)
