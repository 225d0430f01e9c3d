"""Current and entitled slots of each experiment in a fleet, and its quotas."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from mqtune.core.crews import register_of
from mqtune.core.errors import AccessDenied
from mqtune.services.shares.divider import Table, entitlements, to_share

if TYPE_CHECKING:
    from mqtune.core.worker_info import WorkerInfo
    from mqtune.services.shares.quotas import Quota


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


class Shares(NamedTuple):
    """A fleet's shares, the largest first, and its quotas. Each is None if it may not be read."""

    shares: list[ShareSummary] | None
    quotas: list[Quota] | None


def shares_on(broker: str, workers: Iterable[WorkerInfo]) -> Shares:
    """Return each experiment's share of a fleet's slots, and the quotas.

    They are some seconds old. The shares that a driver uses may differ by one slot, as it rounds them at another time.
    """
    table = demands_on(broker)
    return Shares(None if table is None else shares_of(table, workers), quotas_on(broker))


def quotas_on(broker: str) -> list[Quota] | None:
    """Return the quotas. None if the account may not read them."""
    from mqtune.journal import CONNECT_TIMEOUT_S, connect  # noqa: PLC0415 - only this needs redis
    from mqtune.services.shares.quotas import Quotas  # noqa: PLC0415

    with contextlib.suppress(AccessDenied), contextlib.closing(connect(broker, role="reader")) as client:
        return Quotas(client, patience_s=CONNECT_TIMEOUT_S).all()
    return None


def demands_on(broker: str) -> Table | None:
    """Return the experiments' demands, some seconds old. None if the account may not read them."""
    from mqtune.journal import CONNECT_TIMEOUT_S, connect  # noqa: PLC0415 - as above
    from mqtune.services.shares.demands import Demands  # noqa: PLC0415

    with contextlib.closing(connect(broker, role="reader")) as client:
        return Demands(client, patience_s=CONNECT_TIMEOUT_S).table()
