"""What a killed worker left is found by its mark and killed; what belongs to anybody else is not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest
from waiting import eventually, lives

from mqtune.worker import MARK, end_leftovers

#: Tells its mark, as a worker that starts a zygote does, and sleeps.
WORKER = "import time; from mqtune.core.machine import describe_process as me; print(me(), flush=True); time.sleep(60)"
SLEEPER = ("-c", "import time; time.sleep(60)")

Start = Callable[..., psutil.Process]


def is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except psutil.Error:
        # Another worker that starts on this machine was quicker.
        return True


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python process, with a mark."""
    with contextlib.ExitStack() as stack:

        def begin(mark: str, *command: str) -> psutil.Process:
            environment = {**os.environ, MARK: mark}
            process = subprocess.Popen([sys.executable, *command], env=environment, start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            found = psutil.Process(process.pid)
            eventually(lambda: is_marked(found, mark))
            return found

        yield begin


def test_what_a_worker_left_is_killed_once_that_is_dead_and_not_before(start: Start) -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        left = start(worker.stdout.readline().strip(), *SLEEPER)
        assert left.pid not in end_leftovers(5)
        assert lives(left)

        # It is a zombie from here on.
        worker.kill()
        eventually(lambda: not lives(psutil.Process(worker.pid)))

        end_leftovers(5)
        eventually(lambda: not lives(left))


@pytest.mark.parametrize("mark", ["", "12", "process 1 on elsewhere (7a.2)", "none of these"])
def test_what_is_not_known_to_be_a_dead_workers_is_left_alone(start: Start, mark: str) -> None:
    other = start(mark, *SLEEPER)

    assert other.pid not in end_leftovers(5)
    assert lives(other)
