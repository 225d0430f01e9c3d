"""Descriptions of workloads and figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Figure", "Workload", "percentiles"]


class Figure(NamedTuple):
    """One number that a workload yields."""

    title: str
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One piece of work, its sizes (and small ones for a quick look), and its figures by name.

    Args:
        packages: packages that the work itself needs.
    """

    name: str
    sizes: Mapping[str, int]
    quick_sizes: Mapping[str, int]
    figures: Mapping[str, Figure]
    packages: tuple[str, ...] = ()


def percentiles(name: str, unit: str, samples: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile of samples in *unit*, as two figures."""
    p99 = sorted(samples)[math.ceil(0.99 * len(samples)) - 1]
    return {f"{name}_p50_{unit}": statistics.median(samples), f"{name}_p99_{unit}": p99}
