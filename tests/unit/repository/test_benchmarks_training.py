"""The figures of a real training come from the lines of its trials, and from nothing else of a system."""

from __future__ import annotations

import pytest

from benchmarks.training.lines import Line
from benchmarks.work.training import figures


def trial(number: int, began: float, epochs: list[float], *, setup_s: float = 0.0) -> list[Line]:
    """Return the lines of a trial, given its beginning and the lengths of its epochs."""
    lines = [Line(number, "begin", began, began)]
    at = began + setup_s
    for length in epochs:
        lines.append(Line(number, "epoch", at, at + length))
        at += length
    return [*lines, Line(number, "end", at, at)]


def test_the_ideal_is_the_epochs_own_time_from_the_first_report_on_over_the_slots() -> None:
    lines = trial(0, 10.0, [1.0, 1.0]) + trial(1, 10.0, [2.0, 2.0])
    found = figures(lines, 4.0, slots=2, trials=2)
    # After 11.0 there are one second of the first trial and three of the second, until 14.0.
    assert found == {"wall_over_ideal": pytest.approx(3.0 / (4.0 / 2)), "first_report_s": 7.0}


def test_from_trial_to_trial_is_the_time_in_a_slot_until_the_first_epoch() -> None:
    lines = [
        *trial(0, 0.0, [1.0]),
        *trial(1, 0.0, [5.0]),
        *trial(2, 1.2, [1.0], setup_s=0.3),
        *trial(3, 2.7, [1.0], setup_s=0.3),
    ]
    assert figures(lines, 0.0, slots=2, trials=4)["to_epoch_ms"] == pytest.approx(500.0)
