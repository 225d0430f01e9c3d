"""A worker that serves several experiments for long: no zombie is left to it, and it doesn't grow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import trainables_by_turns as by_turns
from running import running_worker
from waiting import eventually

import mqtune
from mqtune.core.trial import TrialStatus

#: A shape that no other test's worker has.
SLOT = mqtune.Resources(cpus=9)
OPTIONS = ("--gpus", "0", "--slots", "2", "--cpus", "18")
EXPERIMENTS = (by_turns.first, by_turns.second, by_turns.third)
#: Enough to show what each trial, or each change of experiment, leaves behind: 240 descriptors, or 6 MB where it is 25 kB.
FIRST, MORE = 60, 240
#: What a worker's memory may grow by meanwhile: 5 kB for each trial, and what an allocator takes at once.
GROWTH_BYTES = MORE * 5_000 + 4_000_000


class Size(NamedTuple):
    """What a worker has: descriptors, with its zygotes', threads, and bytes of memory."""

    descriptors: int
    threads: int
    memory: int


def size_of(worker: psutil.Process) -> Size:
    descriptors = sum(process.num_fds() for process in (worker, *worker.children()))
    return Size(descriptors, worker.num_threads(), worker.memory_info().rss)


def zombies_below(worker: psutil.Process) -> list[psutil.Process]:
    found = []
    for process in worker.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def with_numpy(worker: psutil.Process) -> list[psutil.Process]:
    """The worker, its zygotes and their spares, as far as they have loaded NumPy: some 14 MB in each."""
    everyone = (worker, *worker.children(recursive=True))
    return [each for each in everyone if any("numpy" in region.path for region in each.memory_maps())]


def run_by_turns(tune: Callable[..., mqtune.Tuner], trials: int) -> None:
    """Run trials of several experiments at once to their ends."""
    with contextlib.ExitStack() as stack:
        tuners = [tune(trainable, resources=SLOT, max_trials=trials // len(EXPERIMENTS)) for trainable in EXPERIMENTS]
        for tuner in tuners:
            stack.callback(tuner.close)

        def all_done() -> bool:
            for tuner in tuners:
                if not tuner.is_finished:
                    tuner.step(0.01)
            return all(tuner.is_finished for tuner in tuners)

        eventually(all_done, 200)
        ended = [trial.status for tuner in tuners for trial in tuner.get_trials()]
    assert ended == [TrialStatus.COMPLETED] * trials


def test_many_short_trials_of_three_experiments_leave_no_zombie_and_a_worker_that_has_not_grown(
    tune: Callable[..., mqtune.Tuner], broker: str, tmp_path: Path
):
    with running_worker(broker, tmp_path / "worker.log", *OPTIONS, name="growing") as process:
        worker = psutil.Process(process.pid)
        run_by_turns(tune, FIRST)
        # Nothing that they import on the way does it, and these trainables don't.
        assert with_numpy(worker) == []
        before = size_of(worker)

        run_by_turns(tune, MORE)

        # What has just ended may be on its way.
        eventually(lambda: not zombies_below(worker), 5)
        after = size_of(worker)
    assert after.descriptors <= before.descriptors + 20
    assert after.threads <= before.threads + 2
    assert after.memory <= before.memory + GROWTH_BYTES
