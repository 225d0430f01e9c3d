"""A user's script with Optuna: a lasting process for each slot, over one journal file."""

import logging
import multiprocessing

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState

from benchmarks.training import trial

#: States of begun trials. Without the running ones, two processes would begin one trial too many.
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


def work() -> None:
    optuna.logging.set_verbosity(logging.ERROR)
    study = optuna.create_study(
        study_name="training",
        storage=JournalStorage(JournalFileBackend(f"{trial.SETTINGS.folder}/journal.log")),
        sampler=optuna.samplers.RandomSampler(),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
        load_if_exists=True,
    )
    study.optimize(objective, callbacks=[MaxTrialsCallback(trial.SETTINGS.trials, BEGUN)])


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=work) for _ in range(trial.SETTINGS.slots)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a process ended with exit code {process.exitcode}")
