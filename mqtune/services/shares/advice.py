"""Says how an experiment gets more slots, and which experiments use a quota's slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mqtune.core.crews import register_of
from mqtune.core.priorities import PRIORITIES, Priority
from mqtune.core.worker_info import busy_as
from mqtune.services.shares.divider import Cap, Demand, Table, entitlements, to_share

if TYPE_CHECKING:
    from mqtune.core.worker_info import WorkerInfo

#: The most experiments that are named.
_SHOWN: Final = 4


def way_to_more(name: str, table: Table | None, workers: Iterable[WorkerInfo]) -> str:
    """Return how to get more slots for an experiment: a command, or whom to ask to raise a cap.

    *table* is None if the account may not read the demands.
    """
    token = busy_as(name)
    own = next((demand for demand in table.demands if demand.experiment == token), None) if table is not None else None
    if table is None or own is None:
        return f"a larger share, or a higher priority: mqtune set {name} --help"
    others = [demand for demand in table.demands if demand is not own]
    rank = PRIORITIES.index(own.priority)
    higher = [p for p in PRIORITIES[:rank] if any(demand.priority == p and demand.wanted for demand in others)]
    if not higher:
        share = 2 * own.weight
        cap_hint = _cap_hint(own, table, lambda cap: cap.share < share, f"--share {share:g}")
        return cap_hint or f"mqtune set {name} share={share:g}"
    register = register_of(workers)
    shared = to_share(register.slots, register.busy, {demand.experiment for demand in table.demands})

    def slots_with(priority: Priority) -> int:
        wanted = [*others, replace(own, priority=priority)]
        return entitlements(wanted, shared, table.quotas, aging_s=table.aging_s)[token]

    # The lowest priority that gives more slots. If none does, suggest the highest.
    helps = next((p for p in reversed(higher) if slots_with(p) > slots_with(own.priority)), higher[-1])
    rank = PRIORITIES.index(helps)
    cap_hint = _cap_hint(own, table, lambda cap: PRIORITIES.index(cap.priority) > rank, f"--priority {helps}")
    return cap_hint or f"mqtune set {name} priority={helps}"


def _cap_hint(own: Demand, table: Table, forbids: Callable[[Cap], bool], wanted: str) -> str:
    """Return whom to ask to raise the cap that forbids a setting. It is empty if no cap does."""
    for pattern in own.quotas:
        if forbids(cap := table.caps.get(pattern, Cap())):
            return f"ask {cap.by or 'an operator'} to raise the cap: mqtune fleet quota '{pattern}' {wanted}"
    return ""


def users_of_quota(pattern: str, table: Table | None, names: Iterable[str]) -> str:
    """Return the experiments that use a quota's slots, such as "a (3), b (1)". Empty if unknown."""
    known = {busy_as(name): name for name in names}
    using = (
        [demand for demand in table.demands if pattern in demand.quotas and demand.running] if table is not None else []
    )
    using.sort(key=lambda demand: -demand.running)
    shown = [f"{known.get(demand.experiment, 'another experiment')} ({demand.running})" for demand in using[:_SHOWN]]
    more = f" and {len(using) - _SHOWN} more" if len(using) > _SHOWN else ""
    return ", ".join(shown) + more
