"""The interface between systems and measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Context", "Figures", "Observed", "Samples", "System", "Variant"]

Figures = dict[str, float]
#: Several values for each figure.
Samples = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A measurement's own folder, the sizes of its work, and the number of the repeat."""

    folder: Path
    sizes: Mapping[str, int]
    run: int = 0


@dataclass(slots=True, kw_only=True)
class Observed:
    """Times of a run as its driver saw them, in monotonic seconds."""

    first_start: float = 0.0
    last_report: float = 0.0
    last_end: float = 0.0
    reports: int = 0
    #: Times of decisions to stop, by the name of the trial's trace.
    decisions: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        """Note the first start."""
        self.first_start = self.first_start or time.monotonic()

    def report(self, index: int, epoch: int, stop_at: int | None) -> bool:
        """Note a report, and return whether the trial must stop at it."""
        self.last_report = time.monotonic()
        self.reports += 1
        if epoch != stop_at:
            return False
        self.decisions[f"stop-{index}"] = self.last_report
        return True

    def end(self) -> None:
        """Note the end of a trial."""
        self.last_end = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run one workload on one system.

    Args:
        settings: the system's settings in words; part of each result line.
        measure: runs in a fresh process and returns the figures, or several values of each.
        sizes: sizes of the work that differ from the workload's own.
        slow: takes minutes, so it is repeated less often.
        environment: variables of the fresh process.
    """

    name: str
    settings: str
    measure: Callable[[Context], Figures | Samples]
    sizes: Mapping[str, int] = field(default_factory=dict)
    slow: bool = False
    deadline_s: float = 180.0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system under test: the packages it needs, and its variants by workload."""

    name: str
    title: str
    packages: tuple[str, ...]
    variants: Mapping[str, tuple[Variant, ...]]
