"""Finds and deletes remains of deleted experiments on a server and in stores."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from mqtune.checkpoints import CheckpointStore, stores_below
from mqtune.checkpoints.store import UNKNOWN, without_secrets
from mqtune.core.errors import AccessDenied, NameTaken, StoreUnavailable
from mqtune.core.keys import ExperimentKeys, is_name
from mqtune.driver import tenant_on
from mqtune.journal import CONNECT_TIMEOUT_S, Fleet, checkpoints_in, connect
from mqtune.results.experiments import saved_experiments
from mqtune.services.upkeep.deletion import undriven
from mqtune.services.upkeep.orphans import Orphans


@dataclass(frozen=True)
class Garbage:
    """Something that belongs to no experiment.

    Attributes:
        kind: its kind.
        experiment: name of its former experiment; empty if unknown.
        count: number of its keys, messages, checkpoints or files.
        bytes: its size; None if unknown.
        delete: checks again that it is unused, deletes it, and returns whether it did. It may be called again.
        folder: its folder; empty if it is on the server.
    """

    kind: str
    experiment: str
    count: int
    bytes: int | None
    delete: Callable[[], bool]
    folder: str = ""


class Search(NamedTuple):
    """The garbage found on a server, and the uninspected parts with the reasons."""

    found: list[Garbage]
    unseen: list[str]


@contextlib.contextmanager
def garbage_on(url: str, places: Sequence[str] = (), *, unused_s: float = 0.0) -> Iterator[Search]:
    """Yield the garbage on a server and in checkpoint stores, to be deleted in the block.

    Args:
        places: the locations of checkpoint stores, as users give them to ``Checkpoints(store=…)``.
        unused_s: minimum time since the last addition to a store, in seconds.

    Raises:
        BrokerUnavailable: the server is away.
        ConfigurationError: one of *places* can't have stores.
    """
    with contextlib.closing(connect(url, role="driver")) as client:
        orphans, fleet = Orphans(client, patience_s=CONNECT_TIMEOUT_S), Fleet(client, patience_s=CONNECT_TIMEOUT_S)
        garbage: list[Garbage] = []
        unseen: list[str] = []
        looks: list[tuple[str, Callable[[], list[Garbage]]]] = [
            ("names of experiments", lambda: _names(orphans, url)),
            ("messages", lambda: _messages(orphans, fleet)),
            ("keys, and messages in queues without a worker", lambda: _keys(orphans)),
            *((without_secrets(place), partial(_checkpoints, place, orphans, url, unused_s)) for place in places),
        ]
        for kind, look in looks:
            try:
                garbage += look()
            except AccessDenied:
                unseen.append(f"{kind}: this account may not see them; one of mqtune fleet acl driver --all-keys may")
            except StoreUnavailable as error:
                unseen.append(f"{kind}: {error}")
        yield Search(garbage, unseen)


def _names(orphans: Orphans, url: str) -> list[Garbage]:
    return [
        Garbage("experiment", name, 1, _size(orphans, _kept_of(name)), partial(_forget, name, url, lambda: None))
        for name in orphans.emptied()
    ]


def _kept_of(name: str) -> list[str]:
    keys = ExperimentKeys(name)
    return [keys.driver, keys.meta, keys.journal]


def _size(orphans: Orphans, keys: list[str]) -> int | None:
    with contextlib.suppress(AccessDenied):
        return orphans.size(keys)
    return None


def _forget(name: str, url: str, delete: Callable[[], None]) -> bool:
    with contextlib.suppress(NameTaken), undriven(name, url) as journal:
        # A driver may have begun and ended in between.
        if journal.definition() is None and journal.first() is None:
            delete()
            journal.forget([])
            return True
    return False


def _messages(orphans: Orphans, fleet: Fleet) -> list[Garbage]:
    by_name: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    # Messages are read before the names of experiments: a driver writes its name before its first message.
    for name, queue, message in fleet.messages({info.queue for info in fleet.workers()}):
        if is_name(name):
            by_name[name].append((queue, message))

    def remove(name: str, messages: list[tuple[str, bytes]]) -> bool:
        return bool(orphans.unknown([name])) and fleet.remove(messages) > 0

    return [
        Garbage("messages", name, len(these), sum(len(data) for _, data in these), partial(remove, name, these))
        for name in orphans.unknown(by_name)
        for these in [by_name[name]]
    ]


def _keys(orphans: Orphans) -> list[Garbage]:
    def remove(name: str, keys: list[str]) -> bool:
        return orphans.remove(name, keys) > 0

    return [
        Garbage("keys", name, len(keys), _size(orphans, keys), partial(remove, name, keys))
        for name, keys in orphans.keys().items()
    ]


def _checkpoints(place: str, orphans: Orphans, url: str, unused_s: float) -> list[Garbage]:
    """Return the stores whose experiments were deleted here and are on no other server."""
    mine = tenant_on(url, "")
    # An experiment with a journal on this machine can be continued.
    here = {folder.name for folder in saved_experiments()}

    def left_by(store: CheckpointStore) -> str:
        """Return the deleted experiment that owned a store, or an empty name if it may be in use."""
        tenants = store.tenants()
        names = {tenant.experiment for tenant in tenants}
        are_mine = all(mine._replace(experiment=tenant.experiment).is_same(tenant) for tenant in tenants)
        is_ours = mine.broker != UNKNOWN and bool(names) and are_mine and here.isdisjoint(names)
        return names.pop() if is_ours and orphans.unknown(names) and store.idle_s() >= unused_s else ""

    def remove(name: str, store: CheckpointStore) -> bool:
        return left_by(store) == name and _forget(name, url, store.remove)

    return [
        Garbage("checkpoints", name, len(checkpoints_in(store)), None, partial(remove, name, store), store.describe())
        for store in stores_below(place)
        if (name := left_by(store))
    ]
