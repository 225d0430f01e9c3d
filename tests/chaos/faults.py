"""What goes wrong in a run, one kind of fault each: it happens now, and what passes is undone some seconds later."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import gangs
import memory_faults
import process_faults
import request_faults
import server_faults
from counting import ECC, SPOILED
from process_faults import at, drivers, hosts, importers, killed, trials, workers, zygotes

if TYPE_CHECKING:
    from campaign import Campaign as Run


class Fault(NamedTuple):
    """A kind of fault: what it does, which returns what it did, or empty if there was nothing to do it to.

    ``may_lose``: whether attempts may be lost, handed back or fail by a signal for it. ``on``: the Redis that it can happen to, where
    that is not any: a "lone" one, or one that "fails over"; or the runs with "gangs".
    """

    act: Callable[[Run], str]
    may_lose: bool = False
    weight: int = 2
    on: Literal["", "lone", "fails over", "gangs"] = ""


FAULTS: Final[dict[str, Fault]] = {
    "driver killed": Fault(at(drivers, process_faults.signalled, number=signal.SIGKILL), weight=5),
    "driver interrupted": Fault(at(drivers, process_faults.signalled, number=signal.SIGINT)),
    "second driver": Fault(at(drivers, process_faults.second_driver)),
    "driver frozen": Fault(at(drivers, process_faults.driver_frozen), weight=3),
    "nobody drives": Fault(process_faults.nobody_drives),
    # With these, drivers are submitted.
    "host killed": Fault(at(hosts, process_faults.host_goes, number=signal.SIGKILL)),
    "host frozen": Fault(at(hosts, process_faults.host_frozen), weight=1),
    "host terminated": Fault(at(hosts, process_faults.host_goes, number=signal.SIGTERM), weight=1),
    "driver cut": Fault(partial(server_faults.cut, of_drivers=True)),
    "driver held": Fault(partial(server_faults.driver_cut_off, begin="hold")),
    "driver lost bytes": Fault(partial(server_faults.driver_cut_off, begin="drop")),
    "driver slow": Fault(partial(server_faults.slow, of_drivers=True)),
    "worker killed": Fault(at(workers, process_faults.kill, with_all=False), may_lose=True, weight=4),
    "machine killed": Fault(at(workers, process_faults.kill, with_all=True), may_lose=True),
    "worker terminated": Fault(at(workers, process_faults.leave, by_operator=False), may_lose=True, weight=3),
    "worker drained": Fault(at(workers, process_faults.leave, by_operator=True), may_lose=True),
    "worker joins": Fault(process_faults.worker_joins, weight=1),
    "worker frozen": Fault(at(workers, process_faults.freeze, with_all=False), may_lose=True, weight=3),
    "machine frozen": Fault(at(workers, process_faults.freeze, with_all=True), may_lose=True),
    "trial killed": Fault(at(trials, killed), may_lose=True),
    # Whose trials run on.
    "importer killed": Fault(at(importers, killed)),
    "importer frozen": Fault(at(importers, process_faults.frozen)),
    "zygote killed": Fault(at(zygotes, killed), may_lose=True),
    "zygote frozen": Fault(at(zygotes, process_faults.frozen), may_lose=True),
    "device broken": Fault(partial(process_faults.break_device, error=ECC), may_lose=True, weight=3),
    "device spoils": Fault(partial(process_faults.break_device, error=SPOILED), may_lose=True),
    "thread raises": Fault(process_faults.thread_raises, may_lose=True, weight=3),
    "worker cut": Fault(partial(server_faults.cut, of_drivers=False)),
    "worker held": Fault(partial(server_faults.worker_cut_off, begin="hold"), may_lose=True),
    "worker lost bytes": Fault(partial(server_faults.worker_cut_off, begin="drop"), may_lose=True),
    "worker slow": Fault(partial(server_faults.slow, of_drivers=False)),
    "redis killed": Fault(server_faults.redis_killed, weight=4, on="lone"),
    "head node starved": Fault(server_faults.head_starved, weight=3, on="lone"),
    "redis frozen": Fault(server_faults.redis_frozen, on="lone"),
    "clients killed": Fault(server_faults.clients_killed),
    "login refused": Fault(server_faults.login_refused, on="lone"),
    "subscribers killed": Fault(partial(server_faults.clients_killed, kind="pubsub"), weight=1),
    "clients paused": Fault(server_faults.clients_paused, weight=1, on="lone"),
    "memory full": Fault(memory_faults.memory_full),
    "memory made": Fault(memory_faults.memory_made),
    "memory ended": Fault(memory_faults.memory_ended, weight=1),
    # In which the oldest entries of journals are, besides.
    "store away": Fault(server_faults.store_away, may_lose=True, weight=1),
    "queue lost": Fault(server_faults.queue_lost),
    "key lost": Fault(server_faults.key_lost, may_lose=True, weight=1),
    "foreign traffic": Fault(server_faults.foreign_traffic, weight=1),
    "redis emptied": Fault(server_faults.redis_emptied, may_lose=True, weight=1, on="lone"),
    "request made": Fault(partial(request_faults.ask_once_or, how=""), weight=1),
    "request doubled": Fault(partial(request_faults.ask_once_or, how="twice"), weight=1),
    "answer lost": Fault(partial(request_faults.ask_once_or, how="again"), weight=1),
    "task revoked": Fault(request_faults.task_revoked, weight=1),
    "operator oversteps": Fault(request_faults.operator_oversteps, weight=1),
    "orders forged": Fault(request_faults.orders_forged),
    "copy deleted": Fault(server_faults.copy_deleted, weight=1, on="lone"),
    "redis set back": Fault(server_faults.redis_set_back, may_lose=True, weight=1, on="lone"),
    "redis forgets a claim": Fault(server_faults.claim_forgotten, may_lose=True, weight=3, on="lone"),
    "failover": Fault(server_faults.failover, may_lose=True, weight=4, on="fails over"),
    "seat struck": Fault(gangs.seat_struck, may_lose=True, on="gangs"),
    "quota changed": Fault(request_faults.quota_changed, weight=1),
    "standing changed": Fault(request_faults.standing_changed, weight=1),
}
