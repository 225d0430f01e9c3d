"""A long experiment that somebody opens in a terminal."""

from __future__ import annotations

from typing import Final

from benchmarks.work.base import Figure, Workload

__all__ = ["TRIALS", "WORKLOAD"]

TRIALS: Final = 1_000


def _seconds(title: str, bar: float | None = None) -> Figure:
    return Figure(unit="s", higher_is_better=False, title=title, bar=bar)


WORKLOAD: Final = Workload(
    name="opened",
    title="a long experiment is opened",
    sizes={"reports": 10_000_000},
    quick_sizes={"reports": 1_000_000},
    figures={
        "show_s": _seconds("`mqtune show` with the state that the run, or an earlier look, has left", bar=2.0),
        "show_running_s": _seconds("the same, while the experiment goes on: 100,000 reports later"),
        "show_whole_s": _seconds("without it: the whole copy is read"),
        "show_short_s": _seconds("of an experiment with one report: what a command costs at least"),
        "state_mb": Figure(unit="MB", higher_is_better=False, title="size of the state"),
        "copy_mb": Figure(unit="MB", higher_is_better=False, title="size of the copy", shown=False),
    },
)
