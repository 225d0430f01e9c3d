"""Removes or changes the marks in a store that name the experiments with checkpoints there."""

from __future__ import annotations

from mqtune.checkpoints import CheckpointStore
from mqtune.checkpoints.store import ARCHIVE, Tenant


def release(store: CheckpointStore, mine: Tenant) -> None:
    """Remove the marks of an experiment on one server from a store."""
    for tenant in filter(mine.is_same, store.tenants()):
        store.release(tenant)


def is_archives(store: CheckpointStore, experiment: str) -> bool:
    """Whether a store has only the checkpoints of one archived experiment."""
    return store.tenants() == [Tenant(ARCHIVE, experiment)]


def give_to_archive(store: CheckpointStore, mine: Tenant) -> None:
    """Mark a store as an archived experiment's. No server has the experiment any more."""
    if any(map(mine.is_same, store.tenants())):
        store.claim(Tenant(ARCHIVE, mine.experiment))
        release(store, mine)
