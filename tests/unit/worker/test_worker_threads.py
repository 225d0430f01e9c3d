"""The threads of a worker: an error in a step costs that step, and a thread that can't go on ends the worker."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from waiting import DEADLINE_S

from mqtune.core.errors import BrokerUnavailable
from mqtune.worker import guarded


def test_a_step_that_fails_is_logged_and_the_next_one_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[int] = []

    def fail(error: Exception) -> None:
        raise error

    thread = guarded(
        "counts",
        lambda: [
            lambda: taken.append(1),
            lambda: fail(MemoryError("no room")),
            lambda: taken.append(2),
            lambda: fail(BrokerUnavailable("closing")),
            lambda: taken.append(3),
        ],
    )
    thread.start()
    thread.join(DEADLINE_S)

    assert taken == [1, 2, 3]
    (record,) = caplog.records
    assert "a step of the thread counts failed" in record.getMessage()
    assert "no room" in caplog.text


@pytest.mark.parametrize(
    "thread", ["guarded('t', lambda: [fail], vital=True)", "guarded('t', fail)"], ids=["vital step", "steps themselves"]
)
def test_a_thread_that_cannot_go_on_ends_its_process_with_an_error(thread: str) -> None:
    source = f"""
import time
from mqtune.worker.threads import guarded
def fail():
    raise MemoryError("no room")
{thread}.start()
time.sleep({DEADLINE_S})
"""

    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == os.EX_SOFTWARE
    assert "the thread t can't go on, so this worker ends" in ended.stderr
    assert "no room" in ended.stderr
