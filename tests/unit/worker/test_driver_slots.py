"""A worker's driver slots: what is not signed for the worker is never taken, and looked at seldom."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from impaired import nothing_impaired
from waiting import eventually

from mqtune.core.timing import Timing
from mqtune.journal import Signed
from mqtune.worker import DriverSlots


class Server:
    """Submissions of a server on which one waits that nobody has signed; it counts what it is asked."""

    back_at = -math.inf

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.refusals: list[str] = []

    def due(self) -> list[str]:
        self.asked["due"] += 1
        return ["evil"]

    def signed(self, name: str) -> Signed:
        self.asked["signed"] += 1
        return Signed(name, b"no description", "no signature")

    def refuse(self, signed: Signed, worker: str, reason: str) -> bool:
        self.refusals.append(f"{signed.name} by {worker}: {reason}")
        return len(self.refusals) == 1

    def heal_some(self, count: int, serves: Callable[[str], bool]) -> None:
        self.asked["healed"] += count

    def take(self, name: str, worker: str, token: str) -> None:
        self.asked["take"] += 1


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def timing() -> Timing:
    return Timing(look_at_scripts_s=0.001)


@pytest.fixture
def slots(server: Server, timing: Timing) -> Iterator[DriverSlots]:
    none: Any = SimpleNamespace()
    submissions: Any = server
    found = DriverSlots(
        submissions,
        slots=1,
        worker="w@h",
        experiments="*",
        broker="",
        key="the key",
        logs=none,
        scratch=none,
        impairments=nothing_impaired(),
        timing=timing,
    )
    found.start()
    yield found
    found.close()


@pytest.mark.usefixtures("slots")
def test_it_is_refused_with_the_reason_and_then_passed_over(server: Server) -> None:
    eventually(lambda: server.asked["due"] > 50)

    assert server.refusals == ["evil by w@h: it is not signed with the MQTUNE_CODE_KEY of the worker"]
    assert server.asked["signed"] == 1
    assert server.asked["take"] == 0


@pytest.mark.parametrize("timing", [Timing(look_at_scripts_s=0.001, lock_s=0.01)])
@pytest.mark.usefixtures("timing")
def test_it_is_looked_at_again_after_a_while_and_never_taken(
    server: Server, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("slots")

    eventually(lambda: server.asked["signed"] > 3)

    assert server.asked["take"] == 0
    assert caplog.messages == [
        "submission evil is left to other workers: it is not signed with the MQTUNE_CODE_KEY of the worker"
    ]
