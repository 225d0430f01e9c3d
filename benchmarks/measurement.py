"""What a system offers to be measured, and what a measurement is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Context", "Figures", "Samples", "Skip", "System", "Variant"]

Figures = dict[str, float]
#: Of a measurement that has several values for each figure.
Samples = Mapping[str, Sequence[float]]


class Skip(Exception):
    """This can't be measured here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a measurement is given: a folder of its own, the sizes of the work, the process above it all, and the repeat's number."""

    folder: Path
    sizes: Mapping[str, int]
    root_pid: int
    run: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run one workload on one system.

    Args:
        settings: how the system was set, in words; kept with each figure.
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
    """A system that can be measured: the packages it needs, and its variants by workload."""

    name: str
    title: str
    packages: tuple[str, ...]
    variants: Mapping[str, tuple[Variant, ...]]
