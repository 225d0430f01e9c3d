"""A stop rule that is changed when an experiment goes on applies from then on, and to nothing that was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench import Bench

from mqtune.core.events import DriverStarted
from mqtune.core.trial import AttemptEnd, Report, Trial, TrialStatus


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, max_trials=1, slots=1)


def go_on(bench: Bench, stop: Any) -> Bench:
    """Have another driver go on, with this rule."""
    bench.driver.close()
    bench.options["stop"] = stop
    bench.begin()
    return bench.step()


def test_a_rule_that_is_new_ends_no_trial_by_what_it_reported_before(bench: Bench) -> None:
    bench.step().start().report("0001", 0.9, 0.5, 0.1)
    bench.end(end=AttemptEnd.LOST)
    bench.step().start().report("0001", 0.8)

    go_on(bench, {"training_iteration": 2})

    first, second = bench.of(DriverStarted)
    assert (first.changes, second.changes.keys(), second.cursor) == ({}, {"stop"}, bench.driver.cursor)
    trial = bench.trial()
    assert (trial.status, trial.reports, trial.late_reports) == (TrialStatus.RUNNING, 4, 0)
    bench.report("0001", 0.7)
    assert bench.trial().decision is not None


@pytest.mark.parametrize("seen", [True, False], ids=["the first driver saw it", "it came while nobody drove"])
def test_a_rule_that_is_new_cuts_no_results_backwards(bench: Bench, *, seen: bool) -> None:
    bench.step().start().report("0001", 0.9)
    if not seen:
        bench.driver.close()
    bench.is_away = not seen
    bench.report("0001", 0.5, 0.4, 0.3, 0.2)
    bench.is_away = False
    go_on(bench, lambda trial, report: report.sequence >= 2)

    assert (bench.trial().reports, bench.trial().late_reports, bench.trial().best_value) == (5, 0, 0.2)
    bench.report("0001", 0.1)
    bench.report("0001", 0.05)
    bench.end()
    assert (bench.trial().reports, bench.trial().late_reports) == (6, 1)
    assert bench.trial().status is TrialStatus.COMPLETED
    assert bench.replayed().trials[bench.trial().id].reports == 6


def test_a_rule_that_is_taken_away_leaves_what_it_has_ended_and_ends_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_trials=2, slots=2, stop={"training_iteration": 2})
    bench.step().start("0001").start("0002").report("0001", 0.9, 0.8)
    bench.end("0001")
    assert bench.trial("0001").status is TrialStatus.COMPLETED

    go_on(bench, None)

    bench.report("0002", 0.9, 0.8, 0.7)
    assert bench.trial("0002").decision is None
    assert bench.trial("0001").status is TrialStatus.COMPLETED
    assert bench.replayed().trials[bench.trial("0002").id].reports == 3


def test_a_function_whose_code_was_changed_decides_nothing_that_an_earlier_driver_let_pass(bench: Bench) -> None:
    """Nobody can tell by its description that it is another one."""
    limit = 100

    def rule(trial: Trial, report: Report) -> bool:
        return report.sequence >= limit

    bench.options["stop"] = rule
    go_on(bench, rule)
    bench.start().report("0001", 0.9, 0.8, 0.7)
    bench.end(end=AttemptEnd.LOST)
    bench.step().start()
    limit = 2

    go_on(bench, rule)

    assert (bench.trial().status, bench.trial().reports) == (TrialStatus.RUNNING, 3)
