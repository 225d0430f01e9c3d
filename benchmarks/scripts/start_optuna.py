"""The same with Optuna: two processes over one journal file, each with half of the trials."""

import multiprocessing

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend


def train(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", 1.0, 4.0)
    trial.report(x, 1)
    return x


def work() -> None:
    storage = JournalStorage(JournalFileBackend("start.log"))
    optuna.create_study(study_name="start", storage=storage, load_if_exists=True).optimize(train, n_trials=2)


if __name__ == "__main__":
    processes = [multiprocessing.get_context("fork").Process(target=work) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
