"""Optuna on the work: it starts no processes of its own, so trials run in two threads or in two that we start."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks import bodies
from benchmarks.measurement import Context, Figures, System, Variant
from benchmarks.systems import optuna_quality, training
from benchmarks.work import asha, noop, start, stream

__all__ = ["SYSTEM"]

SLOTS: Final = 2
STUDY: Final = "run"

Objective = Callable[[Any], float]


class Share:
    """What the processes of one run share: the barrier, the trials not yet taken, and first start and last end."""

    def __init__(self, trials: int) -> None:
        context = multiprocessing.get_context("fork")
        self.barrier = context.Barrier(SLOTS)
        self.left = context.Value("q", trials)
        self.first_start = context.Value("d", 0.0)
        self.last_end = context.Value("d", 0.0)

    def take(self) -> bool:
        """Take one trial, if one is left."""
        with self.left.get_lock():
            self.left.value -= 1
            return bool(self.left.value >= 0)

    def started(self) -> None:
        with self.first_start.get_lock():
            self.first_start.value = self.first_start.value or time.monotonic()

    def ended(self) -> None:
        with self.last_end.get_lock():
            self.last_end.value = time.monotonic()


def _storage(folder: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(folder / "journal.log")))


def _create(storage: Any, pruner: Any, trials: int) -> Any:
    """Return a study with the trials' indices queued in order."""
    import optuna

    optuna.logging.set_verbosity(logging.ERROR)
    study = optuna.create_study(
        study_name=STUDY, storage=storage, sampler=optuna.samplers.RandomSampler(0), pruner=pruner
    )
    for index in range(trials):
        study.enqueue_trial({"index": index})
    return study


def _run(context: Context, objective: Objective, pruner: Any, trials: int) -> Share:
    """Run the trials in two processes over one journal file."""
    _create(_storage(context.folder), pruner, trials)
    share = Share(trials)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_work, args=(context.folder, objective, pruner, share)) for _ in range(SLOTS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a process ended with exit code {process.exitcode}")
    return share


def _work(folder: Path, objective: Objective, pruner: Any, share: Share) -> None:
    import optuna

    study = optuna.load_study(study_name=STUDY, storage=_storage(folder), pruner=pruner)
    share.barrier.wait()
    while share.take():
        share.started()
        study.optimize(objective, n_trials=1)
        share.ended()


def _index(trial: Any) -> int:
    return int(trial.suggest_int("index", 0, 10_000))


def _reporting(trial: Any, observed: list[float]) -> bodies.Report:
    """Return a report function that also asks whether to prune, and notes in *observed* when it was answered."""
    import optuna

    def report(metrics: dict[str, Any]) -> None:
        trial.report(metrics["loss"], metrics["epoch"])
        prune = trial.should_prune()
        observed.append(time.monotonic())
        if prune:
            raise optuna.TrialPruned

    return report


def _noop_objective(trial: Any) -> float:
    _index(trial)
    bodies.noop(_reporting(trial, []))
    return 0.0


def _noop(context: Context) -> Figures:
    from optuna.pruners import NopPruner

    trials = context.sizes["trials"]
    begin = time.monotonic()
    share = _run(context, _noop_objective, NopPruner(), trials)
    run_s = time.monotonic() - begin
    return noop.figures(trials, first_start=share.first_start.value, last_end=share.last_end.value, run_s=run_s)


def _stream(context: Context) -> Figures:
    from optuna.pruners import NopPruner

    folder, reports = str(context.folder), context.sizes["reports"]

    def objective(trial: Any) -> float:
        report = _reporting(trial, [])
        bodies.stream(report, folder, _index(trial), reports=reports, parties=stream.PARTIES)
        return 0.0

    share = _run(context, objective, NopPruner(), stream.PARTIES)
    return stream.figures(context.folder, reports=reports, last_decision=share.last_end.value)


def _halving() -> Any:
    from optuna.pruners import SuccessiveHalvingPruner

    return SuccessiveHalvingPruner(min_resource=asha.GRACE_PERIOD, reduction_factor=asha.REDUCTION_FACTOR)


def _asha_objective(folder: str, count: Callable[[int], None]) -> Objective:
    def objective(trial: Any) -> float:
        answered: list[float] = []
        try:
            bodies.asha(_reporting(trial, answered), folder, _index(trial))
        finally:
            count(len(answered))
        return 0.0

    return objective


def _asha(context: Context) -> Figures:
    trials = context.sizes["trials"]
    counted = multiprocessing.get_context("fork").Value("q", 0)

    def count(reports: int) -> None:
        with counted.get_lock():
            counted.value += reports

    share = _run(context, _asha_objective(str(context.folder), count), _halving(), trials)
    return asha.figures(
        context.folder,
        first_start=share.first_start.value,
        last_end=share.last_end.value,
        epochs_decided=counted.value,
    )


def _start(context: Context) -> Figures:
    """Measure the script by its journal; a trial reports at once when it has started, which is the time that the journal has."""
    import optuna

    run = start.run_script("start_optuna.py", context)
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(context.folder / "start.log"))
    )
    trials = optuna.load_study(study_name="start", storage=storage).trials
    return start.figures(
        run,
        first_report_at=min(trial.datetime_start.timestamp() for trial in trials),
        last_end_at=max(trial.datetime_complete.timestamp() for trial in trials),
    )


PROCESSES: Final = "2 processes that last for the whole run, JournalStorage in one file, RandomSampler"


SYSTEM: Final = System(
    name="optuna",
    title="Optuna",
    packages=("optuna",),
    variants={
        "start": (Variant(name="processes", settings=PROCESSES, measure=_start),),
        "noop": (Variant(name="processes", settings=PROCESSES, measure=_noop),),
        "stream": (Variant(name="processes", settings=PROCESSES, measure=_stream),),
        "asha": (Variant(name="processes", settings=PROCESSES, measure=_asha),),
        "quality": optuna_quality.VARIANTS,
        **training.variants("optuna"),
    },
)
