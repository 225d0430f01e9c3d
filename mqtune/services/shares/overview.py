"""Which experiments have the slots of a fleet, and which ones they are entitled to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from mqtune.core.crews import register_of
from mqtune.services.shares.divider import Table, entitlements, to_share

if TYPE_CHECKING:
    from mqtune.core.events import WorkerInfo


class Share(NamedTuple):
    """An experiment's part of a fleet; one without a driver has no priority and wants nothing.

    Attributes:
        token: stands for its name; see ``busy_as``.
        priority: its priority.
        share: its weight against others of its priority.
        running: the number of slots in which it runs.
        wanted: the number of slots that it could use.
        may_run: the number of slots that it is entitled to now.
        quotas: the patterns of the quotas that it falls under.
        waiting_s: for how many seconds it has had no slot while others have them.
    """

    token: str
    priority: str
    share: float
    running: int
    wanted: int
    may_run: int
    quotas: list[str]
    waiting_s: float = 0.0


def busy_slots(info: WorkerInfo) -> int:
    """Return how many slots of a worker have an attempt."""
    return sum(count for count in info.busy.values() if type(count) is int)


def shares_of(table: Table, workers: Iterable[WorkerInfo]) -> list[Share]:
    """Return each experiment's part of these workers' slots; the largest come first."""
    register = register_of(workers)
    shared = to_share(register.slots, register.busy, {each.experiment for each in table.demands})
    limits = entitlements(table.demands, shared, table.quotas, aging_s=table.aging_s)
    shares = [
        Share(
            each.experiment,
            each.priority,
            each.weight,
            each.running,
            each.wanted,
            limits[each.experiment],
            [quota for quota in each.quotas if quota in table.quotas],
            each.waiting_s,
        )
        for each in table.demands
    ]
    undriven = [
        Share(token, "", 0.0, sum(queues.values()), 0, 0, [])
        for token, queues in register.busy.items()
        if token not in limits
    ]
    return sorted(shares + undriven, key=lambda each: (-each.running, -each.may_run, each.token))
