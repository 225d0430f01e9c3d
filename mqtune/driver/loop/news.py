"""Reads new journal entries for the driver's loop, and checks the journal after an outage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mqtune.core.errors import ImpossibleEvent
from mqtune.driver.path.pace import LoopPace
from mqtune.driver.rules.timers import DriverTimers
from mqtune.driver.setup.interrupts import Interrupts
from mqtune.driver.writing.ledger import Ledger
from mqtune.driver.writing.orders import Orders
from mqtune.journal.base import Entry, Journal
from mqtune.journal.files.copy import JournalReader
from mqtune.results.experiments import with_entry


class News:
    """Waits for new entries of the journal, and writes them to the local copy.

    Args:
        reader: knows which entries were read, and writes the copy.
        ledger: notices entries that the server has lost, and restores them.
        interrupts: ends a wait on Ctrl-C.
        orders: resent after an outage.
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
        """Wait up to *block_s* seconds for new entries, write them to the copy, and return them.

        Entries whose events the driver has applied already are left out. Return None if no entry came. After an outage,
        restore lost entries, resend all orders, and begin to check all attempts.
        """
        reader = self._reader
        entries: list[Entry] = self._interrupts.wait(
            lambda: self._journal.read(reader.last, count=reader.count, block_s=block_s), interrupted=[]
        )
        if self._ledger.was_away:
            is_lost = self._ledger.check()
            self._orders.give_again()
            self._timers.recheck_attempts()
            if is_lost:
                # Other entries may follow the restored ones, so read again in the next round.
                return None
        if not entries:
            return None
        reader.keep(entries)
        return self._ledger.new_entries(entries)

    def more(self) -> Iterator[Entry]:
        """Yield further entries of this round, in virtual time. In real time, yield nothing."""
        while self._pace.goes_on and (entries := self._ledger.more(self._pace.left_s)) is not None:
            yield from entries
        self._reader.write()

    @contextlib.contextmanager
    def naming_entry(self, experiment: str) -> Iterator[None]:
        """Add the journal entry's id to an ImpossibleEvent error inside the block."""
        try:
            yield
        except ImpossibleEvent as error:
            raise with_entry(error, experiment, self._reader.read()) from None
