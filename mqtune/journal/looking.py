"""Looking at a broker's experiments from any machine: which there are, how they stand, and all that happened."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.events import START, DriverStarted, ExperimentCreated, ExperimentEnded, TrialStaged, decode_event
from mqtune.core.keys import EXPERIMENTS, ExperimentKeys
from mqtune.journal.base import Entry
from mqtune.journal.connection import CONNECT_TIMEOUT_S, connect, redact
from mqtune.journal.file import JOURNAL_FILE, JournalFile
from mqtune.journal.redis import RedisJournal, retrying

__all__ = ["BrokerExperiments", "Stand"]

#: How many of the newest entries tell whether an experiment has ended: what still comes after the end is a few events.
_LAST_COUNT: Final = 50
#: Entries that one read takes.
_PAGE_COUNT: Final = 1_000
#: Names that an error lists; more would not be read.
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Stand:
    """How an experiment stands on its broker."""

    name: str
    metric: str
    created_at: float
    #: finished, interrupted or failed; empty when it has not ended.
    outcome: str
    #: Whether a driver has it.
    is_driven: bool
    #: How long ago the newest event was, in seconds.
    age_s: float


class BrokerExperiments:
    """A broker's experiments, to be looked at; nothing is changed, and a monitor's account is enough.

    Args:
        url: the broker's.

    Raises:
        BrokerUnavailable: there is no Redis, it refuses the password, or is too old.
    """

    def __init__(self, url: str) -> None:
        self.place = redact(url)
        self._client: Any = connect(url, role="reader")

    @classmethod
    @contextmanager
    def at(cls, url: str) -> Iterator[BrokerExperiments]:
        """Connect, and close the connection afterwards."""
        found = cls(url)
        try:
            yield found
        finally:
            found._client.close()

    def names(self) -> list[str]:
        """Return the names of all experiments, newest first."""
        found = self._ask(lambda: self._client.zrevrange(EXPERIMENTS, 0, -1))
        return [name.decode(errors="backslashreplace") for name in found]

    def stand(self, name: str) -> Stand | None:
        """Return how an experiment stands; None when it has not begun."""
        keys = ExperimentKeys(name)
        first = self._ask(lambda: self._client.xrange(keys.journal, count=1))
        created = decode_event(first[0][1][b"e"]) if first else None
        if not isinstance(created, ExperimentCreated):
            return None
        last = self._ask(lambda: self._client.xrevrange(keys.journal, count=_LAST_COUNT))
        until = self._ask(lambda: self._client.hget(keys.meta, "driver_until"))
        now_ms = self._now_ms()
        return Stand(
            name=name,
            metric=str(created.definition.get("metric", "")),
            created_at=created.at,
            outcome=_outcome([fields[b"e"] for _, fields in last]),
            is_driven=until is not None and int(until) > now_ms,
            age_s=self._age_s(last[0][0].decode(), now_ms),
        )

    def copy(self, name: str, folder: Path) -> None:
        """Copy all that happened to an experiment into *folder*, from where it is read as its driver's own copy is.

        Raises:
            ConfigurationError: there is no such experiment.
        """
        journal = RedisJournal(self._client, name, patience_s=CONNECT_TIMEOUT_S)
        page = journal.read(START.entry, count=_PAGE_COUNT)
        if not page:
            names = self.names()
            more = ", …" if len(names) > _SHOWN else ""
            there = f"there are {', '.join(names[:_SHOWN])}{more}" if names else "there is none at all"
            raise ConfigurationError(f"there is no experiment {name!r} on {self.place}; {there}")
        file = JournalFile(folder / JOURNAL_FILE)
        file.begin([])
        last: Entry = page[-1]
        while page:
            file.append(page)
            last = page[-1]
            page = journal.read(last.id, count=_PAGE_COUNT)
        file.close()
        # As old as its newest event, as a driver's own copy is.
        at = time.time() - self._age_s(last.id, self._now_ms())
        os.utime(file.path, (at, at))

    def _now_ms(self) -> int:
        seconds, microseconds = self._ask(self._client.time)
        return int(seconds) * 1000 + int(microseconds) // 1000

    @staticmethod
    def _age_s(entry: str, now_ms: int) -> float:
        return max(0.0, (now_ms - int(entry.partition("-")[0])) / 1000)

    @staticmethod
    def _ask(call: Any) -> Any:
        return retrying(call, patience_s=CONNECT_TIMEOUT_S)


def _outcome(newest_first: list[bytes]) -> str:
    """Return how the last driver ended, or nothing when the experiment has gone on since."""
    for data in newest_first:
        event = decode_event(data)
        if isinstance(event, ExperimentEnded):
            return event.outcome
        if isinstance(event, TrialStaged | DriverStarted):
            return ""
    return ""
