"""A user's script with Optuna: in one process, or with as many that last as there are slots, over one journal file."""

import logging
import multiprocessing
import sys
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState

from benchmarks.training import trial

STUDY = "training"
#: Those that were begun: two processes would otherwise begin one more.
BEGUN = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)


def objective(asked: optuna.Trial) -> float:
    def report(loss: float, epoch: int) -> None:
        nonlocal last
        last = loss
        asked.report(loss, epoch)
        if asked.should_prune():
            raise optuna.TrialPruned

    last = 0.0
    trial.run(asked.number, report)
    return last


def study(storage: Any) -> optuna.Study:
    return optuna.create_study(
        study_name=STUDY,
        storage=storage,
        sampler=optuna.samplers.RandomSampler(),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
        load_if_exists=True,
    )


def work() -> None:
    optuna.logging.set_verbosity(logging.ERROR)
    storage = JournalStorage(JournalFileBackend(f"{trial.SETTINGS.folder}/journal.log"))
    study(storage).optimize(objective, callbacks=[MaxTrialsCallback(trial.SETTINGS.trials, BEGUN)])


if __name__ == "__main__":
    if "processes" in sys.argv:
        fork = multiprocessing.get_context("fork")
        processes = [fork.Process(target=work) for _ in range(trial.SETTINGS.slots)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode:
                raise SystemExit(f"a process ended with exit code {process.exitcode}")
    else:
        optuna.logging.set_verbosity(logging.ERROR)
        study(None).optimize(objective, n_trials=trial.SETTINGS.trials)
    trial.wait_until_left()
