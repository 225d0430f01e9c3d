"""The workloads: their sizes and their figures."""

from __future__ import annotations

from typing import Final

from benchmarks.work import asha, fleet, noop, quality, start, stop, stream, training
from benchmarks.work.base import Figure, Workload

__all__ = ["WORKLOADS", "Figure", "Workload"]

WORKLOADS: Final[dict[str, Workload]] = {
    module.WORKLOAD.name: module.WORKLOAD for module in (start, noop, stream, stop, asha, quality, fleet)
} | training.WORKLOADS
