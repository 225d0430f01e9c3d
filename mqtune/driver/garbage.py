"""Finds what a server has of experiments that it has no more, and deletes it; what may still be somebody's is kept."""

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
from mqtune.driver.deletion import undriven
from mqtune.driver.tenancy import tenant_on
from mqtune.journal.chapters import checkpoints_in
from mqtune.journal.connection import CONNECT_TIMEOUT_S, connect
from mqtune.journal.fleet import Fleet
from mqtune.journal.strays import Strays
from mqtune.results.experiments import saved_experiments


@dataclass(frozen=True)
class Garbage:
    """Something that belongs to nothing.

    It says what it is, of which experiment or in which folder, how large, if known, and how it goes. *delete* returns
    whether it was deleted: it looks again, and keeps what somebody has begun to use. It may be called again.
    """

    kind: str
    experiment: str
    count: int
    bytes: int | None
    delete: Callable[[], bool]
    folder: str = ""


class Search(NamedTuple):
    """What was found on a server, and what could not be looked at, with the reason."""

    found: list[Garbage]
    unseen: list[str]


@contextlib.contextmanager
def garbage_on(url: str, places: Sequence[str] = (), *, unused_s: float = 0.0) -> Iterator[Search]:
    """Yield what a server, and stores of checkpoints, have that belongs to nothing; it can be deleted before this ends.

    Args:
        url: the server's.
        places: where experiments have their stores, as ``Checkpoints(store=…)`` names it.
        unused_s: for how long a store must not have changed.

    Raises:
        BrokerUnavailable: the server is away.
        ConfigurationError: one of *places* is no place for a store.
    """
    with contextlib.closing(connect(url, role="driver")) as client:
        strays, fleet = Strays(client, patience_s=CONNECT_TIMEOUT_S), Fleet(client, patience_s=CONNECT_TIMEOUT_S)
        found: list[Garbage] = []
        unseen: list[str] = []
        looks: list[tuple[str, Callable[[], list[Garbage]]]] = [
            ("names of experiments", lambda: _names(strays, url)),
            ("messages", lambda: _messages(strays, fleet)),
            ("keys, and messages in queues without a worker", lambda: _keys(strays)),
            *((without_secrets(each), partial(_checkpoints, each, strays, url, unused_s)) for each in places),
        ]
        for what, look in looks:
            try:
                found += look()
            except AccessDenied:
                unseen.append(f"{what}: this account may not look at them; one of mqtune acl driver --gc may")
            except StoreUnavailable as error:
                unseen.append(f"{what}: {error}")
        yield Search(found, unseen)


def _names(strays: Strays, url: str) -> list[Garbage]:
    return [
        Garbage("experiment", name, 1, _size(strays, _kept_of(name)), partial(_forget, name, url, lambda: None))
        for name in strays.emptied()
    ]


def _kept_of(name: str) -> list[str]:
    keys = ExperimentKeys(name)
    return [keys.driver, keys.meta, keys.journal]


def _size(strays: Strays, keys: list[str]) -> int | None:
    with contextlib.suppress(AccessDenied):
        return strays.size(keys)
    return None


def _forget(name: str, url: str, delete: Callable[[], None]) -> bool:
    with contextlib.suppress(NameTaken), undriven(name, url) as journal:
        # A driver may have begun, and ended, since it was found.
        if journal.definition() is None and journal.first() is None:
            delete()
            journal.forget([])
            return True
    return False


def _messages(strays: Strays, fleet: Fleet) -> list[Garbage]:
    by_name: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    # Before the names of experiments: a driver's is there before its first message.
    for name, queue, message in fleet.messages({info.queue for info in fleet.workers()}):
        if is_name(name):
            by_name[name].append((queue, message))

    def remove(name: str, messages: list[tuple[str, bytes]]) -> bool:
        return bool(strays.unknown([name])) and fleet.remove(messages) > 0

    return [
        Garbage("messages", name, len(these), sum(len(data) for _, data in these), partial(remove, name, these))
        for name in strays.unknown(by_name)
        for these in [by_name[name]]
    ]


def _keys(strays: Strays) -> list[Garbage]:
    def remove(name: str, keys: list[str]) -> bool:
        return strays.remove(name, keys) > 0

    return [
        Garbage("keys", name, len(keys), _size(strays, keys), partial(remove, name, keys))
        for name, keys in strays.keys().items()
    ]


def _checkpoints(place: str, strays: Strays, url: str, unused_s: float) -> list[Garbage]:
    """Return the stores of experiments that this server had and has no more, and that nobody else has."""
    mine = tenant_on(url, "")
    # What this machine has a journal of can go on.
    here = {folder.name for folder in saved_experiments()}

    def left_by(store: CheckpointStore) -> str:
        """Return the experiment whose checkpoints nobody needs any more, or nothing."""
        tenants = store.tenants()
        names = {tenant.experiment for tenant in tenants}
        are_mine = all(mine._replace(experiment=tenant.experiment).is_same(tenant) for tenant in tenants)
        is_ours = mine.broker != UNKNOWN and bool(names) and are_mine and here.isdisjoint(names)
        return names.pop() if is_ours and strays.unknown(names) and store.idle_s() >= unused_s else ""

    def remove(name: str, store: CheckpointStore) -> bool:
        return left_by(store) == name and _forget(name, url, store.remove)

    return [
        Garbage("checkpoints", name, len(checkpoints_in(store)), None, partial(remove, name, store), store.describe())
        for store in stores_below(place)
        if (name := left_by(store))
    ]
