"""Optuna's own way to share a study: two processes that each optimize it, with its storage between them."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.measurement import Context, Figures, Skip, Variant
from benchmarks.work import studies

__all__ = ["VARIANTS", "opened"]

PROCESSES: Final = 2
SETTINGS: Final = {
    "sqlite": "RDBStorage over SQLite on this disk, which waits up to 100 s for its lock",
    "file": "JournalFileBackend on this disk, with its default lock",
    "redis": "JournalRedisBackend, its server without append-only file",
}


@contextlib.contextmanager
def opened(storage: str, folder: Path) -> Iterator[Callable[[], Any]]:
    """Have what a storage needs, and give what opens it in a process."""
    if storage == "redis":
        with _redis(folder) as url:
            yield lambda: _journal("JournalRedisBackend", url)
    elif storage == "file":
        yield lambda: _journal("JournalFileBackend", str(folder / "journal.log"))
    else:
        yield lambda: _sqlite(folder)


def _journal(backend: str, place: str) -> Any:
    from optuna.storages import JournalStorage, journal

    return JournalStorage(getattr(journal, backend)(place))


def _sqlite(folder: Path) -> Any:
    from optuna.storages import RDBStorage

    return RDBStorage(f"sqlite:///{folder}/study.db", engine_kwargs={"connect_args": {"timeout": 100}})


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[str]:
    try:
        import redis

        from mqtune.backends.local.server import EmbeddedServer
    except ImportError as error:
        raise Skip(f"no server for JournalRedis: {error}") from None
    with EmbeddedServer.start(folder / "journal") as server:
        redis.Redis.from_url(server.url).config_set("appendonly", "no")
        yield server.url


def _work(objective: str, open_storage: Callable[[], Any], barrier: Any, left: Any) -> None:
    from benchmarks import objectives

    study = studies.new_study(objective, open_storage())
    function = getattr(objectives, objective)
    barrier.wait()
    while _take(left):
        study.optimize(function, n_trials=1)


def _take(left: Any) -> bool:
    with left.get_lock():
        left.value -= 1
        return bool(left.value >= 0)


def _measure(storage: str) -> Callable[[Context], Figures]:
    def measure(context: Context) -> Figures:
        found: Figures = {}
        for objective in studies.OBJECTIVES:
            (context.folder / objective).mkdir()
            with opened(storage, context.folder / objective) as open_storage:
                found |= _run(storage, objective, open_storage, context.sizes[objective])
        return found

    return measure


def _run(storage: str, objective: str, open_storage: Callable[[], Any], trials: int) -> Figures:
    study = studies.new_study(objective, open_storage())
    fork = multiprocessing.get_context("fork")
    barrier, left = fork.Barrier(PROCESSES), fork.Value("q", trials)
    processes = [fork.Process(target=_work, args=(objective, open_storage, barrier, left)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a process ended with exit code {process.exitcode}")
    return studies.figures(storage, objective, study, trials)


VARIANTS: Final = tuple(
    Variant(name=shown, settings=f"two processes; {SETTINGS[storage]}", measure=_measure(storage))
    for storage, shown in studies.STORAGES.items()
)
