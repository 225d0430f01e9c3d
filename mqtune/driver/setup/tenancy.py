"""Marks in a store that name the experiments with checkpoints there.

A driver writes a mark when it begins, and a deletion reads all marks. A copied server has the original's id and
experiments. Therefore a mark also has the server's process and address. A deletion keeps the checkpoints if neither is
the server's own.
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

    A store with checkpoints but without marks is left alone: nothing in it is ever collected.

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
    """Whether a mark is *mine*, from before the server's address or id was known."""
    if tenant.broker == UNKNOWN != mine.broker:
        return tenant._replace(broker=mine.broker).is_same(mine)
    return tenant[:2] == mine[:2] and not tenant.place


def is_shared(store: CheckpointStore, mine: Tenant) -> bool:
    """Whether a store may also have checkpoints of an experiment on another server."""
    archived = Tenant(ARCHIVE, mine.experiment)
    return not all(tenant == archived or mine.is_same(tenant) for tenant in store.tenants())
