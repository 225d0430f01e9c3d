"""How a worker waits for the other seats of a gang, and the address by which these reach it."""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import Resources
from mqtune.core.trial import TrialId
from mqtune.journal import Assignment, Claim, Grant
from mqtune.services.gangs.address import ADVERTISE, Address
from mqtune.services.gangs.worker import Gangs, variables_of
from mqtune.services.settings import worker_settings
from mqtune.worker import RunResult
from mqtune.worker.ports import AttemptHere

LEASE_S, SEAT_S = 7.0, 30.0
GRANT = Grant(Assignment({}, task_plan="2:any:1 CPU"), 0.0, "10.0.0.7:4123")


class Attempt:
    """The second of two seats, which is told to end after a number of waits, and its claims."""

    def __init__(self, *answers: Any, seats: int = 2, ends_after: int = 1000) -> None:
        self.answers, self.ends_after = [*answers], ends_after
        self.resources = Resources(seats=seats)
        self.claim = Claim(TrialId("0001~1"), 1, "token")
        self.sent: list[tuple[float, str]] = []
        self.waits = 0

    def wait(self, _: float) -> bool:
        self.waits += 1
        return self.waits >= self.ends_after

    def send(self, lease_s: float, address: str = "") -> Any:
        self.sent.append((lease_s, address))
        return self.answers.pop(0)

    @property
    def here(self) -> AttemptHere:
        return cast("AttemptHere", self)


def test_an_attempt_with_one_seat_is_left_to_the_worker() -> None:
    attempt = Attempt(seats=1)

    gangs = Gangs(LEASE_S, SEAT_S)

    assert gangs.claim(attempt.here, attempt.send) is None
    assert (attempt.sent, gangs.variables(attempt.here)) == ([], {})


def test_a_seat_is_held_until_the_others_are_taken_and_its_process_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADVERTISE, "10.0.0.8")
    attempt, gangs = Attempt("reserved", "reserved", GRANT), Gangs(LEASE_S, SEAT_S)

    assert gangs.claim(attempt.here, attempt.send) == GRANT

    address = attempt.sent[0][1]
    assert address.startswith("10.0.0.8:")
    assert attempt.sent == [(LEASE_S, address)] * 3
    with socket.socket() as other:
        port = int(address.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            other.bind(("", port))
        assert gangs.variables(attempt.here) == variables_of(1, 2, "10.0.0.7:4123")
        other.bind(("", port))


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("beside", RunResult(None, "not run: this worker has another seat of the same gang", goes_back=True)),
        ("after", RunResult(None, "not run: another gang comes first", goes_back=True)),
        ("taken", RunResult(None, "not run: taken")),
        ("revoked", RunResult(None, "not run: revoked")),
    ],
)
def test_a_refused_seat_says_why_and_returns_if_it_may_be_free_later(answer: str, result: RunResult) -> None:
    attempt = Attempt("reserved", answer)

    assert Gangs(LEASE_S, SEAT_S).claim(attempt.here, attempt.send) == result


@pytest.mark.parametrize("last", ["left", GRANT])
@pytest.mark.parametrize("is_told", [True, False])
def test_a_seat_is_given_back_in_time_or_when_it_is_to_end_before_its_gang_begins(last: Any, is_told: bool) -> None:
    attempt = Attempt("reserved", "reserved", "reserved", last, ends_after=3 if is_told else 1000)
    # Up to half as long again, by chance.
    now = iter([0.0, 1.0, 44.0, 45.0])
    clock: Any = SimpleNamespace(monotonic=lambda: 0.0 if is_told else next(now))

    gangs = Gangs(LEASE_S, SEAT_S, clock, spread=lambda: 1.0)

    result = gangs.claim(attempt.here, attempt.send)
    gangs.ended(attempt.here, RunResult(None, "its importer has died"))

    assert [lease_s for lease_s, _ in attempt.sent] == [LEASE_S] * 3 + [0]
    left = RunResult(None, "not run: its other seats were not taken in time", goes_back=True)
    assert result == (left if last == "left" else GRANT)


@pytest.mark.parametrize("seat_s", [0.0, -1.0, float("nan"), 1e9])
def test_a_time_for_which_no_seat_can_be_held_ends_the_start(seat_s: float) -> None:
    with pytest.raises(ConfigurationError, match="--hold-seats"):
        worker_settings({"broker": "redis://", "seat_s": seat_s})


def test_an_address_that_is_none_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADVERTISE, "http://here")
    with pytest.raises(ConfigurationError, match="'http://here' is no address"):
        worker_settings({"broker": "redis://"})


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_nobody_else_gets_the_port_before_it_is_given_up(family: socket.AddressFamily) -> None:
    if family is socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6 here")
    with contextlib.closing(socket.socket(family)) as other, contextlib.ExitStack() as kept:
        address = Address()
        kept.callback(address.give_up)
        to: Any = ("", int(address.text.rpartition(":")[2]))
        with pytest.raises(OSError, match="in use"):
            other.bind(to)
        address.give_up()
        other.bind(to)
