"""Marks in a checkpoint store: each names an experiment that has checkpoints there.

A driver writes its mark when it begins. Before checkpoints are deleted, all marks are read, because an experiment of
the same name on another server may use the store too. A copy of a server has the id and the experiments of the
original. Therefore a mark also has the server's process id and address: if both differ, the checkpoints are not
deleted.
"""

from __future__ import annotations

import contextlib

from mqtune.checkpoints import CheckpointStore
from mqtune.checkpoints.store import ARCHIVE, UNKNOWN, Tenant
from mqtune.journal.server.connection import CONNECT_TIMEOUT_S, RedisClient, connect
from mqtune.journal.server.identity import identify, identity_of, place_of, run_of


def tenant_on(url: str, experiment: str) -> Tenant:
    """Return the mark of an experiment on a server."""
    with contextlib.closing(connect(url, role="driver")) as client:
        return _tenant(client, identity_of(client, patience_s=CONNECT_TIMEOUT_S), experiment, CONNECT_TIMEOUT_S)


def _tenant(client: RedisClient, identity: str, experiment: str, patience_s: float) -> Tenant:
    return Tenant(identity or UNKNOWN, experiment, run_of(client, patience_s=patience_s), place_of(client))


def claim(store: CheckpointStore, client: RedisClient, experiment: str, *, patience_s: float) -> None:
    """Mark a store as used by an experiment on this server.

    A store that has checkpoints and no mark stays without a mark. Then nothing in it is ever collected.

    Raises:
        BrokerUnavailable: the server did not answer for *patience_s* seconds.
    """
    mine = _tenant(client, identify(client, patience_s=patience_s), experiment, patience_s)
    tenants = store.tenants()
    if not any(map(mine.is_same, tenants)) and (tenants or not store.ids()):
        store.claim(mine)
    for tenant in tenants:
        if tenant == Tenant(ARCHIVE, experiment) or _is_earlier(tenant, mine):
            store.release(tenant)


def _is_earlier(tenant: Tenant, mine: Tenant) -> bool:
    """Whether a mark is an incomplete version of *mine*, without the server's address or id."""
    if tenant.broker == UNKNOWN != mine.broker:
        return tenant._replace(broker=mine.broker).is_same(mine)
    return tenant[:2] == mine[:2] and not tenant.place


def is_shared(store: CheckpointStore, mine: Tenant) -> bool:
    """Whether a store may also have checkpoints of an experiment on another server."""
    archived = Tenant(ARCHIVE, mine.experiment)
    return not all(tenant == archived or mine.is_same(tenant) for tenant in store.tenants())
