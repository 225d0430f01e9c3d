"""Reads the journal for the driver's loop, and checks it after an outage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mqtune.core.errors import ImpossibleEvent
from mqtune.driver.path.pace import LoopPace
from mqtune.driver.rules.timers import DriverTimers
from mqtune.driver.setup.interrupts import Interrupts
from mqtune.driver.writing.actions import Orders
from mqtune.driver.writing.ledger import Ledger
from mqtune.journal.base import Entry, Journal
from mqtune.journal.files.copy import JournalReader
from mqtune.results.experiments import with_entry


class News:
    """Waits for new entries of the journal, and keeps them in the copy.

    Args:
        journal: the journal.
        reader: knows which entries were read, and has the copy.
        ledger: notices entries that the server has lost, and has them restored.
        interrupts: may end a wait.
        orders: are given again after an outage.
        timers: check all attempts after an outage.
        pace: says how long a round lasts in virtual time.
    """

    def __init__(
        self,
        journal: Journal,
        reader: JournalReader,
        ledger: Ledger,
        interrupts: Interrupts,
        orders: Orders,
        timers: DriverTimers,
        pace: LoopPace,
    ) -> None:
        self._journal = journal
        self._reader = reader
        self._ledger = ledger
        self._interrupts = interrupts
        self._orders = orders
        self._timers = timers
        self._pace = pace

    def wait(self, block_s: float) -> list[Entry] | None:
        """Wait for new entries, keep them in the copy, and return those that the driver has not applied.

        Return None if no entries came.

        After an outage, have lost entries restored, give all orders again, and check all attempts again.
        """
        reader = self._reader
        entries: list[Entry] = self._interrupts.wait(
            lambda: self._journal.read(reader.last, count=reader.count, block_s=block_s), interrupted=[]
        )
        if self._ledger.was_away:
            is_lost = self._ledger.check()
            self._orders.give_again()
            self._timers.look_anew()
            if is_lost:
                # The entries that were read are no longer those that follow.
                return None
        if not entries:
            return None
        reader.keep(entries)
        return self._ledger.new_entries(entries)

    def more(self) -> Iterator[Entry]:
        """In virtual time, yield the entries that come while the round is steady."""
        while self._pace.goes_on and (entries := self._ledger.more(self._pace.left_s)) is not None:
            yield from entries
        self._reader.write()

    @contextlib.contextmanager
    def naming_entry(self, experiment: str) -> Iterator[None]:
        """Name the journal's entry in the error of an event that can't follow the earlier ones."""
        try:
            yield
        except ImpossibleEvent as error:
            raise with_entry(error, experiment, self._reader.read()) from None
