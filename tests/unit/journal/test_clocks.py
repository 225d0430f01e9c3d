"""One clock for all machines: what each machine's own says, and when it is set, changes no order, no time and no decision."""

from __future__ import annotations

import dataclasses
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from book import Book
from click.testing import CliRunner
from simulation import Simulation, noisy_curve

import mqtune.driver.intake
from mqtune import ASHA, FIFO, PBT, HyperBand, MedianStopping, PromotionASHA, Simulated, uniform
from mqtune.cli import command
from mqtune.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event, Reports, decode_event
from mqtune.driver import Limits
from mqtune.journal import JOURNAL_FILE, ServerClock
from mqtune.schedulers import Scheduler

HOUR_S = 3600.0


class Times:
    """A server's clock, this machine's, and its monotonic one."""

    def __init__(self) -> None:
        self.server, self.own, self.monotonic = 1_700_000_000.25, 5.0, 1000.0
        self.machine = SimpleNamespace(time=lambda: self.own, monotonic=lambda: self.monotonic)
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


@pytest.fixture
def clock(times: Times) -> ServerClock:
    return ServerClock(times, times.machine)  # type: ignore[arg-type]


def test_the_time_is_the_servers_and_setting_this_machines_clock_changes_nothing(
    times: Times, clock: ServerClock
) -> None:
    assert clock.time() == pytest.approx(times.server)
    for step_s in (0, -5 * HOUR_S, 5 * HOUR_S):
        times.own += step_s
        times.pass_(3.5)
        assert clock.time() == pytest.approx(times.server)


def test_the_server_is_asked_now_and_then_and_not_each_time(times: Times, clock: ServerClock) -> None:
    for _ in range(100):
        clock.time()
    assert times.asked == 1

    # This machine slept, which its monotonic clock may not have noticed.
    times.server += HOUR_S
    times.pass_(HOUR_S)

    assert clock.time() == pytest.approx(times.server)
    assert times.asked == 2


def test_a_slow_answer_moves_nothing_that_it_does_not_show_to_be_wrong(
    times: Times, clock: ServerClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = clock.time()
    ask, halves = times.time, iter([4.0, 1.0])

    def slowly() -> tuple[int, int]:
        times.pass_(next(halves))
        answer = ask()
        times.pass_(next(halves))
        return answer

    monkeypatch.setattr(times, "time", slowly)
    times.pass_(HOUR_S)

    assert clock.time() - before == pytest.approx(HOUR_S + 5.0)
    assert times.asked == 2


def test_while_no_server_answers_its_last_answer_counts_and_without_one_this_machines_clock(
    times: Times, clock: ServerClock
) -> None:
    times.is_away = True
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


# Decisions.


class Workers:
    """Workers whose clocks are hours off and step back in the middle of each attempt: what a driver reads of them."""

    def __init__(self) -> None:
        self.shifted = 0

    def shift_s(self, attempt: str, number: int) -> float:
        """By how much an attempt's clock is off at its n-th report, which comes with a clock that was set back."""
        self.shifted += 1
        off = (zlib.crc32(attempt.encode()) % 11 - 5) * HOUR_S
        return off - number // 3 * HOUR_S

    def decode(self, data: bytes, *more: Any) -> Event | None:
        event = decode_event(data, *more)
        if isinstance(event, Reports):
            segments = [
                (
                    trial,
                    attempt,
                    first,
                    [(at + self.shift_s(f"{trial}-{attempt}", n), *rest) for n, (at, *rest) in numbered],
                )
                for trial, attempt, first, reports in event.segments
                for numbered in [list(enumerate(reports, first))]
            ]
            return Reports(segments)  # type: ignore[arg-type]
        if isinstance(event, AttemptStarted | CheckpointSaved) or (
            isinstance(event, AttemptEnded) and not event.cursor
        ):
            last = 0 if isinstance(event, AttemptStarted) else 9
            return dataclasses.replace(event, at=event.at + self.shift_s(f"{event.trial}-{event.attempt}", last))
        return event


SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "fifo": FIFO,
    "asha": lambda: ASHA(9),
    "promotion": lambda: PromotionASHA(9, reduction_factor=2),
    "hyperband": lambda: HyperBand(9, reduction_factor=2),
    "median": lambda: MedianStopping(grace_period=2, min_samples=2),
    "pbt": lambda: PBT(2, {"lr": uniform(0, 1)}, quantile_fraction=0.5),
}


def run(scheduler: Callable[[], Scheduler], *, lockstep: bool) -> list[Event]:
    simulation = Simulation(
        Simulated(noisy_curve(11, seed=4), slots=3, seed=4, life_s=lambda rng: rng.expovariate(1 / 60), away_s=3.0),
        scheduler=scheduler,
        limits=Limits(max_trials=12),
        lockstep=lockstep,
        max_failures=2,
    )
    return simulation.run().events()


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_times_that_are_hours_off_and_step_back_change_no_decision_and_no_order(
    name: str, lockstep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, workers = run(SCHEDULERS[name], lockstep=lockstep), Workers()
    monkeypatch.setattr(mqtune.driver.intake, "decode_event", workers.decode)

    wrong = run(SCHEDULERS[name], lockstep=lockstep)

    assert wrong == right
    assert workers.shifted


# Looking.


def test_what_an_attempt_has_run_is_told_by_the_clock_of_its_events(tmp_path: Path) -> None:
    """What it ran until its newest report, by that clock, and since then by this machine's."""
    book = Book(tmp_path / "e")
    book.stage("0001")
    for number in range(90):
        book.report("0001", {"loss": float(number)})
    an_hour_ago = time.time() - HOUR_S
    os.utime(book.save() / JOURNAL_FILE, (an_hour_ago, an_hour_ago))

    shown = CliRunner().invoke(command, [str(book.folder), "1"]).output

    assert "1 h 02 min" in shown or "1 h 01 min" in shown
