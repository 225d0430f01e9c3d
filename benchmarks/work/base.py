"""What describes a workload."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Figure", "Over", "Workload", "percentiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """What mqtune must reach in the same run as a multiple of what another system, or another variant of its own, does."""

    system: str
    variant: str
    bar: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number that a workload yields.

    Args:
        higher_is_better: None where neither is better, as for a count.
        bar: what mqtune must reach.
        bars: what a variant of mqtune must reach, where it differs.
        over: what a variant of mqtune must reach as a multiple of others, by its name.
        against_best: whether mqtune must be no worse than the best of the others, beyond what chance explains.
        shown: whether the table has a row for it; the result lines have all.
    """

    unit: str
    higher_is_better: bool | None
    title: str = ""
    bar: float | None = None
    bars: Mapping[str, float] | None = None
    over: Mapping[str, Sequence[Over]] | None = None
    against_best: bool = False
    shown: bool = True

    def bar_of(self, variant: str) -> float | None:
        """Return what mqtune's *variant* must reach, or None."""
        return (self.bars or {}).get(variant, self.bar)

    def reaches(self, value: float, bar: float) -> bool:
        """Return whether *value* is as good as *bar*."""
        return value >= bar if self.higher_is_better else value <= bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One piece of work, its sizes (and small ones for a quick look), and its figures by name.

    Args:
        packages: what it needs beside the system that is measured.
    """

    name: str
    title: str
    sizes: Mapping[str, int]
    quick_sizes: Mapping[str, int]
    figures: Mapping[str, Figure]
    packages: tuple[str, ...] = ()


def percentiles(name: str, unit: str, samples: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile of samples that are in *unit*, as two figures."""
    p99 = sorted(samples)[math.ceil(0.99 * len(samples)) - 1]
    return {f"{name}_p50_{unit}": statistics.median(samples), f"{name}_p99_{unit}": p99}
