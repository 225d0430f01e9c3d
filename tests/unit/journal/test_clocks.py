"""One clock for all machines: what each machine's own says, and when it is set, changes no order, no time and no decision."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import redis

from mqtune.journal import ServerClock

HOUR_S = 3600.0


class Times:
    """A server's clock, this machine's, and its monotonic one."""

    def __init__(self) -> None:
        self.server, self.own, self.monotonic = 1_700_000_000.25, 5.0, 1000.0
        self.clock = ServerClock(self, SimpleNamespace(time=lambda: self.own, monotonic=lambda: self.monotonic))  # type: ignore[arg-type]
        self.is_away = False
        self.asked = 0

    def pass_(self, seconds: float) -> None:
        self.server += seconds
        self.own += seconds
        self.monotonic += seconds

    # What the clock asks of its client.
    def time(self) -> tuple[int, int]:
        self.asked += 1
        if self.is_away:
            raise redis.ConnectionError("away")
        whole = int(self.server)
        return whole, round((self.server - whole) * 1e6)


@pytest.fixture
def times() -> Times:
    return Times()


def test_the_time_is_the_servers_and_setting_this_machines_clock_changes_nothing(times: Times) -> None:
    assert times.clock.time() == pytest.approx(times.server)
    for step_s in (0, -5 * HOUR_S, 5 * HOUR_S):
        times.own += step_s
        times.pass_(3.5)
        assert times.clock.time() == pytest.approx(times.server)


def test_while_no_server_answers_its_last_answer_counts_or_else_this_machines_clock(times: Times) -> None:
    clock, times.is_away = times.clock, True
    assert clock.time() == pytest.approx(times.own)
    times.is_away = False
    times.pass_(HOUR_S)
    clock.time()
    asked = times.asked
    times.is_away = True
    times.own -= HOUR_S
    times.pass_(HOUR_S)

    assert clock.time() == pytest.approx(times.server)
    assert clock.time() == pytest.approx(times.server)
    assert times.asked == asked + 1
