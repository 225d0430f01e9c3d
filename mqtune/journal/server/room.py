"""Memory limit of a server (``maxmemory``) and size limit of a journal (``journal_mb``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Self

from mqtune.core.keys import ExperimentKeys

#: Used part of the memory from which a server is nearly full. Hours are left to act.
NEARLY_FULL: Final = 0.8
#: First words of a driver's reason to wait while its journal is full.
JOURNAL_FULL: Final = "its journal is full (journal_mb)"
_MB: Final = 10**6
#: Description of a full server, and the hint for it.
FULL: Final = "Redis is full (maxmemory)"
MAKE_ROOM: Final = (
    "raise its maxmemory, or make room by mqtune archive or mqtune delete of an experiment that has ended; if none "
    "has, end the one that fills it first: mqtune end NAME --now; mqtune doctor names the largest"
)


class Room(NamedTuple):
    """A server's used memory and its limit in bytes; 0 for no limit."""

    used: int
    most: int

    @classmethod
    def of(cls, info: Mapping[str, object]) -> Self:
        """Return the memory use from the server's INFO."""
        used, most, besides = (info.get(name) for name in ("used_memory", "maxmemory", "mem_not_counted_for_evict"))
        counted = (used if isinstance(used, int) else 0) - (besides if isinstance(besides, int) else 0)
        return cls(max(0, counted), most if isinstance(most, int) else 0)

    @property
    def part(self) -> float:
        """Used part of the memory; 0 without a limit."""
        return self.used / self.most if self.most else 0.0

    @property
    def is_full(self) -> bool:
        """Whether it refuses commands that take memory."""
        return self.part > 1

    @property
    def shortage(self) -> str:
        """The shortage in words, if there is one; else an empty text."""
        if self.is_full:
            return f"{FULL}, {self}: no trial begins, and report() waits"
        return f"Redis is nearly full, {self}" if self.part >= NEARLY_FULL else ""

    def __str__(self) -> str:
        limit = f" of {self.most / (1 << 20):.0f} MiB" if self.most else ", no limit"
        return f"{self.used / (1 << 20):.0f} MiB used{limit}"


class JournalRoom(NamedTuple):
    """The bytes of an experiment's journal, and their limit.

    The limit is 0 for no limit. *capped* has the caps behind it, in words.
    """

    used: int
    most: int
    capped: str = ""

    @property
    def part(self) -> float:
        """Used part of the limit; 0 without a limit."""
        return self.used / self.most if self.most else 0.0

    @property
    def is_full(self) -> bool:
        """Whether trials wait with their reports."""
        return self.part >= 1

    @property
    def shortage(self) -> str:
        """The shortage in words, if there is one; else an empty text."""
        if self.is_full:
            return f"{JOURNAL_FULL}, {self}: no trial begins, and report() waits{self.capped}"
        return f"its journal is nearly full (journal_mb), {self}{self.capped}" if self.part >= NEARLY_FULL else ""

    def __str__(self) -> str:
        return f"{self.used / _MB:,.4g} MB used of {self.most / _MB:,.4g} MB"


def way_to_grow(experiment: str) -> str:
    """Return the hint for an experiment's full journal."""
    return (
        f"raise it: mqtune set {experiment} journal_mb=N (mqtune doctor shows how much memory its Redis has left), "
        f"or end the experiment: mqtune end {experiment}"
    )


def sizes_on(client: Any, experiments: Iterable[str]) -> dict[str, int]:
    """Return the bytes of server memory of each experiment, largest first.

    Its journal and its checkpoints count.
    """
    names = list(experiments)
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            # Count all elements of a key (0): a journal's first entries are small, and no sample of the others.
            pipe.memory_usage(ExperimentKeys(name).journal, samples=0)
            pipe.memory_usage(ExperimentKeys(name).checkpoints, samples=0)
        measured = [size or 0 for size in pipe.execute()]
    sizes = {name: journal + held for name, journal, held in zip(names, measured[::2], measured[1::2], strict=True)}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))
