"""Memory limit of a server (``maxmemory``) and size limit of a journal (``journal_mb``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Self

from mqtune.core.keys import ExperimentKeys

#: From this used part of its memory on, a server counts as nearly full. Users have hours left to act then.
NEARLY_FULL: Final = 0.8
#: The first words of a driver's reason to start nothing while its journal is full.
JOURNAL_FULL: Final = "its journal is full (journal_mb)"
_MB: Final = 10**6
#: Description of a full server, and the hint for it.
FULL: Final = "Redis is full (maxmemory)"
MAKE_ROOM: Final = (
    "raise its maxmemory, or archive or delete an ended experiment: mqtune archive NAME, mqtune delete NAME; if none "
    "has ended, first end the largest: mqtune end NAME --now; for the sizes: mqtune doctor"
)


class Room(NamedTuple):
    """A server's used memory and its limit in bytes; 0 for no limit."""

    used: int
    most: int

    @classmethod
    def of(cls, info: Mapping[str, object]) -> Self:
        """Return the memory use in a server's answer to INFO."""
        used, most, besides = (info.get(name) for name in ("used_memory", "maxmemory", "mem_not_counted_for_evict"))
        counted = (used if isinstance(used, int) else 0) - (besides if isinstance(besides, int) else 0)
        return cls(max(0, counted), most if isinstance(most, int) else 0)

    @property
    def part(self) -> float:
        """The used part of the memory, such as 0.5. 0 without a limit."""
        return self.used / self.most if self.most else 0.0

    @property
    def is_full(self) -> bool:
        """Whether the server refuses commands that take memory."""
        return self.part > 1

    @property
    def shortage(self) -> str:
        """The shortage of memory as text for people. Empty if the server has enough."""
        if self.is_full:
            return f"{FULL}, {self}: no trial begins, and report() waits"
        return f"Redis is nearly full, {self}" if self.part >= NEARLY_FULL else ""

    def __str__(self) -> str:
        limit = f" of {self.most / (1 << 20):.0f} MiB" if self.most else ", no limit"
        return f"{self.used / (1 << 20):.0f} MiB used{limit}"


class JournalRoom(NamedTuple):
    """The bytes of an experiment's journal, and their limit.

    ``most`` is 0 if it has no limit. ``capped`` names the caps that lower the limit, as text for people.
    """

    used: int
    most: int
    capped: str = ""

    @property
    def part(self) -> float:
        """The used part of the limit, such as 0.5. 0 without a limit."""
        return self.used / self.most if self.most else 0.0

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached, so that reports wait."""
        return self.part >= 1

    @property
    def shortage(self) -> str:
        """The shortage as text for people. Empty if the journal has enough space."""
        if self.is_full:
            return f"{JOURNAL_FULL}, {self}: no trial begins, and report() waits{self.capped}"
        return f"its journal is nearly full (journal_mb), {self}{self.capped}" if self.part >= NEARLY_FULL else ""

    def __str__(self) -> str:
        return f"{self.used / _MB:,.4g} MB used of {self.most / _MB:,.4g} MB"


def way_to_grow(experiment: str) -> str:
    """Return the hint for an experiment's full journal."""
    return (
        f"raise journal_mb: mqtune set {experiment} journal_mb=N; for the free memory of its Redis: mqtune doctor; or "
        f"end the experiment: mqtune end {experiment}"
    )


def sizes_on(client: Any, experiments: Iterable[str]) -> dict[str, int]:
    """Return the bytes of each experiment's journal and checkpoints in Redis, largest first."""
    names = list(experiments)
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            # samples=0 counts all elements. By default Redis extrapolates from the first ones, which are small here.
            pipe.memory_usage(ExperimentKeys(name).journal, samples=0)
            pipe.memory_usage(ExperimentKeys(name).checkpoints, samples=0)
        measured = [size or 0 for size in pipe.execute()]
    sizes = {name: journal + held for name, journal, held in zip(names, measured[::2], measured[1::2], strict=True)}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))
