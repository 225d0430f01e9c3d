"""Optuna on the work: it starts no processes, so trials run in two processes of this module."""

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
    """State shared by a run's processes: the remaining trials, the first start, the last end."""

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


def _storage(path: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(path)))


def _run(context: Context, objective: Objective, pruner: Any, trials: int) -> Share:
    """Run the trials in the order of their indices, in two processes over one journal file."""
    import optuna

    optuna.logging.set_verbosity(logging.ERROR)
    journal = context.folder / "journal.log"
    study = optuna.create_study(
        study_name=STUDY, storage=_storage(journal), sampler=optuna.samplers.RandomSampler(0), pruner=pruner
    )
    for index in range(trials):
        study.enqueue_trial({"index": index})
    share = Share(trials)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_work, args=(journal, objective, pruner, share)) for _ in range(SLOTS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a process ended with exit code {process.exitcode}")
    return share


def _work(journal: Path, objective: Objective, pruner: Any, share: Share) -> None:
    import optuna

    study = optuna.load_study(study_name=STUDY, storage=_storage(journal), pruner=pruner)
    share.barrier.wait()
    while share.take():
        share.started()
        study.optimize(objective, n_trials=1)
        share.ended()


def _index(trial: Any) -> int:
    return int(trial.suggest_int("index", 0, 10_000))


def _reporting(trial: Any) -> bodies.Report:
    """Return a report function that also asks whether to prune."""
    import optuna

    def report(metrics: dict[str, Any]) -> None:
        trial.report(metrics["loss"], metrics["epoch"])
        if trial.should_prune():
            raise optuna.TrialPruned

    return report


def _noop(context: Context) -> Figures:
    from optuna.pruners import NopPruner

    def objective(trial: Any) -> float:
        _index(trial)
        bodies.noop(_reporting(trial))
        return 0.0

    trials = context.sizes["trials"]
    share = _run(context, objective, NopPruner(), trials)
    return noop.figures(trials, first_start=share.first_start.value, last_end=share.last_end.value)


def _stream(context: Context) -> Figures:
    from optuna.pruners import NopPruner

    folder, reports = str(context.folder), context.sizes["reports"]

    def objective(trial: Any) -> float:
        bodies.stream(_reporting(trial), folder, _index(trial), reports=reports, parties=stream.PARTIES)
        return 0.0

    share = _run(context, objective, NopPruner(), stream.PARTIES)
    return stream.figures(context.folder, reports=reports, last_decision=share.last_end.value)


def _asha(context: Context) -> Figures:
    from optuna.pruners import SuccessiveHalvingPruner

    def objective(trial: Any) -> float:
        bodies.asha(_reporting(trial), str(context.folder), _index(trial))
        return 0.0

    pruner = SuccessiveHalvingPruner(min_resource=asha.GRACE_PERIOD, reduction_factor=asha.REDUCTION_FACTOR)
    share = _run(context, objective, pruner, context.sizes["trials"])
    return asha.figures(context.folder, first_start=share.first_start.value, last_end=share.last_end.value)


def _start(context: Context) -> Figures:
    """Measure the script by its journal.

    The journal has times of starts but not of reports. A trial reports as soon as it starts.
    """
    import optuna

    run = start.run_script("start_optuna.py", context)
    trials = optuna.load_study(study_name="start", storage=_storage(context.folder / "start.log")).trials
    return start.figures(
        run,
        first_report_at=min(trial.datetime_start.timestamp() for trial in trials),
        last_end_at=max(trial.datetime_complete.timestamp() for trial in trials),
    )


def _processes(measure: Callable[[Context], Figures]) -> tuple[Variant, ...]:
    settings = "2 processes that last for the whole run, JournalStorage in one file, RandomSampler"
    return (Variant(name="processes", settings=settings, measure=measure),)


SYSTEM: Final = System(
    name="optuna",
    title="Optuna",
    packages=("optuna",),
    variants={
        "start": _processes(_start),
        "noop": _processes(_noop),
        "stream": _processes(_stream),
        "asha": _processes(_asha),
        "quality": optuna_quality.VARIANTS,
        **training.variants(
            processes=training.Way(
                "as many processes as slots, forked once and lasting, JournalStorage in one file, RandomSampler, "
                "SuccessiveHalvingPruner",
                "run_optuna.py",
            )
        ),
    },
)
