"""The figures of a real training come from the lines that its trials leave, and from nothing else of a system."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.training.lines import Line, append, read_lines
from benchmarks.work.training import ScriptRun, figures


def trial(
    number: int, began: float, epochs: list[float], *, pid: int, setup_s: float = 0.0, imports: int = 0
) -> list[Line]:
    """The lines of a trial that begins then, and has epochs of these lengths once it is set up."""
    lines = [Line(number, "begin", began, began, pid, 100)]
    at = began + setup_s
    for length in epochs:
        lines.append(Line(number, "epoch", at, at + length, pid, 100 + imports))
        at += length
    return [*lines, Line(number, "end", at, at, pid, 100 + imports)]


def test_the_ideal_is_the_epochs_own_time_from_the_first_report_on_over_the_slots() -> None:
    lines = trial(0, 10.0, [1.0, 1.0], pid=1) + trial(1, 10.0, [2.0, 2.0], pid=2)
    found = figures(lines, ScriptRun(4.0, 16.0, 0.0), slots=2, trials=2)
    # After 11.0 there are one second of the first trial and three of the second, until 14.0.
    assert found["wall_over_ideal"] == pytest.approx(3.0 / (4.0 / 2))
    assert found["script_over_ideal"] == pytest.approx(12.0 / (6.0 / 2))
    assert (found["first_report_s"], found["epochs"], found["trials"]) == (7.0, 4, 2)


def test_from_trial_to_trial_is_what_passes_in_a_slot_also_until_the_first_epoch() -> None:
    lines = [
        *trial(0, 0.0, [1.0], pid=1),
        *trial(1, 0.0, [5.0], pid=2),
        *trial(2, 1.2, [1.0], pid=1, setup_s=0.3, imports=7),
        *trial(3, 2.7, [1.0], pid=3, setup_s=0.3),
    ]
    found = figures(lines, ScriptRun(0.0, 6.0, 0.0), slots=2, trials=4)
    assert (found["to_trial_ms"], found["to_epoch_ms"]) == (pytest.approx(200.0), pytest.approx(500.0))
    assert found["trials_a_process"] == pytest.approx(4 / 3)
    assert (found["modules"], found["modules_later"]) == (7, 3.5)


def test_with_one_slot_the_second_trial_does_not_count_either() -> None:
    lines = trial(0, 0.0, [1.0], pid=1) + trial(1, 9.0, [1.0], pid=1) + trial(2, 10.1, [1.0], pid=1)
    assert figures(lines, ScriptRun(0.0, 12.0, 0.0), slots=1, trials=3)["to_trial_ms"] == pytest.approx(100.0)


def test_a_run_in_which_not_all_trials_have_trained_has_no_figures() -> None:
    lines = [*trial(0, 0.0, [1.0], pid=1), *trial(1, 0.0, [], pid=2)]
    with pytest.raises(RuntimeError, match="1 of 2 trials have trained"):
        figures(lines, ScriptRun(0.0, 2.0, 0.0), slots=2, trials=2)


def test_lines_are_read_as_they_were_added(tmp_path: Path) -> None:
    lines = trial(0, 0.5, [1.0], pid=1)
    for line in lines:
        append(str(tmp_path), line)
    assert read_lines(tmp_path) == lines
