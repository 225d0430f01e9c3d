"""The figures of a whole fleet: queues, slots, drivers, shares and ends of attempts."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from mqtune.core.errors import BrokerUnavailable, MqtuneError
from mqtune.core.keys import is_name
from mqtune.core.priorities import MESSAGE_ORDER, MESSAGE_PRIORITIES, lists_of
from mqtune.core.resources import queues_of
from mqtune.core.timing import Timing
from mqtune.core.trial import ENDS
from mqtune.core.worker_info import busy_as
from mqtune.journal import (
    Fleet,
    State,
    States,
    ask_each,
    entry_time,
    experiments_on,
    open_client,
    redact,
    room_of,
)
from mqtune.services.exporter.figures import Figure
from mqtune.services.exporter.tail import Tail
from mqtune.services.shares.demands import Demands
from mqtune.services.shares.overview import shares_of
from mqtune.services.shares.quotas import Quotas

if TYPE_CHECKING:
    from mqtune.core.worker_info import WorkerInfo
    from mqtune.services.shares.divider import Table

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: How long journals are read in one call. The next call reads the rest.
_READ_S: Final = 3.0
#: For how long ended attempts of a worker count after it has gone. Alerts cover a shorter time.
_KEPT_S: Final = 3_600.0

_OWNED: Final = ("experiment", "owner", "account")
_SHARED: Final = (*_OWNED, "priority")
#: Each metric with its text and its labels.
METRICS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "mqtune_redis_up": ("Whether Redis has answered. If not, all other figures are missing.", ()),
    "mqtune_redis_memory_bytes": ("Memory that Redis uses.", ()),
    "mqtune_redis_memory_limit_bytes": ("Memory that Redis may use; 0 for no limit.", ()),
    "mqtune_queue_workers": ("Connected workers with slots of one shape.", ("queue", "version")),
    "mqtune_queue_slots": ("Slots of the connected workers.", ("queue",)),
    "mqtune_queue_slots_busy": ("Slots of these workers that have an attempt.", ("queue",)),
    "mqtune_queue_waiting": ("Attempts that wait in a queue.", ("queue", "priority")),
    "mqtune_fleet_impaired_seconds": (
        "For how long a worker, or one of its devices, has been impaired.",
        ("worker", "device", "kind"),
    ),
    "mqtune_fleet_attempts_ended_total": (
        "Attempts that have ended since the exporter began, by the devices of their slot and their end.",
        ("worker", "device", "end"),
    ),
    "mqtune_experiment_running": ("Attempts that run.", _OWNED),
    "mqtune_experiment_waiting": ("Attempts that are queued and wait for a slot.", _OWNED),
    "mqtune_experiment_waiting_oldest_seconds": ("For how long the first of the waiting attempts has waited.", _OWNED),
    "mqtune_experiment_driver_up": ("Whether a driver has the experiment.", _OWNED),
    "mqtune_experiment_script_up": ("Whether a worker runs its submitted script in a driver slot.", _OWNED),
    "mqtune_experiment_driver_behind_seconds": (
        "Age of the oldest unread entry of the journal when its driver last renewed its lock.",
        _OWNED,
    ),
    "mqtune_experiment_last_event_timestamp_seconds": ("Time of its newest event.", _OWNED),
    "mqtune_experiment_journal_bytes": ("Size of its journal in Redis.", _OWNED),
    "mqtune_experiment_journal_limit_bytes": ("Largest size that its journal may have; 0 for no limit.", _OWNED),
    "mqtune_experiment_slots_held": ("Slots in which it runs.", _SHARED),
    "mqtune_experiment_slots_wanted": ("Slots that it could use, including those that it has.", _SHARED),
    "mqtune_experiment_slots_entitled": ("Slots that it may have now, in view of all demands.", _SHARED),
    "mqtune_experiment_share": ("Its weight against others of its priority.", _SHARED),
    "mqtune_experiment_starved_seconds": ("For how long it has had no slot while others have them.", _SHARED),
    "mqtune_quota_slots": ("Slots that the experiments under a quota may have together.", ("quota",)),
    "mqtune_quota_slots_used": ("Slots in which these experiments run.", ("quota",)),
}
_PRIORITY_OF: Final = {number: name for name, number in MESSAGE_PRIORITIES.items()}
#: One value: the metric's name, the value, and the values of its labels.
_Value = tuple[str, float, tuple[str, ...]]


class FleetReader:
    """Reads the figures of a broker's fleet with each call; any thread may call it.

    It reads the new entries of each journal. Ended experiments are left out. Figures that the account may not read are
    left out, with one warning. If the server is away, ``mqtune_redis_up`` is 0.

    Args:
        url: the broker's URL; a monitor's account is enough.
        timing: the times of its connection.

    Raises:
        ConfigurationError: the URL can't be read.
    """

    def __init__(self, url: str, *, timing: Timing = Timing()) -> None:
        self._place = redact(url)
        answer_s = timing.figures_answer_s
        quick = replace(timing, connect_timeout_s=answer_s, command_timeout_s=answer_s)
        client = open_client(url, timing=quick, role="exporter")
        self._client = client
        self._fleet, self._demands = Fleet(client, patience_s=0), Demands(client, patience_s=0)
        self._quotas, self._states = Quotas(client, patience_s=0), States(client, patience_s=0)
        self._tails: dict[str, Tail] = {}
        self._ended: Counter[tuple[str, str, str]] = Counter()
        #: When each worker was last in the register, or an attempt on it ended, by the monotonic clock.
        self._seen: dict[str, float] = {}
        #: Queues in which attempts waited at the last call. Their workers may be gone.
        self._queues: set[str] = set()
        self._told: set[str] = set()
        self._is_up = True
        self._turn = threading.Lock()

    def __call__(self) -> list[Figure]:
        """Return all figures of this moment."""
        with self._turn:
            figures: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
            try:
                for name, value, labels in self._all():
                    figures[name][labels] = value
                is_up = True
            except BrokerUnavailable as error:
                if self._is_up:
                    logger.warning("%s does not answer: %s", self._place, error)
                figures.clear()
                is_up = False
            if is_up and not self._is_up:
                logger.warning("%s answers again", self._place)
            self._is_up = is_up
            figures["mqtune_redis_up"][()] = float(is_up)
        return [Figure(name, text, labels, figures[name]) for name, (text, labels) in METRICS.items()]

    def _all(self) -> Iterator[_Value]:
        if (room := room_of(self._client, patience_s=0)) is not None:
            yield "mqtune_redis_memory_bytes", room.used, ()
            yield "mqtune_redis_memory_limit_bytes", room.most, ()
        workers, table = self._known(self._fleet.workers) or [], self._demands.table()
        yield from self._of_queues(workers, table)
        for quota in self._known(self._quotas.all) or ():
            yield "mqtune_quota_slots", quota.slots, (quota.pattern,)
            yield "mqtune_quota_slots_used", quota.running, (quota.pattern,)
        names = self._known(lambda: experiments_on(self._client, patience_s=0)) or []
        states = self._states.read(filter(is_name, names))
        owned = self._read_journals(states)
        # By the server's clock, as all times here.
        ((seconds, microseconds),) = ask_each(self._client, [("TIME",)], patience_s=0)
        now = seconds + microseconds / 1e6
        yield from self._of_experiments({name: states[name] for name in owned}, owned, now)
        yield from _of_shares(owned, workers, table)
        yield from self._of_workers(workers, now)

    def _known(self, ask: Callable[[], T]) -> T | None:
        """Return the answer of *ask*. If the account may not read it, warn once and return None."""
        try:
            return ask()
        except BrokerUnavailable:
            raise
        except MqtuneError as error:
            if str(error) not in self._told:
                self._told.add(str(error))
                logger.warning("some figures are left out: %s", error)
        return None

    # Slots.

    def _of_queues(self, workers: Iterable[WorkerInfo], table: Table | None) -> Iterator[_Value]:
        groups: defaultdict[str, list[WorkerInfo]] = defaultdict(list)
        for info in workers:
            groups[info.queue].append(info)
        for queue, group in groups.items():
            for version, count in Counter(info.version for info in group).items():
                yield "mqtune_queue_workers", count, (queue, version)
            yield "mqtune_queue_slots", sum(info.slots for info in group), (queue,)
            yield "mqtune_queue_slots_busy", sum(info.busy_slots for info in group), (queue,)
        wanted = {queue for demand in (table.demands if table is not None else ()) for queue in demand.queues}
        queues = sorted({queue for name in {*groups, *wanted} for queue in queues_of(name)} | self._queues)
        lists = [(queue, *pair) for queue in queues for pair in zip(MESSAGE_ORDER, lists_of(queue), strict=True)]
        lengths = ask_each(self._client, [("LLEN", name) for _, _, name in lists], patience_s=0)
        waiting: Counter[tuple[str, str]] = Counter()
        for (queue, number, _), length in zip(lists, lengths, strict=True):
            if length is not None:
                waiting[queue, _PRIORITY_OF.get(number, "low")] += length
        self._queues = {queue for (queue, _), count in waiting.items() if count}
        for labels, count in waiting.items():
            yield "mqtune_queue_waiting", count, labels

    def _of_workers(self, workers: Iterable[WorkerInfo], now: float) -> Iterator[_Value]:
        seen_at = time.monotonic()
        for info in workers:
            self._seen[info.name] = seen_at
            for impairment in info.impairments:
                yield (
                    "mqtune_fleet_impaired_seconds",
                    max(0.0, now - impairment.since),
                    (info.name, impairment.device, impairment.kind),
                )
        self._seen = {name: at for name, at in self._seen.items() if seen_at - at < _KEPT_S}
        self._ended = Counter({end: count for end, count in self._ended.items() if end[0] in self._seen})
        # A count that begins at 1 is no increase for Prometheus.
        nothing = {(info.name, devices, end): 0 for info in workers for devices in info.devices for end in ENDS}
        for labels, count in {**nothing, **self._ended}.items():
            yield "mqtune_fleet_attempts_ended_total", count, labels

    # Experiments.

    def _read_journals(self, states: dict[str, State]) -> dict[str, tuple[str, ...]]:
        """Read new entries of journals, and return the labels of the experiments under way."""
        self._tails = {name: tail for name, tail in self._tails.items() if name in states}
        deadline = time.monotonic() + _READ_S
        # Journals without a turn the last time come first.
        for name in sorted(states, key=lambda name: name in self._tails):
            if time.monotonic() >= deadline:
                break
            self._known(partial(self._follow, name, states[name].last, deadline))
        return {
            name: (name, tail.owner.user, tail.owner.account)
            for name, tail in self._tails.items()
            if tail.owner is not None and not tail.has_ended
        }

    def _follow(self, name: str, newest: str, deadline: float) -> None:
        tail = self._tails.get(name)
        if tail is not None and newest == tail.last:
            return
        if tail is None or not tail.is_before(newest):
            # Another experiment has the name, or the server was set back.
            tail = self._tails[name] = Tail(self._client, name, patience_s=0)
        for ended in tail.read_new(deadline):
            self._ended[ended] += 1
            self._seen[ended.worker] = time.monotonic()

    def _of_experiments(
        self, states: dict[str, State], owned: dict[str, tuple[str, ...]], now: float
    ) -> Iterator[_Value]:
        driven = {name: state for name, state in states.items() if state.driver_until > now}
        lagging = {name: state.read for name, state in driven.items() if state.read and state.read != state.last}
        unread = self._states.next_times(lagging)
        for name, state in states.items():
            labels = owned[name]
            yield "mqtune_experiment_driver_up", float(name in driven), labels
            if name in driven and state.read:
                behind_s = state.driver_until - self._client.timing.lock_s - unread.get(name, now)
                yield "mqtune_experiment_driver_behind_seconds", max(0.0, behind_s), labels
            yield "mqtune_experiment_last_event_timestamp_seconds", entry_time(state.last), labels
            yield "mqtune_experiment_journal_bytes", state.size, labels
            yield "mqtune_experiment_journal_limit_bytes", state.most, labels
        for name, is_running in self._states.scripts(states).items():
            yield "mqtune_experiment_script_up", float(is_running), owned[name]
        for name, counts in self._states.under_way(states).items():
            yield "mqtune_experiment_running", counts.running, owned[name]
            yield "mqtune_experiment_waiting", counts.waiting, owned[name]
            waited_s = max(0.0, now - counts.oldest) if counts.waiting else 0.0
            yield "mqtune_experiment_waiting_oldest_seconds", waited_s, owned[name]


def _of_shares(
    owned: dict[str, tuple[str, ...]], workers: Iterable[WorkerInfo], table: Table | None
) -> Iterator[_Value]:
    labels_of = {busy_as(name): labels for name, labels in owned.items()}
    for share in shares_of(table, workers) if table is not None else ():
        if (labels := labels_of.get(share.token)) is None:
            continue
        values = {
            "slots_held": share.running,
            "slots_wanted": share.wanted,
            "slots_entitled": share.may_run,
            "share": share.share,
            "starved_seconds": share.waiting_s,
        }
        for name, value in values.items():
            yield f"mqtune_experiment_{name}", value, (*labels, share.priority)
