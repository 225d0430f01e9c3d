"""How far an experiment goes: numbers, budgets, and rules that end it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Final

import pytest
from bench import Bench

import mqtune
from mqtune import TimeLimit
from mqtune.core.errors import BrokerUnavailable, ConfigurationError
from mqtune.core.events import DecisionTaken, Requested
from mqtune.core.timing import Timing
from mqtune.core.trial import Intent, TrialStatus
from mqtune.driver import Requeue
from mqtune.driver.ports import Appetite, DriverHost

TIMING: Final = Timing()
KEEP_LOCK_S: Final = TIMING.keep_lock_s

ONE, TWO, THREE = "0001", "0002", "0003"


def statuses(bench: Bench) -> list[str]:
    return [trial.status.name for trial in bench.experiment.trials.values()]


@pytest.mark.parametrize(
    ("group", "name", "value", "says"),
    [
        (mqtune.RunOptions, "max_concurrent", 0, "is not a whole number of at least 1"),
        (mqtune.RunOptions, "journal_mb", 0, "must be above 0"),
        (mqtune.Process, "timeout_s", 0, "must be above 0"),
        (mqtune.Process, "working_dir", "elsewhere", "is neither"),
        (mqtune.Process, "keep_working_dir", "elsewhere", "is none of"),
        (mqtune.Checkpoints, "store", " ", ": give a folder"),
        (mqtune.Checkpoints, "store", 5, ": give a folder"),
        (mqtune.Failures, "fail_fast", "RAISE", ""),
        (mqtune.Failures, "fail_fast", 2, ""),
        (mqtune.Failures, "on_driver_loss", "panic", "is none of 'continue', 'finish', 'stop'"),
        (mqtune.Failures, "driver_loss_grace_s", 0, "must be above 0"),
        (mqtune.Failures, "on_invalid_report", "ignore", "is neither"),
        (mqtune.Failures, "metric_required", "never", "is neither"),
    ],
)
def test_an_invalid_option_is_named_with_its_value(group: type, name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}={value!r} ?{says}"):
        group(**{name: value})


def test_the_time_budget_is_wall_clock_and_stops_trials_that_say_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stop=TimeLimit(100.0, count="driver_time"), max_trials=9).step().start(ONE).start(TWO)

    bench.clock.now += 99.0
    bench.step()
    assert bench.told(ONE) == ""
    bench.clock.now += 1.0
    bench.step()

    assert (bench.told(ONE), bench.told(TWO)) == ("stop", "stop")
    bench.end(ONE).end(TWO)
    assert bench.driver.is_finished
    assert statuses(bench) == ["EARLY_STOPPED", "EARLY_STOPPED"]
    assert bench.trial().reason == bench.driver.over == "the time limit of the driver of 100 s is over"
    assert {event.by for event in bench.of(DecisionTaken)} == {"stop rule"}


def test_the_first_failure_that_is_not_tried_again_stops_all_others_when_asked_to(tmp_path: Path) -> None:
    bench = Bench(tmp_path, fail_fast=True, max_failures=1, max_trials=9).step().start(ONE).start(TWO)
    bench.fail(ONE)
    assert (bench.driver.over, bench.trial(ONE).status) == ("", TrialStatus.QUEUED)

    bench.start(ONE).fail(ONE)
    bench.end(TWO)

    assert bench.driver.is_finished
    assert statuses(bench) == ["FAILED", "EARLY_STOPPED"]
    assert bench.driver.over == "trial 0001 failed: ValueError: no luck"
    assert bench.driver.failure is None


def test_no_more_trials_run_at_once_than_were_asked_for(tmp_path: Path) -> None:
    assert len(Bench(tmp_path, max_concurrent=1, max_trials=9).step().experiment.trials) == 1


def keeps_its_lock(bench: Bench) -> Bench:
    bench.clock.now += KEEP_LOCK_S
    return bench.step()


def test_no_trial_begins_while_the_journal_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path, max_trials=9, journal_mb=0.01).step().start(ONE).start(TWO)
    assert bench.report(ONE, 0.5) == [""]

    while bench.report(ONE, *[0.5] * 9) == [""]:
        keeps_its_lock(bench)
    keeps_its_lock(bench)
    bench.end(TWO)

    full = r"its journal is full \(journal_mb\), 0.01\d* MB used of 0.01 MB: no trial begins, and report\(\) waits"
    assert [re.sub(r"journal is (nearly )?full.*", r"\1full", text) for text in caplog.messages] == [
        "its nearly full",
        "its full",
    ]
    assert re.match(
        full + rf"; raise journal_mb: mqtune set {bench.experiment.name} journal_mb=N; .*mqtune end", caplog.messages[1]
    )
    assert re.fullmatch(full, bench.driver.waiting_for)
    assert len(bench.experiment.trials) == 2

    bench.worker.request(Requested(id="set", action="set", trial="", arguments={"journal_mb": 9}, by="me", at=1.0))
    bench.step()

    assert bench.report(ONE, 0.5) == [""]
    assert bench.driver.waiting_for == ""
    assert len(bench.experiment.trials) == 3
    assert "its journal has room again" in caplog.messages[-1]
    bench.begin()
    assert keeps_its_lock(bench).report(ONE, 0.5) == [""], "the next driver has forgotten it"


def test_where_nothing_runs_either_a_driver_whose_journal_is_full_says_so_and_can_be_ended(tmp_path: Path) -> None:
    bench = keeps_its_lock(Bench(tmp_path, max_trials=9, journal_mb=0.0001).step())
    for trial in list(bench.experiment.trials):
        bench.start(trial).end(trial)
    assert (bench.experiment.live, bench.driver.is_finished) == (0, False)

    assert bench.step(3).driver.waiting_for.startswith("its journal is full")
    bench.worker.request(Requested(id="end", action="end", trial="", arguments={"now": True}, by="me", at=1.0))

    assert bench.step().driver.is_finished


def test_a_driver_waits_for_its_server_as_long_as_the_times_of_its_run_say() -> None:
    began = time.monotonic()

    with pytest.raises(BrokerUnavailable):
        # Nobody listens there.
        mqtune.Tuner.attach(
            "away", backend="redis://127.0.0.1:1/0", run=mqtune.RunOptions(timing=Timing(patience_s=0.0))
        )

    # Usually it waits for minutes.
    assert time.monotonic() - began < 60.0


def test_a_driver_that_has_started_all_trials_wants_no_slot_until_one_is_requeued(tmp_path: Path) -> None:
    hosts: list[DriverHost] = []

    def note(host: DriverHost) -> tuple[()]:
        hosts.append(host)
        return ()

    driven = Bench(tmp_path, max_trials=1, services=note)
    assert hosts[-1].appetite() == Appetite(None, has_more=True)
    driven.step().start(ONE)
    assert hosts[-1].appetite() == Appetite(None, has_more=False)

    driven.driver.carry_out(Requeue(driven.trial(), "others wait", Intent.GIVE_WAY))
    assert hosts[-1].appetite().has_more
    driven.driver.stop_all("enough", by="user", spare_running=True)

    assert not hosts[-1].appetite().has_more
