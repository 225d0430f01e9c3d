"""What goes wrong in a run, one kind of fault each: it happens now, and what passes is undone some seconds later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import gangs
import memory_faults
import process_faults
import request_faults
import server_faults
import sharing_faults
from befalling import Run


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
    "driver killed": Fault(process_faults.driver_killed, weight=5),
    "driver interrupted": Fault(process_faults.driver_interrupted),
    "second driver": Fault(process_faults.second_driver),
    "driver frozen": Fault(process_faults.driver_frozen, weight=3),
    "nobody drives": Fault(process_faults.nobody_drives),
    # With these, drivers are submitted.
    "host killed": Fault(process_faults.host_killed),
    "host frozen": Fault(process_faults.host_frozen, weight=1),
    "host terminated": Fault(process_faults.host_terminated, weight=1),
    "driver cut": Fault(server_faults.driver_cut),
    "driver held": Fault(server_faults.driver_held),
    "driver lost bytes": Fault(server_faults.driver_lost_bytes),
    "driver slow": Fault(server_faults.driver_slow),
    "worker killed": Fault(process_faults.worker_killed, may_lose=True, weight=4),
    "machine killed": Fault(process_faults.machine_killed, may_lose=True),
    "worker terminated": Fault(process_faults.worker_terminated, may_lose=True, weight=3),
    "worker drained": Fault(process_faults.worker_drained, may_lose=True),
    "worker joins": Fault(process_faults.worker_joins, weight=1),
    "worker frozen": Fault(process_faults.worker_frozen, may_lose=True, weight=3),
    "machine frozen": Fault(process_faults.machine_frozen, may_lose=True),
    "trial killed": Fault(process_faults.trial_killed, may_lose=True),
    # Whose trials run on.
    "importer killed": Fault(process_faults.importer_killed),
    "importer frozen": Fault(process_faults.importer_frozen),
    "zygote killed": Fault(process_faults.zygote_killed, may_lose=True),
    "zygote frozen": Fault(process_faults.zygote_frozen, may_lose=True),
    "device broken": Fault(process_faults.device_broken, may_lose=True, weight=3),
    "device spoils": Fault(process_faults.device_spoils, may_lose=True),
    "thread raises": Fault(process_faults.thread_raises, may_lose=True, weight=3),
    "worker cut": Fault(server_faults.worker_cut),
    "worker held": Fault(server_faults.worker_held, may_lose=True),
    "worker lost bytes": Fault(server_faults.worker_lost_bytes, may_lose=True),
    "worker slow": Fault(server_faults.worker_slow),
    "redis killed": Fault(server_faults.redis_killed, weight=4, on="lone"),
    "redis frozen": Fault(server_faults.redis_frozen, on="lone"),
    "clients killed": Fault(server_faults.clients_killed),
    "login refused": Fault(server_faults.login_refused, on="lone"),
    "subscribers killed": Fault(server_faults.subscribers_killed, weight=1),
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
    "request made": Fault(request_faults.request_made, weight=1),
    "request doubled": Fault(request_faults.request_doubled, weight=1),
    "answer lost": Fault(request_faults.answer_lost, weight=1),
    "task revoked": Fault(request_faults.task_revoked, weight=1),
    "operator oversteps": Fault(request_faults.operator_oversteps, weight=1),
    "orders forged": Fault(request_faults.orders_forged),
    "copy deleted": Fault(server_faults.copy_deleted, weight=1, on="lone"),
    "redis set back": Fault(server_faults.redis_set_back, may_lose=True, weight=1, on="lone"),
    "redis forgets a claim": Fault(server_faults.claim_forgotten, may_lose=True, weight=3, on="lone"),
    "failover": Fault(server_faults.failover, may_lose=True, weight=4, on="fails over"),
    "seat struck": Fault(gangs.seat_struck, may_lose=True, on="gangs"),
    "quota changed": Fault(sharing_faults.quota_changed, weight=1),
    "standing changed": Fault(sharing_faults.standing_changed, weight=1),
}
