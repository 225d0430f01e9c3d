"""Deletes an experiment from its server, with its checkpoints; nobody drives it meanwhile."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import NamedTuple

from mqtune.checkpoints import open_store
from mqtune.core.events import START, TrialStaged, decode_definition, driver_events
from mqtune.core.trial import TrialId
from mqtune.driver.connect import unless_away
from mqtune.journal.connection import CONNECT_TIMEOUT_S, connect
from mqtune.journal.lock import take_lock
from mqtune.journal.redis import RedisJournal
from mqtune.journal.restore import entries_behind


class Remains(NamedTuple):
    """What a server and a store have of an experiment: its trials, the store's URL or nothing, and how many checkpoints it holds."""

    trials: list[TrialId]
    store: str
    checkpoints: int


@contextlib.contextmanager
def undriven(name: str, url: str) -> Iterator[RedisJournal]:
    """Yield the journal of an experiment that nobody can drive before this ends.

    Raises:
        NameTaken: a living driver has it.
        AccessDenied: the account is no driver's.
    """
    with contextlib.closing(connect(url, role="driver")) as client:
        journal = RedisJournal(client, name, patience_s=CONNECT_TIMEOUT_S)
        owner = secrets.token_hex(8)
        take_lock(journal, owner)
        try:
            yield journal
        finally:
            unless_away(journal.unlock, owner)


def remains_of(journal: RedisJournal) -> Remains:
    """Return what there is of an experiment.

    Raises:
        StoreUnavailable: its store can't be reached from here.
    """
    kept = journal.definition()
    url = "" if kept is None else str(decode_definition(journal.experiment, kept).get("store", ""))
    written = driver_events(entries_behind(journal, START.entry)).values()
    trials = [event.trial for events in written for event in events if isinstance(event, TrialStaged)]
    return Remains(list(dict.fromkeys(trials)), url, len(open_store(url).ids()) if url else 0)


def delete_remains(journal: RedisJournal, found: Remains) -> None:
    """Delete an experiment's checkpoints and then its keys; after a failure it may be called again.

    A worker that still runs a trial of it ends that. A message that waits in a queue is refused by the worker that takes it.
    """
    if found.store:
        store = open_store(found.store)
        for checkpoint in store.ids():
            store.delete(checkpoint)
    journal.forget(found.trials)
