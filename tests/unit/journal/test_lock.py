from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final

import pytest

from mqtune.core.errors import NameTaken
from mqtune.core.machine import process_mark
from mqtune.core.timing import Timing
from mqtune.driver import Interrupts
from mqtune.journal import MemoryJournal, MemoryServer, take_lock

TIMING: Final = Timing()
KEEP_LOCK_S: Final = TIMING.keep_lock_s
LOCK_S: Final = TIMING.lock_s


@pytest.fixture
def slept() -> list[float]:
    """For how long somebody has slept."""
    return []


@pytest.fixture
def server(slept: list[float]) -> MemoryServer:
    """A server whose time passes while somebody sleeps."""
    return MemoryServer(lambda: 1000.0 + sum(slept))


def held_by(server: MemoryServer, description: str) -> MemoryJournal:
    journal = MemoryJournal(server, "x")
    journal.lock("first", description, LOCK_S)
    return journal


def described(pid: int, mark: str = "") -> str:
    return f"process {pid} on {socket.gethostname()} ({mark or process_mark()})"


PLACE, BEGAN = process_mark().split(".")


#: Of drivers that died on this machine, one has another process's number. Nothing is known of the others.
DEAD = {"gone": described(2**22 + 1), "another's": described(os.getpid(), f"{PLACE}.{int(BEGAN) - 1}")}
UNKNOWN = ["", "somebody", "process x on y (z)", "process 1 on elsewhere pid:[1]"]


@pytest.mark.parametrize(
    ("description", "least_s", "most_s"),
    [*((dead, 0.0, 0.0) for dead in DEAD.values()), *((text, LOCK_S, LOCK_S + KEEP_LOCK_S) for text in UNKNOWN)],
    ids=[*DEAD, *UNKNOWN],
)
def test_a_dead_local_driver_is_replaced_immediately_and_another_after_its_lock(
    server: MemoryServer, slept: list[float], description: str, least_s: float, most_s: float
) -> None:
    held_by(server, description)

    take_lock(MemoryJournal(server, "x"), "second", sleep=slept.append)

    assert least_s <= sum(slept) <= most_s


def test_a_living_driver_on_this_machine_is_not_waited_for(server: MemoryServer, slept: list[float]) -> None:
    held_by(server, described(os.getpid()))

    with pytest.raises(NameTaken, match=rf"driven by process {os.getpid()} on .*, which took it 0 s ago"):
        take_lock(MemoryJournal(server, "x"), "second", sleep=slept.append)

    assert slept == []


@pytest.mark.parametrize(
    "description",
    [
        "process 1 on elsewhere pid:[1]",
        # Machines made from one image, and containers with their host's network, may have one name, and no process in common.
        described(2**22 + 1, "0123456789abcdef.77"),
    ],
    ids=["of another name", "of the same name"],
)
def test_a_driver_elsewhere_is_not_displaced(server: MemoryServer, slept: list[float], description: str) -> None:
    first = held_by(server, description)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        first.lock("first", "", LOCK_S)

    with pytest.raises(NameTaken, match=re.escape(description)):
        take_lock(MemoryJournal(server, "x"), "second", sleep=sleep)

    assert len(slept) == 1
    assert server.experiments["x"].holder == "first"


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    interrupts = Interrupts()
    with interrupts.handled():
        yield interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("comes", ["before", "meanwhile"])
def test_a_signal_ends_the_wait_for_a_lock_at_once(
    server: MemoryServer, interrupts: Interrupts, number: signal.Signals, comes: str, capfd: pytest.CaptureFixture[str]
) -> None:
    held_by(server, "process 1 on elsewhere pid:[1]")
    began = time.monotonic()
    interrupts.sleep(0.01)
    assert time.monotonic() - began >= 0.01
    timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), number))
    timer.start() if comes == "meanwhile" else os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        take_lock(MemoryJournal(server, "x"), "second", sleep=interrupts.sleep)

    timer.join() if comes == "meanwhile" else None
    assert time.monotonic() - began < KEEP_LOCK_S
    assert server.experiments["x"].holder == "first"
