"""The room in a server's memory (``maxmemory``), and in an experiment's journal (``journal_mb``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Self

from mqtune.core.keys import ExperimentKeys

#: From this part of its memory on, a server is said to be nearly full: room for hours, and time to do something.
NEARLY_FULL: Final = 0.8
#: What the reason of a driver that waits because its journal is full begins with.
JOURNAL_FULL: Final = "its journal is full (journal_mb)"
_MB: Final = 10**6
#: What is said of a full server, and what can be done about it.
FULL: Final = "Redis is full (maxmemory)"
MAKE_ROOM: Final = (
    "raise its maxmemory, or make room: mqtune delete an experiment that has ended, with --archive if it is to be "
    "kept; if none has, end the one that fills it before: mqtune stop NAME --experiment --now; mqtune doctor names the "
    "largest"
)


class Room(NamedTuple):
    """The bytes of memory that a server uses, and the most that it may use; 0 for no limit."""

    used: int
    most: int

    @classmethod
    def of(cls, info: Mapping[str, object]) -> Self:
        """Return it from what a server says of itself."""
        used, most, besides = (info.get(name) for name in ("used_memory", "maxmemory", "mem_not_counted_for_evict"))
        counted = (used if isinstance(used, int) else 0) - (besides if isinstance(besides, int) else 0)
        return cls(max(0, counted), most if isinstance(most, int) else 0)

    @property
    def part(self) -> float:
        """The part of its memory that it uses; 0 without a limit."""
        return self.used / self.most if self.most else 0.0

    @property
    def is_full(self) -> bool:
        """Whether it refuses what takes memory."""
        return self.part > 1

    @property
    def shortage(self) -> str:
        """What is short, in words, when it is time to make room; else an empty text."""
        if self.is_full:
            return f"{FULL}, {self}: no trial begins, and report() waits"
        return f"Redis is nearly full, {self}" if self.part >= NEARLY_FULL else ""

    def __str__(self) -> str:
        limit = f" of {self.most / (1 << 20):.0f} MiB" if self.most else ", no limit"
        return f"{self.used / (1 << 20):.0f} MiB used{limit}"


class JournalRoom(NamedTuple):
    """The bytes of an experiment's journal, and their limit.

    The limit is 0 for any number, and the caps behind it are given in words.
    """

    used: int
    most: int
    capped: str = ""

    @property
    def part(self) -> float:
        """The part that is used of what it may have; 0 without a limit."""
        return self.used / self.most if self.most else 0.0

    @property
    def is_full(self) -> bool:
        """Whether trials wait with their reports."""
        return self.part >= 1

    @property
    def shortage(self) -> str:
        """What is short, in words, when it is time to do something; else an empty text."""
        if self.is_full:
            return f"{JOURNAL_FULL}, {self}: no trial begins, and report() waits{self.capped}"
        return f"its journal is nearly full (journal_mb), {self}{self.capped}" if self.part >= NEARLY_FULL else ""

    def __str__(self) -> str:
        return f"{self.used / _MB:,.4g} MB used of {self.most / _MB:,.4g} MB"


def way_to_grow(experiment: str) -> str:
    """Return what can be done about an experiment's full journal."""
    return (
        f"raise it: mqtune set {experiment} journal_mb=N (mqtune doctor says how much room its Redis has), "
        f"or end the experiment: mqtune stop {experiment} --experiment"
    )


def sizes_on(client: Any, experiments: Iterable[str]) -> dict[str, int]:
    """Return how many bytes of the server's memory each of these experiments takes, largest first.

    Its journal and its checkpoints count.
    """
    names = list(experiments)
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            # All parts of a key are counted (0): a journal's first entries are small, and its others can't be told from
            # them.
            pipe.memory_usage(ExperimentKeys(name).journal, samples=0)
            pipe.memory_usage(ExperimentKeys(name).checkpoints, samples=0)
        found = [size or 0 for size in pipe.execute()]
    sizes = {name: journal + held for name, journal, held in zip(names, found[::2], found[1::2], strict=True)}
    return dict(sorted(sizes.items(), key=lambda each: -each[1]))
