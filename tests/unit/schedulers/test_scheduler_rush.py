"""RUSH against ASHA, and which candidates are no measure."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st
from scheduler_table import Table, bound

from mqtune import ASHA, RUSH
from mqtune.core.trial import CONTINUE, Action, Report


def rush(candidates: int = 1, **arguments: Any) -> Table:
    return Table(bound(RUSH(27, candidates, **arguments)))


def test_a_candidate_that_stops_or_is_abandoned_is_no_measure() -> None:
    at = rush(2)
    at.report(0, 1, 3)
    # It stops, as any trial would.
    assert at.report(1, 1, 4).action is Action.STOP
    for number in range(2, 6):
        at.report(number, 1, 9)
    at.abandon(0)

    assert at.report(6, 1, 4) is CONTINUE


@given(
    reports=st.lists(st.tuples(st.integers(0, 14), st.integers(1, 5), st.integers(0, 9)), max_size=150),
    candidates=st.integers(1, 5),
)
def test_every_decision_is_the_one_that_the_rule_gives(reports: list[tuple[int, int, int]], candidates: int) -> None:
    """It stops the trials that ASHA would stop, and each trial that a candidate has beaten at the rung."""
    at, asha = rush(candidates, reduction_factor=1.5), bound(ASHA(27, reduction_factor=1.5))
    levels = at.scheduler.rung_levels
    for number in range(15):
        at.stage(number)
    times: dict[int, int] = {}
    entered: dict[int, set[float]] = {}
    bars: dict[float, list[int]] = {}
    over: set[int] = set()

    for number, step, loss in reports:
        now = times[number] = times.get(number, 0) + step
        if number in over:
            continue
        trial = at.trials[str(number)]
        metrics = {"training_iteration": now, "loss": loss}
        plain = asha.on_report(trial, Report(trial.id, 1, now, 0.0, metrics)).action.name
        level = max((level for level in levels if level <= now), default=0)
        if plain == "CONTINUE" and level and level not in entered.setdefault(number, set()):
            entered[number] |= {each for each in levels if each <= level}
            if number < candidates:
                bars.setdefault(level, []).append(loss)
            elif loss > min(bars.get(level, [loss])):
                plain = "STOP"

        assert at.report(number, now, loss).action.name == plain
        if plain != "CONTINUE":
            over.add(number)
