"""Deletes an experiment from its server, with its checkpoints; nobody drives it meanwhile."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import NamedTuple

from mqtune.checkpoints import open_store
from mqtune.checkpoints.store import Tenant
from mqtune.core.errors import NameTaken
from mqtune.core.events import (
    AttemptEnded,
    AttemptStarted,
    ExperimentCreated,
    TrialStaged,
    decode_definition,
    readable_events,
)
from mqtune.core.owner import NOBODY, Owner
from mqtune.core.resources import BY_CONFIG, Resources, queue_name
from mqtune.core.trial import TrialId
from mqtune.driver.connect import unless_away
from mqtune.driver.tenancy import is_shared, release
from mqtune.journal.chapters import checkpoints_in
from mqtune.journal.connection import CONNECT_TIMEOUT_S, connect
from mqtune.journal.fleet import Fleet
from mqtune.journal.lock import take_lock
from mqtune.journal.redis import RedisJournal, experiments_on
from mqtune.journal.restore import entries_there
from mqtune.journal.submissions import Submissions


def is_on(name: str, url: str) -> bool:
    """Whether a server has an experiment, or what a deletion that was cut off has left of it."""
    with contextlib.closing(connect(url, role="reader")) as client:
        return name in experiments_on(client, patience_s=CONNECT_TIMEOUT_S)


def messages_of(name: str, url: str) -> list[tuple[str, bytes]]:
    """Return the messages about an experiment's attempts that wait for workers, each with its queue.

    Raises:
        AccessDenied: the account may not look.
    """
    with contextlib.closing(connect(url, role="driver")) as client:
        journal = RedisJournal(client, name, patience_s=CONNECT_TIMEOUT_S)
        kept = journal.definition()
        # Where no worker offers it, an attempt waits in the queue of what it asks for.
        described = {} if kept is None else decode_definition(name, kept).get("resources", {})
        asked = _asked_by_config(journal) if BY_CONFIG in described else {Resources.decode(described)}
        fleet = Fleet(client, patience_s=CONNECT_TIMEOUT_S)
        return fleet.messages_of(name, [*map(queue_name, asked), *(info.queue for info in fleet.workers())])


def _asked_by_config(journal: RedisJournal) -> set[Resources]:
    staged = (event for event in readable_events(entries_there(journal)) if isinstance(event, TrialStaged))
    return {event.resources for event in staged if event.resources is not None}


def remove_messages(messages: list[tuple[str, bytes]], url: str) -> None:
    """Remove messages from their queues; those of other experiments stay, in their order.

    Raises:
        AccessDenied: the account may not, as one that an earlier version has made.
    """
    with contextlib.closing(connect(url, role="driver")) as client:
        Fleet(client, patience_s=CONNECT_TIMEOUT_S).remove(messages)


class Remains(NamedTuple):
    """What a server and a store have of an experiment.

    Nothing is deleted from a store that an experiment on another server may have too.
    """

    trials: list[TrialId]
    store: str
    checkpoints: int
    is_shared: bool
    #: How many attempts run.
    running: int
    owner: Owner


@contextlib.contextmanager
def undriven(name: str, url: str) -> Iterator[RedisJournal]:
    """Yield the journal of an experiment that nobody can drive before this ends.

    Raises:
        NameTaken: a living driver has it, or a script of its name was submitted and has not ended.
        AccessDenied: the account is no driver's.
    """
    with contextlib.closing(connect(url, role="driver")) as client:
        submitted = Submissions(client, patience_s=CONNECT_TIMEOUT_S).state(name)
        if submitted is not None and not submitted.has_ended:
            where = f"runs on {submitted.worker}" if submitted.state == "running" else "waits for a driver slot"
            raise NameTaken(f"a script that was submitted as {name!r} {where}")
        journal = RedisJournal(client, name, patience_s=CONNECT_TIMEOUT_S)
        holder = secrets.token_hex(8)
        take_lock(journal, holder)
        try:
            yield journal
        finally:
            unless_away(journal.unlock, holder)


def remains_of(journal: RedisJournal, tenant: Tenant) -> Remains:
    """Return what there is of an experiment, which is *tenant* to its store.

    Raises:
        StoreUnavailable: its store can't be reached from here.
    """
    kept = journal.definition()
    url = "" if kept is None else str(decode_definition(journal.experiment, kept).get("store", ""))
    trials: dict[TrialId, None] = {}
    running: set[tuple[TrialId, int]] = set()
    created = NOBODY
    # An entry that is not an event keeps nothing from being deleted.
    for event in readable_events(entries_there(journal)):
        match event:
            case ExperimentCreated():
                created = event.owner
            case TrialStaged():
                trials[event.trial] = None
            case AttemptStarted():
                running.add((event.trial, event.attempt))
            case AttemptEnded():
                running.discard((event.trial, event.attempt))
            case _:
                pass
    store = open_store(url) if url else None
    count, shared = (0, False) if store is None else (len(checkpoints_in(store)), is_shared(store, tenant))
    return Remains(list(trials), url, count, shared, len(running), created)


def delete_remains(journal: RedisJournal, found: Remains, tenant: Tenant) -> None:
    """Delete an experiment's checkpoints and then its keys; after a failure it may be called again.

    A worker that still runs a trial of it ends that.
    """
    store = open_store(found.store) if found.store else None
    if store is not None and not found.is_shared:
        for checkpoint in store.ids():
            store.delete(checkpoint)
    # From here on nothing says where its store is; its name and the lock stay until that is gone, too.
    journal.erase(found.trials)
    if store is not None:
        release(store, tenant) if found.is_shared else store.remove()
    journal.forget([])
