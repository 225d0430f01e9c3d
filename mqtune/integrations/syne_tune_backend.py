"""Backend for Syne Tune's own Tuner over mqtune's workers."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import re
import secrets
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqtune import Checkpoints, Failures, Local, Process, Resources, RunOptions, TrialStatus, Tuner
from mqtune.extend import (
    ITERATION,
    TIME_TOTAL,
    AnyTrainable,
    AttemptEnd,
    Config,
    ConfigurationError,
    DrivenTrial,
    InvalidTransition,
    KnownTrainable,
    Report,
    TrainableSpec,
    Trial,
    TrialId,
    encode_value,
    importing,
    is_number,
    with_hints,
)
from mqtune.integrations.syne_tune_function import ADAPTER

with importing("Syne Tune", "syne-tune"):
    from syne_tune.backend.trial_backend import BUSY_STATUS, TrialBackend
    from syne_tune.backend.trial_status import Status, Trial as TheirTrial, TrialResult
    from syne_tune.constants import ST_WORKER_ITER, ST_WORKER_TIME, ST_WORKER_TIMESTAMP
    from syne_tune.tuner import Tuner as TheirTuner

logger = logging.getLogger(__name__)

#: How long a fetch waits at most, in seconds. Between two fetches Syne Tune checks its stop criterion.
_WAIT_S: Final = 0.5
#: How long the end waits for running trials. A worker's stop ladder takes 15 s.
_STOP_S: Final = 20.0
#: The attributes of Syne Tune's schedulers with the key of the time.
TIME_NAMES: Final = ("time_attr", "resource_attr", "_resource_attr")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]")
_NAME_CHARS: Final = 100
#: How long Syne Tune may work on the results of one fetch. Only between two fetches it saves, stops and starts trials.
_TURN_S: Final = 0.05
_MOST_RESULTS: Final = 1024
_STATUSES: Final = {
    TrialStatus.COMPLETED: Status.completed,
    TrialStatus.FAILED: Status.failed,
    TrialStatus.EARLY_STOPPED: Status.stopped,
    TrialStatus.ABANDONED: Status.stopped,
}


#: mqtune's replacements for arguments of ``LocalBackend``.
_OF_LOCAL_BACKEND: Final = {
    "num_gpus_per_trial": "resources=mqtune.Resources(gpus=…)",
    "gpus_to_use": "mqtune worker --gpus …",
    "rotate_gpus": "resources=mqtune.Resources(gpus=…), with which each trial has GPUs of its own",
}

_Result = dict[str, Any]


class _Told(NamedTuple):
    """A report, its position among all reports, and its number within its trial."""

    place: int
    ordinal: int
    report: Report


class _Handed(NamedTuple):
    """A report that was fetched, and the state of its trial before it."""

    number: int
    #: The result for Syne Tune; None if it gets none.
    result: _Result | None
    results: int
    reports: int
    reached: float


@dataclass(slots=True)
class _KnownTrial:
    """A trial of Syne Tune: its id in mqtune, and its processed reports."""

    id: TrialId
    #: The number of processed reports, and the attempt and the time of the last result.
    reports: int = 0
    attempt: int = 0
    reached: float = -math.inf
    results: list[_Result] = field(default_factory=list)
    is_paused: bool = False
    is_stopped: bool = False


class MqtuneBackend(TrialBackend):
    """Runs the trials of Syne Tune's own ``Tuner`` on mqtune's workers, like ``LocalBackend``.

    - *Results* come in the journal's order. If a trial is paused on a result, it resumes from the checkpoint that it
      had then. Its later results are left out. A fetch returns as many available results as Syne Tune can handle in
      some 50 ms.
    - *No polling*: a fetch waits for news, and the Tuner's ``sleep_time`` is set to 0.
    - *A worker's death* is no failure: the trial is rerun from its newest checkpoint. Results are left out up to the
      time that the scheduler knows (its ``time_attr``). A trial that ends without any result has failed.
    - *kill -9 and ``Tuner.load``*: reports since the Tuner was saved are fetched again, and running trials continue.
      Trials that were started since then become the next trials of the scheduler, with their own configs. Until older
      trials have ended, more than ``n_workers`` may be unfinished; they wait for slots.
    - ``stop_all`` returns after all processes have exited. It ends the experiment unless trials are paused.

    The experiment has the Tuner's name, with dashes for invalid characters. A new Tuner of the same name resumes it: it
    adopts a trial with the same number and config, and stops one with another config.

    Works with Syne Tune 0.13 to 0.16.

    Args:
        entry_point: the path of a script, which gets the config as arguments, with ``--st_checkpoint_dir`` if there is
            a store, and reports as for Syne Tune; or a trainable of mqtune, such as a function of the config.
        tune_function: instead, a function as for ``PythonBackend``: it takes the config as keywords and reports by
            ``Reporter``. It must be at the top level of a file, and may use the rest of the file.
        config_space: ignored; ``PythonBackend`` has it.
        broker: the workers' Redis URL, or ``mqtune.Local(slots=…)``; by default ``$MQTUNE_BROKER``, or else this
            machine with ``n_workers`` slots.
        checkpoints: where to store folders as checkpoints, and which to keep: a folder, a URL, or
            ``mqtune.Checkpoints``.
        delete_checkpoints: as for ``LocalBackend``.
        pass_args_as_json: as for ``LocalBackend``.
        resources: each trial's resources.
        failures: the handling of failed trials; by default they fail in Syne Tune too.
        process: how a trial's process runs. With ``sync="lockstep"`` a trial waits for the decision on each report.
        tags: names by which to find the experiment.

    Raises:
        ConfigurationError: an argument is invalid.
        TrainableNotFound: workers could not import the trainable.
    """

    @with_hints({}, _OF_LOCAL_BACKEND)
    def __init__(
        self,
        entry_point: AnyTrainable | None = None,
        *,
        tune_function: Callable[..., object] | None = None,
        config_space: Mapping[str, object] | None = None,
        broker: str | Local | None = None,
        checkpoints: str | Path | Checkpoints = Checkpoints(),
        delete_checkpoints: bool = False,
        pass_args_as_json: bool = False,
        resources: Resources | None = None,
        failures: Failures = Failures(),
        process: Process = Process(),
        tags: tuple[str, ...] = (),
    ) -> None:
        super().__init__(delete_checkpoints=delete_checkpoints, pass_args_as_json=pass_args_as_json)
        if (entry_point is None) is (tune_function is None):
            raise ConfigurationError("give MqtuneBackend an entry_point or a tune_function, and not both")
        self._set_trainable(entry_point, tune_function)
        self._broker = broker
        how = "json" if pass_args_as_json else process.pass_config
        self._settings: dict[str, Any] = {
            "checkpoints": checkpoints if isinstance(checkpoints, Checkpoints) else Checkpoints(checkpoints),
            "resources": resources,
            "failures": failures,
            "process": replace(process, pass_config=how, pass_checkpoint_dir=True),
        }
        self._tags = tags
        self._name = ""
        self._slots: int | None = None
        #: The metric with a report's time, by which new reports of a rerun trial are recognised.
        self._time = ITERATION
        self._known: dict[int, _KnownTrial] = {}
        self._numbers: dict[TrialId, int] = {}
        #: For a new trial, the trial with the checkpoint that it starts from.
        self._sources: dict[int, int] = {}
        #: Delayed until a trial's process has ended: resuming with a config, and deleting its checkpoints.
        self._resuming: dict[int, Config] = {}
        self._deleting: set[int] = set()
        #: Scheduled trials whose process may still run.
        self._active: dict[int, None] = {}
        #: Trials that ran when the Tuner was saved. The loaded Tuner does not ask for them.
        self._adopted: set[int] = set()
        self._is_loaded = False
        self._reset_connection()

    def _set_trainable(
        self, entry_point: AnyTrainable | None, tune_function: Callable[..., object] | None = None
    ) -> None:
        known = (
            TrainableSpec.of(entry_point) if tune_function is None else TrainableSpec.of(tune_function, adapter=ADAPTER)
        )
        self._trainable = KnownTrainable(*known)

    def _reset_connection(self) -> None:
        self._tuner: Tuner | None = None
        self._is_open = False
        #: Reports from before the connection, and reports of trials that Syne Tune has not started or resumed yet.
        self._missed: deque[_Told] = deque()
        self._shelved: dict[TrialId, list[_Told]] = {}
        self._places = itertools.count()
        #: The reports of the last fetch that the driver has not passed. It stands at the first of them.
        self._handed: deque[_Handed] = deque()
        #: How many results the next fetch may return, and when the last fetch returned.
        self._share = 1
        self._handed_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        gone = ("_tuner", "_is_open", "_missed", "_shelved", "_places", "_handed", "_share", "_handed_at")
        return {name: value for name, value in self.__dict__.items() if name not in gone}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset_connection()
        self._is_loaded = True
        self._adopted = {number for number, trial in self._trial_dict.items() if trial.status == Status.in_progress}

    def __str__(self) -> str:
        return f"mqtune, {self._trainable.spec}"

    def set_path(self, results_root: str | None = None, tuner_name: str | None = None) -> None:
        if tuner_name and not self._known:
            self._name = _NOT_IN_NAMES.sub("-", tuner_name)[-_NAME_CHARS:].strip("-.")
        # Syne Tune gives a backend no other access to its Tuner.
        owner = sys._getframe(1).f_locals.get("self")
        if isinstance(owner, TheirTuner):
            owner.sleep_time, self._slots = 0, owner.n_workers
            times = (name for name in attributes_of(owner.scheduler, *TIME_NAMES) if isinstance(name, str))
            self._time = next(times, ITERATION)

    def entrypoint_path(self) -> Path:
        return self._trainable.spec.locate(self._trainable.code_root)

    def set_entrypoint(self, entry_point: str) -> None:
        self._set_trainable(entry_point)

    def _open(self) -> Tuner:
        """Return mqtune's tuner. If there is no connection, connect or resume first."""
        if self._tuner is None or not self._is_open:
            place = self._broker
            if place is None and not os.environ.get("MQTUNE_BROKER"):
                place = Local(self._slots)
            self._name = self._name or f"{self._trainable.spec.name}-{secrets.token_hex(4)}"
            self._tuner = Tuner(
                self._trainable,
                backend=place,
                name=self._name,
                run=RunOptions(progress=False, tags=self._tags or None),
                **self._settings,
            )
            self._is_open = True
            self._shelved.clear()
            self._missed = deque(result for result in self._earlier_reports(self._tuner) if not self._shelve(result))
        return self._tuner

    def _current_tuner(self) -> Tuner:
        return self._tuner if self._tuner is not None else self._open()

    def _close(self) -> None:
        if self._tuner is not None and self._is_open:
            self._is_open = False
            self._tuner.close()

    def _earlier_reports(self, tuner: Tuner) -> Iterator[_Told]:
        """Yield the reports that the driver has processed already, and will not return again."""
        counts: Counter[TrialId] = Counter()
        if not tuner.get_trials():
            return
        for report in tuner.results().reports():
            if not report.late:
                counts[report.trial] += 1
                yield _Told(next(self._places), counts[report.trial], Report(*report[:-1]))

    def _handle_of(self, number: int) -> DrivenTrial:
        return self._open().trial(self._known[number].id)

    def _record(self, number: int) -> Trial:
        return self._current_tuner().trial(self._known[number].id).record

    def start_trial(self, config: dict[str, Any], checkpoint_trial_id: int | None = None) -> TrialResult:
        trial = super().start_trial(config, checkpoint_trial_id)
        started = self._record(trial.trial_id).config
        if encode_value(started) != encode_value(config):
            # The trial was started before this Tuner was loaded.
            trial.config = dict(started)
        return trial

    def _schedule(self, trial_id: int, config: dict[str, Any]) -> None:
        self._advance_past_fetched()
        known = self._known.get(trial_id)
        if known is None:
            self._start(trial_id, config, self._source_of(trial_id))
        self._active[trial_id] = None
        if known is None:
            return
        is_ahead = self._is_ahead(trial_id)
        if is_ahead and encode_value(self._record(trial_id).config) == encode_value(config):
            self._unshelve(known.id)
            return
        if is_ahead:
            _unless_ended(self._handle_of(trial_id).pause)
        self._resuming[trial_id] = config
        self._perform_delayed()

    def _source_of(self, trial_id: int) -> Trial | str:
        source = self._sources.pop(trial_id, None)
        if source is None:
            return ""
        record = self._record(source)
        if not record.checkpoint:
            logger.warning("trial %d has no checkpoint for trial %d, which begins from scratch", source, trial_id)
        return record if record.checkpoint else ""

    def _start(self, trial_id: int, config: dict[str, Any], source: Trial | str) -> None:
        """Start a trial, or adopt the one with this number that an earlier Tuner has started."""
        tuner = self._open()
        before = self._known.get(trial_id)
        for key in _mqtune_keys(trial_id):
            trial = tuner.add(config, source=source, key=key)
            if trial.id in self._numbers:
                continue
            if self._is_loaded or encode_value(trial.config) == encode_value(config):
                break
            logger.warning(
                "trial %d of experiment %s has another config now; the trial with the old one is stopped",
                trial_id,
                self._name,
            )
            _unless_ended(tuner.trial(trial).stop)
        known = _KnownTrial(trial.id) if before is None else replace(before, id=trial.id, reports=0, attempt=0)
        self._known[trial_id], self._numbers[trial.id] = known, trial_id
        self._unshelve(trial.id)

    def _resume_trial(self, trial_id: int) -> None:
        self._known[trial_id].is_paused = False

    def _pause_trial(self, trial_id: int, result: _Result | None) -> None:
        self._advance_to_decision(trial_id, result)
        self._known[trial_id].is_paused = True
        if not self._is_ahead(trial_id):
            _unless_ended(self._handle_of(trial_id).pause)

    def _is_ahead(self, number: int) -> bool:
        """Return whether an earlier Tuner has already resumed this trial."""
        told, trial = self._known[number].attempt, self._record(number)
        return 0 < told < trial.attempt.number and trial.attempts[told - 1].end is AttemptEnd.PAUSED

    def _stop_trial(self, trial_id: int, result: _Result | None) -> None:
        self._advance_to_decision(trial_id, result)
        self._known[trial_id].is_stopped = True
        self._trial_dict[trial_id].status = Status.stopped
        self._resuming.pop(trial_id, None)
        if not self._record(trial_id).status.is_terminal:
            _unless_ended(self._handle_of(trial_id).stop)

    def copy_checkpoint(self, src_trial_id: int, tgt_trial_id: int) -> None:
        self._sources[tgt_trial_id] = src_trial_id

    def checkpoint_trial_path(self, trial_id: int) -> Path:
        """Return a local copy of the last folder that a trial has saved.

        Raises:
            ConfigurationError: it has saved nothing, or a dict.
            MqtuneError: as ``DrivenTrial.get_checkpoint``.
        """
        return Path(self._current_tuner().trial(self._known[trial_id].id).get_checkpoint().path)

    def delete_checkpoint(self, trial_id: int) -> None:
        if trial_id in self._known:
            self._deleting.add(trial_id)
            self._perform_delayed()

    def _perform_delayed(self) -> None:
        """Resume trials, and delete checkpoints, whose processes have ended."""
        for number in list(self._deleting):
            trial = self._record(number)
            if trial.status.is_terminal or trial.status is TrialStatus.PAUSED:
                self._deleting.discard(number)
                self._handle_of(number).delete_checkpoints(even_best=True, even_paused=True)
        for number in list(self._resuming):
            trial = self._record(number)
            if trial.status.is_terminal:
                # The trial ended by itself before the pause.
                self._start(number, self._resuming.pop(number), trial if trial.checkpoint else "")
            elif trial.status is TrialStatus.PAUSED:
                # Syne Tune gets no report from after the result on which it has paused the trial.
                self._known[number].reports = trial.reports
                self._shelved.pop(trial.id, None)
                decided = None if trial.pause_point is None else "decided"
                self._handle_of(number).resume(self._resuming.pop(number), checkpoint=decided)

    def stop_all(self) -> None:
        if self._known:
            super().stop_all()
            self._end()
        self._close()

    def _end(self) -> None:
        """Stop running trials, wait for them, and end the experiment unless some are paused."""
        self._advance_past_fetched()
        tuner = self._open()
        for trial in tuner.busy_trials:
            _unless_ended(tuner.trial(trial).stop)
        deadline = time.monotonic() + _STOP_S
        while tuner.busy_trials and time.monotonic() < deadline:
            tuner.step(_WAIT_S)
        self._perform_delayed()
        if not tuner.is_finished and not tuner.get_trials(TrialStatus.PAUSED):
            tuner.finish("Syne Tune's Tuner has ended")

    def fetch_status_results(
        self, trial_ids: list[int]
    ) -> tuple[dict[int, tuple[TheirTrial, str]], list[tuple[int, _Result]]]:
        self._set_share()
        self._advance_past_fetched()
        asked = dict.fromkeys([*trial_ids, *self._adopted])
        # If no trial is in progress, only processes that end are left.
        is_awaited = any(self._status(number) == Status.in_progress for number in asked)
        deadline = time.monotonic() + _WAIT_S
        while not (results := self._new_results(asked)) and not self._has_news(asked):
            left_s = deadline - time.monotonic() if is_awaited or self.busy_trial_ids() else 0.0
            self._process_next(max(0.0, left_s))
            if left_s <= 0:
                results = self._new_results(asked)
                break
        results += self._results_ahead(asked)
        new_results = {}
        for number in asked:
            told = self._update(number)
            new_results[number] = (TheirTrial(number, told.config, told.creation_time), told.status)
        self._adopted = {number for number in self._adopted if self._trial_dict[number].status in BUSY_STATUS}
        self._handed_at = time.monotonic()
        return new_results, results

    def _set_share(self) -> None:
        took_s = time.monotonic() - self._handed_at
        if took_s > _TURN_S:
            self._share = max(1, self._share // 2)
        elif len(self._handed) >= self._share and self._may_look_ahead:
            self._share = min(2 * self._share, _MOST_RESULTS)

    @property
    def _may_look_ahead(self) -> bool:
        """Whether only Syne Tune ends trials on reports, and no trial waits for decisions."""
        failures, process = self._settings["failures"], self._settings["process"]
        return bool(failures.on_invalid_report == "warn" and process.sync != "lockstep")

    def _results_ahead(self, asked: dict[int, None]) -> list[tuple[int, _Result]]:
        """Return results of further reports, up to a trial for which Syne Tune does not wait."""
        results: list[tuple[int, _Result]] = []
        if not self._handed or self._missed or self._share == 1:
            return results
        counts: dict[int, int] = {}
        for report in self._open().reports_ahead(self._share - 1):
            number = self._numbers.get(report.trial)
            if number not in asked or self._known[number].is_paused:
                break
            counts[number] = (counts.get(number) or self._record(number).reports) + 1
            told = _Told(next(self._places), counts[number], report)
            if (result := self._process(number, told)) is not None:
                results.append((number, result))
                self._last_metric_seen_index[number] += 1
        return results

    def _advance_to_decision(self, number: int, result: _Result | None) -> None:
        """Let the driver process the reports up to the one on which Syne Tune has decided.

        The trial's later reports are dropped.
        """
        if not self._handed:
            return
        is_told = (handed for handed in self._handed if handed.number == number and handed.result is not None)
        decided = next((told for told in is_told if told.result is result or told.result == result), None)
        if decided is not None:
            self._advance_to(decided)
            known = self._known[number]
            known.reports, known.reached = decided.reports, decided.reached
            del known.results[decided.results :]
            self._last_metric_seen_index[number] = decided.results
        stands, *others = self._handed
        self._handed = deque([stands, *(other for other in others if other.number != number)])

    def _advance_to(self, handed: _Handed) -> None:
        while self._handed[0] is not handed:
            self._handed.popleft()
            self._open().next_report(0)

    def _advance_past_fetched(self) -> None:
        """Let the driver process all reports that were fetched."""
        if self._handed:
            self._advance_to(self._handed[-1])
            self._handed.clear()

    def _new_results(self, asked: dict[int, None]) -> list[tuple[int, _Result]]:
        results = []
        for number in asked:
            known, seen = self._known[number], self._last_metric_seen_index[number]
            if len(known.results) > seen and not (known.is_paused or known.is_stopped):
                results += [(number, result) for result in known.results[seen:]]
                self._last_metric_seen_index[number] = len(known.results)
        return sorted(results, key=lambda pair: pair[1][ST_WORKER_TIMESTAMP])

    def _has_news(self, asked: dict[int, None]) -> bool:
        return any(self._status(number) != self._trial_dict[number].status for number in asked)

    def _status(self, number: int) -> str:
        known = self._known[number]
        if known.is_stopped or known.is_paused:
            return str(Status.stopped if known.is_stopped else Status.paused)
        trial = self._record(number)
        if number in self._resuming or known.reports < trial.reports:
            return str(Status.in_progress)
        status = str(_STATUSES.get(trial.status, Status.in_progress))
        return str(Status.failed) if status == Status.completed and not known.results else status

    def _update(self, number: int) -> TrialResult:
        told = self._trial_dict[number]
        told.status, told.metrics = self._status(number), self._known[number].results
        return told

    def _all_trial_results(self, trial_ids: list[int]) -> list[TrialResult]:
        deadline = time.monotonic() + _WAIT_S
        while self._process_next(0) and time.monotonic() < deadline:
            pass
        results = []
        for number in trial_ids:
            if number in self._trial_dict:
                told, ended_at = self._update(number), self._record(number).attempt.ended_at
                end = None if ended_at is None else datetime.fromtimestamp(ended_at)  # noqa: DTZ006 - as Syne Tune's are
                results.append(told.add_results(told.metrics, told.status, end))
        return results

    def busy_trial_ids(self) -> list[tuple[int, str]]:
        """Return number and status of busy trials, and of trials whose process has not ended."""
        busy = []
        for number in list(self._active):
            told = self._trial_dict[number].status
            if told in BUSY_STATUS:
                busy.append((number, told))
            elif self._record(number).is_busy:
                busy.append((number, Status.stopping))
            else:
                del self._active[number]
        return busy

    def _process_next(self, block_s: float) -> bool:
        """Process the next report, or wait for one. Return whether there was one."""
        if self._tuner is not None and not self._is_open:
            return False
        tuner = self._open()
        self._advance_past_fetched()
        if self._missed:
            told = self._missed.popleft()
        else:
            if tuner.is_finished:
                return False
            report = tuner.next_report(block_s)
            if self._resuming or self._deleting:
                self._perform_delayed()
            if report is None:
                return False
            told = _Told(next(self._places), tuner.trial(report.trial).record.reports, report)
        if not self._shelve(told):
            self._process(self._numbers[told.report.trial], told)
        return True

    def _shelve(self, told: _Told) -> bool:
        """Keep a report for later if Syne Tune has not started or resumed its trial. Return whether so."""
        number = self._numbers.get(told.report.trial)
        if number is not None and not self._known[number].is_paused:
            return False
        self._shelved.setdefault(told.report.trial, []).append(told)
        return True

    def _unshelve(self, trial: TrialId) -> None:
        self._missed = deque(heapq.merge(self._missed, self._shelved.pop(trial, [])))

    def _process(self, number: int, told: _Told) -> _Result | None:
        """Process a report. Return its result for Syne Tune, or None."""
        known = self._known[number]
        result = self._result(known, told) if told.ordinal > known.reports else None
        self._handed.append(_Handed(number, result, len(known.results), known.reports, known.reached))
        return result

    def _result(self, known: _KnownTrial, told: _Told) -> _Result | None:
        report, known.reports = told.report, told.ordinal
        reached: Any = report.metrics.get(self._time)
        if is_number(reached):
            if report.attempt > known.attempt and reached <= known.reached:
                return None
            known.reached = max(reached, known.reached)
        known.attempt = report.attempt
        own = {ST_WORKER_TIME: report.metrics[TIME_TOTAL], ST_WORKER_ITER: len(known.results)}
        result = {**own, **report.metrics, ST_WORKER_TIMESTAMP: report.timestamp}
        known.results.append(result)
        return result

    def stdout(self, trial_id: int) -> list[str]:
        return self._printed(trial_id, DrivenTrial.stdout)

    def stderr(self, trial_id: int) -> list[str]:
        return self._printed(trial_id, DrivenTrial.stderr)

    def _printed(self, number: int, read: Callable[..., list[str]]) -> list[str]:
        hand = self._current_tuner().trial(self._known[number].id)
        return [f"{line}\n" for attempt in hand.record.attempts for line in read(hand, attempt=attempt.number)]


def attributes_of(scheduler: Any, *names: str) -> Iterator[Any]:
    """Yield the attributes of these names of a scheduler, and of the schedulers that it wraps."""
    while scheduler is not None:
        yield from (attribute for name in names if (attribute := getattr(scheduler, name, None)) is not None)
        scheduler = getattr(scheduler, "scheduler", None)


def _mqtune_keys(number: int) -> Iterator[str]:
    """Yield the key of a trial in mqtune, and then the keys for its replacements."""
    yield str(number)
    yield from (f"{number}.{again}" for again in itertools.count(1))


def _unless_ended(action: Callable[[], object]) -> None:
    """Run an action on a trial. Do nothing if the trial has ended or is ending."""
    with suppress(InvalidTransition):
        action()
