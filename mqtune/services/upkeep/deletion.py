"""Delete an experiment from its server, with its checkpoints, while no driver has it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mqtune.checkpoints import open_store
from mqtune.checkpoints.store import Tenant
from mqtune.core.definition import decode_definition
from mqtune.core.entries import readable_events
from mqtune.core.errors import NameTaken
from mqtune.core.events import AttemptEnded, AttemptStarted, ExperimentCreated, TrialStaged
from mqtune.core.keys import EXPERIMENTS, SUBMISSIONS
from mqtune.core.owner import NOBODY, Owner
from mqtune.core.resources import BY_CONFIG, Resources, queue_name
from mqtune.core.trial import TrialId
from mqtune.driver import is_shared, unless_away
from mqtune.journal import (
    CONNECT_TIMEOUT_S,
    Fleet,
    RedisJournal,
    checkpoints_in,
    connect,
    experiments_on,
    readable_entries,
    take_lock,
)
from mqtune.services.submissions.board import Submissions
from mqtune.services.upkeep.marks import release


class DeletableJournal(RedisJournal):
    """The journal of an experiment that can be deleted whole."""

    def forget(self, trials: Sequence[TrialId]) -> None:
        """Delete the experiment, whose lock this process has, with all its keys and its name.

        A frozen driver that continues later restores it: for it the server has lost the experiment.

        Raises:
            DriverFenced: a driver has taken over.
            AccessDenied: the account may not delete.
        """
        self.erase(trials)
        keys = self._keys

        def delete() -> None:
            # A full server may refuse any transaction. Until the lock goes, nobody can take the name.
            with self._client.pipeline(transaction=False) as pipe:
                pipe.zrem(EXPERIMENTS, self.experiment)
                pipe.zrem(SUBMISSIONS, self.experiment)
                pipe.delete(keys.submission, keys.submitted_code)
                pipe.delete(keys.driver, keys.meta, keys.journal, keys.chapters)
                pipe.execute()

        self._retrying(delete)


def is_on(name: str, url: str) -> bool:
    """Return whether a server has an experiment, or the remains of an interrupted deletion."""
    with contextlib.closing(connect(url, role="reader")) as client:
        return name in experiments_on(client, patience_s=CONNECT_TIMEOUT_S)


def messages_of(name: str, url: str) -> list[tuple[str, bytes]]:
    """Return the waiting messages about an experiment's attempts, each with its queue.

    Raises:
        AccessDenied: the account may not read queues.
    """
    with contextlib.closing(connect(url, role="driver")) as client:
        journal = RedisJournal(client, name, patience_s=CONNECT_TIMEOUT_S)
        kept = journal.definition()
        # Without a matching worker, an attempt waits in the queue of its own resources.
        described = {} if kept is None else decode_definition(name, kept).get("resources", {})
        asked = _asked_by_config(journal) if BY_CONFIG in described else {Resources.decode(described)}
        fleet = Fleet(client, patience_s=CONNECT_TIMEOUT_S)
        return fleet.messages_of(name, [*map(queue_name, asked), *(info.queue for info in fleet.workers())])


def _asked_by_config(journal: RedisJournal) -> set[Resources]:
    staged = (event for event in readable_events(readable_entries(journal)) if isinstance(event, TrialStaged))
    return {event.resources for event in staged if event.resources is not None}


def remove_messages(messages: list[tuple[str, bytes]], url: str) -> None:
    """Remove messages from their queues; other experiments' messages stay, in their order.

    Raises:
        AccessDenied: the account may not write queues. An earlier version may have made it.
    """
    with contextlib.closing(connect(url, role="driver")) as client:
        Fleet(client, patience_s=CONNECT_TIMEOUT_S).remove(messages)


class Remains(NamedTuple):
    """The remains of an experiment on its server and in its store.

    Checkpoints in a shared store are not deleted: an experiment on another server may have them too.
    """

    trials: list[TrialId]
    store: str
    checkpoints: int
    is_shared: bool
    #: The number of running attempts.
    running: int
    owner: Owner


@contextlib.contextmanager
def undriven(name: str, url: str) -> Iterator[DeletableJournal]:
    """Lock an experiment against drivers and yield its journal.

    Raises:
        NameTaken: a live driver has it, or a submitted script of its name has not ended.
        AccessDenied: the account is not a driver's.
    """
    with contextlib.closing(connect(url, role="driver")) as client:
        submitted = Submissions(client, patience_s=CONNECT_TIMEOUT_S).state(name)
        if submitted is not None and not submitted.has_ended:
            where = f"runs on {submitted.worker}" if submitted.state == "running" else "waits for a driver slot"
            raise NameTaken(f"a script that was submitted as {name!r} {where}")
        journal = DeletableJournal(client, name, patience_s=CONNECT_TIMEOUT_S)
        holder = secrets.token_hex(8)
        take_lock(journal, holder)
        try:
            yield journal
        finally:
            unless_away(journal.unlock, holder)


def remains_of(journal: RedisJournal, tenant: Tenant) -> Remains:
    """Return the remains of an experiment.

    Args:
        journal: its journal.
        tenant: its mark in its store.

    Raises:
        StoreUnavailable: its store can't be reached from here.
    """
    kept = journal.definition()
    url = "" if kept is None else str(decode_definition(journal.experiment, kept).get("store", ""))
    trials: dict[TrialId, None] = {}
    running: set[tuple[TrialId, int]] = set()
    created = NOBODY
    # An unreadable entry does not prevent a deletion.
    for event in readable_events(readable_entries(journal)):
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


def delete_remains(journal: DeletableJournal, remains: Remains, tenant: Tenant) -> None:
    """Delete an experiment's checkpoints, then its keys; after a failure it may be called again.

    Workers end its running trials.
    """
    store = open_store(remains.store) if remains.store else None
    if store is not None and not remains.is_shared:
        for checkpoint in store.ids():
            store.delete(checkpoint)
    # This removes the store's address. The name and the lock stay until the store is removed.
    journal.erase(remains.trials)
    if store is not None:
        release(store, tenant) if remains.is_shared else store.remove()
    journal.forget([])
