"""One driver divides a shared fleet for all; another does within seconds once that is killed, or frozen."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import redis
from fleets import worker
from running import HERE
from started import started
from waiting import eventually

from mqtune.core.codec import decode_value
from mqtune.core.events import busy_as
from mqtune.core.keys import SHARES
from mqtune.core.resources import Resources, queue_name
from mqtune.journal import Fleet, connect

SLOT: Final = Resources(cpus=7)
#: Longer than a test takes.
HOLD_S: Final = 600.0
#: For how long a driver's demand holds here; less than in truth, so that nobody waits long for the share of one that is gone.
DEMAND_S: Final = "6.0"
#: Within this another driver divides: what is promised, and a second for the look of this test and a busy machine.
TAKEN_OVER_S: Final = 5.0 + 1.0

Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def client(own_broker: str) -> Iterator[redis.Redis]:
    """A connection to a server whose fleet is a worker of six slots, who takes nothing."""
    with contextlib.closing(connect(own_broker)) as client:
        info = worker("six@h", queue=queue_name(SLOT), cpus=SLOT.cpus, slots=6)
        Fleet(client, patience_s=5).join(info, HOLD_S)
        yield client


@pytest.fixture
def start(own_broker: str, client: redis.Redis, tmp_path: Path) -> Iterator[Start]:
    """Start a driver of its own process that wants all slots, and wait until it has a share; it divides from then on."""
    with contextlib.ExitStack() as stack:

        def begin(name: str, url: str = own_broker) -> subprocess.Popen[bytes]:
            log = tmp_path / f"{name}.log"
            command = [sys.executable, str(HERE / "sharing_driver.py"), url, name, str(SLOT.cpus), DEMAND_S]
            process = stack.enter_context(started(command, {}, log, within_s=5))

            def is_there() -> bool:
                assert process.poll() is None, log.read_text()
                return bool(client.hexists(SHARES, f"of:{busy_as(name)}"))

            eventually(is_there, 60)
            return process

        yield begin


def limits(client: redis.Redis, *names: str) -> list[float]:
    """How many slots each may have."""
    kept = client.hmget(SHARES, [f"of:{busy_as(name)}" for name in names])
    return [decode_value(share).get("limit", 99.0) if share else -1.0 for share in kept]


def number(client: redis.Redis) -> bytes | None:
    """Under which number one driver divides now; None where none does."""
    found: bytes | None = client.hget(SHARES, "number")
    return found


def taken_over_s(client: redis.Redis, before: bytes | None) -> float:
    """How long it takes until another driver divides, and has published what each may have."""
    begin = time.monotonic()
    eventually(lambda: number(client) not in (before, None) and client.hexists(SHARES, "crews"), 60)
    return time.monotonic() - begin


def test_when_the_driver_that_divides_is_killed_or_frozen_another_does_and_shares_stay_right(
    client: redis.Redis, start: Start
) -> None:
    for name in ("a", "b"):
        start(name)
    killed = start("c")
    eventually(lambda: limits(client, "a", "b", "c") == [2, 2, 2], 30)
    of_killed = number(client)

    killed.kill()
    killed.wait()
    assert taken_over_s(client, of_killed) <= TAKEN_OVER_S
    eventually(lambda: limits(client, "a", "b", "c") == [3, 3, -1], 30)

    frozen = start("d")
    eventually(lambda: limits(client, "a", "b", "d") == [2, 2, 2], 30)
    of_frozen = number(client)
    frozen.send_signal(signal.SIGSTOP)
    try:
        assert taken_over_s(client, of_frozen) <= TAKEN_OVER_S
        eventually(lambda: limits(client, "a", "b", "d") == [3, 3, -1], 30)
        later = number(client)
    finally:
        frozen.send_signal(signal.SIGCONT)
    # It has no share any more, and asks for one, as one that comes new.
    eventually(lambda: limits(client, "a", "b", "d") == [2, 2, 2], 30)
    numbers = [int(each or 0) for each in (of_killed, of_frozen, later, number(client))]
    assert numbers == sorted(set(numbers))
