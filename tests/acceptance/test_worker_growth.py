"""A worker that serves several experiments for long: no zombie is left to it, and it doesn't grow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil
from running import running_worker
from waiting import eventually

import mqtune
from mqtune.core.trial import TrialStatus

#: A shape that no other test's worker has.
SLOT = mqtune.Resources(cpus=9)
OPTIONS = ("--gpus", "0", "--slots", "2", "--cpus", "18")
#: They take turns in the slots, and import nothing that takes memory.
TRAINABLES = {
    "steady": {"x": mqtune.uniform(0, 1)},
    "as_long_as_it_says": {"seconds": 0.0},
    "counts": {"steps": 2, "step_s": 0.0, "saves": False},
}
#: Enough to show what each trial, or each change of experiment, leaves behind: 60 descriptors, or 6 MB where it is 100 kB.
FIRST, MORE = 24, 60
#: The bytes by which a worker's memory may grow meanwhile: 5 kB for each trial, and 4 MB for the allocator.
GROWTH_BYTES = MORE * 5_000 + 4_000_000


def size_of(worker: psutil.Process) -> tuple[int, int, int]:
    """Descriptors, with its zygotes', threads, and bytes of memory."""
    descriptors = sum(process.num_fds() for process in (worker, *worker.children()))
    return descriptors, worker.num_threads(), worker.memory_info().rss


def zombies_below(worker: psutil.Process) -> list[psutil.Process]:
    found = []
    for process in worker.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def run_by_turns(tune: Callable[..., mqtune.Tuner], trials: int) -> None:
    with contextlib.ExitStack() as stack:
        tuners = [tune(*each, resources=SLOT, max_trials=trials // len(TRAINABLES)) for each in TRAINABLES.items()]
        for tuner in tuners:
            stack.callback(tuner.close)

        def all_done() -> bool:
            for tuner in tuners:
                if not tuner.is_finished:
                    tuner.step(0.01)
            return all(tuner.is_finished for tuner in tuners)

        eventually(all_done, 200)
        assert [len(tuner.get_trials(TrialStatus.COMPLETED)) for tuner in tuners] == [trials // len(TRAINABLES)] * 3


def test_many_short_trials_of_three_experiments_leave_no_zombie_and_a_worker_that_has_not_grown(
    tune: Callable[..., mqtune.Tuner], broker: str, tmp_path: Path
):
    with running_worker(broker, tmp_path / "worker.log", *OPTIONS, name="growing") as process:
        worker = psutil.Process(process.pid)
        run_by_turns(tune, FIRST)
        before = size_of(worker)

        run_by_turns(tune, MORE)

        # A process that has just ended may not be reaped yet.
        eventually(lambda: not zombies_below(worker), 5)
        after = size_of(worker)
    most = before[0] + 20, before[1] + 2, before[2] + GROWTH_BYTES
    assert [now <= limit for now, limit in zip(after, most, strict=True)] == [True] * 3
