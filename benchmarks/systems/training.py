"""Variants of the real trainings: each runs a script as a user would write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from benchmarks.measurement import Variant
from benchmarks.work.training import MEMORY, PREFIX, TIME, TRAININGS, Training, measure, measure_memory

__all__ = ["Way", "variants"]

#: Enough for eight interpreters that import PyTorch at the same time on two busy cores.
DEADLINE_S: Final = 1_200.0


class Way(NamedTuple):
    """A way to run the trainings on a system. Memory is measured with each number of *slots*."""

    settings: str
    script: str
    arguments: tuple[str, ...] = ()
    slots: tuple[int, ...] = (2, 8)
    environment: Mapping[str, str] = {}
    slow: bool = False


def variants(**ways: Way) -> dict[str, tuple[Variant, ...]]:
    """Return a system's variants of all trainings, by their workloads' names."""
    by_workload: dict[str, tuple[Variant, ...]] = {}
    for training in TRAININGS:
        by_workload[f"{PREFIX}/{training.name}/{TIME}"] = tuple(
            _timed(training, name, way) for name, way in ways.items()
        )
        by_workload[f"{PREFIX}/{training.name}/{MEMORY}"] = tuple(
            variant for name, way in ways.items() for variant in _memory(training, name, way)
        )
    return by_workload


def _timed(training: Training, name: str, way: Way) -> Variant:
    return Variant(
        name=name,
        settings=way.settings,
        measure=measure(training, way.script, *way.arguments),
        slow=way.slow,
        deadline_s=DEADLINE_S,
        environment=way.environment,
    )


def _memory(training: Training, name: str, way: Way) -> Iterator[Variant]:
    for slots in way.slots:
        yield Variant(
            name=f"{name}, {slots} slot{'s' if slots > 1 else ''}",
            settings=way.settings,
            measure=measure_memory(training, way.script, *way.arguments),
            sizes={"slots": slots},
            slow=way.slow,
            deadline_s=DEADLINE_S,
            environment=way.environment,
        )
