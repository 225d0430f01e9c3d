"""Whose checkpoints a store has: noted when a driver begins, so that it can be told later what nobody needs any more."""

from __future__ import annotations

import contextlib

from mqtune.checkpoints import CheckpointStore
from mqtune.checkpoints.store import ARCHIVE, UNKNOWN, Tenant
from mqtune.journal.connection import CONNECT_TIMEOUT_S, RedisClient, connect
from mqtune.journal.identity import identify, identity_of


def tenant_on(url: str, experiment: str) -> Tenant:
    """Return who an experiment on a server is, to a store."""
    with contextlib.closing(connect(url, role="driver")) as client:
        return Tenant(identity_of(client, patience_s=CONNECT_TIMEOUT_S) or UNKNOWN, experiment)


def claim(store: CheckpointStore, client: RedisClient, experiment: str, *, patience_s: float) -> None:
    """Note that an experiment on this server has its checkpoints in a store.

    One that has checkpoints of which nobody has said whose they are is left as it is: nothing in it is ever collected.

    Raises:
        BrokerUnavailable: the server has not answered for *patience_s* seconds.
    """
    mine, tenants = Tenant(identify(client, patience_s=patience_s) or UNKNOWN, experiment), store.tenants()
    if mine not in tenants and (tenants or not store.ids()):
        store.claim(mine)
    if (archived := Tenant(ARCHIVE, experiment)) in tenants:
        store.release(archived)


def is_shared(store: CheckpointStore, mine: Tenant) -> bool:
    """Whether an experiment on another server has said that it has checkpoints in a store, too."""
    return not set(store.tenants()) <= {mine, Tenant(ARCHIVE, mine.experiment)}


def is_archives(store: CheckpointStore, experiment: str) -> bool:
    """Whether a store has the checkpoints of an experiment that is in a folder alone, and no others."""
    return store.tenants() == [Tenant(ARCHIVE, experiment)]


def give_to_archive(store: CheckpointStore, mine: Tenant) -> None:
    """Note that an experiment has its checkpoints in a store, and no server has it any more."""
    if mine in store.tenants():
        store.claim(Tenant(ARCHIVE, mine.experiment))
        store.release(mine)
