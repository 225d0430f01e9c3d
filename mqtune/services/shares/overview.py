"""Current and entitled slots of each experiment in a fleet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from mqtune.core.crews import register_of
from mqtune.services.shares.divider import Table, entitlements, to_share

if TYPE_CHECKING:
    from mqtune.core.worker_info import WorkerInfo


class ShareSummary(NamedTuple):
    """An experiment's part of a fleet. Without a driver it has no priority and wants nothing.

    Attributes:
        token: stands for its name; see ``busy_as``.
        priority: its priority.
        share: its weight against others of its priority.
        running: number of slots in use.
        wanted: number of slots that it could use.
        may_run: number of slots that it is entitled to now.
        quotas: patterns of its quotas.
        waiting_s: seconds without a slot while others have some.
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
    """Return the number of a worker's slots with an attempt."""
    return sum(count for count in info.busy.values() if type(count) is int)


def shares_of(table: Table, workers: Iterable[WorkerInfo]) -> list[ShareSummary]:
    """Return each experiment's part of these workers' slots, largest first."""
    register = register_of(workers)
    shared = to_share(register.slots, register.busy, {demand.experiment for demand in table.demands})
    limits = entitlements(table.demands, shared, table.quotas, aging_s=table.aging_s)
    shares = [
        ShareSummary(
            demand.experiment,
            demand.priority,
            demand.weight,
            demand.running,
            demand.wanted,
            limits[demand.experiment],
            [quota for quota in demand.quotas if quota in table.quotas],
            demand.waiting_s,
        )
        for demand in table.demands
    ]
    undriven = [
        ShareSummary(token, "", 0.0, sum(queues.values()), 0, 0, [])
        for token, queues in register.busy.items()
        if token not in limits
    ]
    return sorted(shares + undriven, key=lambda share: (-share.running, -share.may_run, share.token))
