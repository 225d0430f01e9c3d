"""One run: one or two experiments on the same workers, faults at random moments from a seed, and what the checker says of it all in the end."""

from __future__ import annotations

import heapq
import itertools
import json
import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import breaker
import counting
import gangs
import msgpack
import times as run_times
from checker import FENCED_S, check
from counting import BLAMES, MISCHIEF
from faults import FAULTS
from looks import Looks, Stalls
from observed import SET_BACK_S, BrokenDevice, Found, Isolation, Observed, decoded, entries_on, lines, rows
from quota_check import check_quotas, check_starved
from request_faults import lift_quotas
from waiting import described, eventually
from world import LEAVE_S, Driver, Experiment, Worker, World

#: How long nobody may drive, beyond a driver's lock; a minute by mqtune's own times.
LOSS_GRACE_S: Final = 1.0
#: Not faults at all: requests.
_REQUESTS: Final = ("request made", "request doubled", "answer lost", "task revoked", "operator oversteps")
#: Among whose faults there is a request to end an experiment.
_ENDING: Final = "memory ended"
#: What an operator changes in how experiments share the fleet, and how often in a run at most.
_SHARING: Final = ("quota changed", "standing changed")
#: How many requests a run has at most, if nothing else is asked for.
REQUESTS: Final = 4
#: What may have an experiment that was over go on, in part: more trials are wanted, or it had been ended before all had begun.
_GROWING: Final = frozenset({"add", "set", "end"})
#: Faults that only drivers feel.
_DRIVERS: Final = ("driver", "second", "nobody", "host", *_REQUESTS, *_SHARING)
#: Faults after which a driver may have been silent for longer than that.
_SILENCING: Final = ("seat", "driver", "second", "nobody", "host", "redis", "clients", "memory", "failover")
#: A run that is not over by then hangs: some ten times what it takes, at mqtune's own times.
DEADLINE_S: Final = 180.0
#: For which faults a driver may find no Redis; one that is full is waited for.
_CUTTING_OFF: Final = (
    "seat",
    "redis",
    "failover",
    "clients",
    "driver cut",
    "driver held",
    "driver lost",
    "driver slow",
)
#: For which faults a worker may not hear of other devices, so that it takes one for whole.
_CONFUSING: Final = (
    *("redis", "failover", "clients", "memory", "thread", "worker cut", "worker held", "worker lost", "worker slow"),
)
#: How late a thread may wake up on a machine on which leases mean what they say, as a share of a lease.
_STALL: Final = 0.3


@dataclass
class Outcome:
    """What came of a run."""

    seed: int
    plans: list[dict[str, Any]]
    own_times: bool
    #: Where it keeps everything; gone if all promises were kept.
    folder: str
    #: What was done, when (in seconds since the driver was started), and to whom.
    faults: list[tuple[float, str, str]] = field(default_factory=list)
    violations: Found = field(default_factory=Found)
    #: How often what happened, such as reports, attempts lost, or requests of an action that were carried out.
    counts: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0
    #: How late a thread woke up at worst.
    stall_s: float = 0.0


def plans_of(random: Random, seed: int) -> list[dict[str, Any]]:
    """Return what the experiments of a run tune, and how: one of them, or two that share the workers."""
    number = random.choice([1, 2])
    plans = [plan_of(random, seed, place) for place in range(1, number + 1)]
    # Two do together what one does alone, as a run should not take twice as long.
    return [plan | {"max_trials": max(4, plan["max_trials"] // number)} for plan in plans]


def plan_of(random: Random, seed: int, place: int = 1) -> dict[str, Any]:
    """Return what an experiment tunes, and how; *place* tells it from others of its run."""
    scheduler = random.choice(["ASHA", "ASHA", "PromotionASHA", "PBT", "HyperBand"])
    trainable = random.choice(["function", "function", "class", "script", "careless"])
    # Most report now and then; some as fast as a batch collects them.
    epochs, epoch_s = random.choice([(18, 0.1), (18, 0.1), (150, 0.012)]) if scheduler != "PBT" else (12, 0.1)
    max_trials = {"ASHA": 36, "PromotionASHA": 26, "PBT": 12, "HyperBand": 20}[scheduler]
    on_loss = random.choice(["continue", "continue", "finish", "stop"])
    if on_loss != "continue":
        # Trials that outlast a driver that is gone, until workers go by that.
        epochs, epoch_s, max_trials = 18, 0.8, max_trials // 3
    constants = {
        "epochs": epochs,
        "epoch_s": epoch_s,
        "saves": random.choice(["dict", "folder"]),
        "every": random.choice([1, 1, 3]) if scheduler not in ("PBT", "HyperBand") else 1,
    }
    return {
        "name": f"chaos-{seed}-{place}",
        "seed": seed + place,
        "scheduler": scheduler,
        "trainable": trainable,
        "reuse": trainable == "class" and random.random() < 0.5,
        "epochs": epochs,
        "constants": constants,
        "breaks_at": random.choice([[0], [0, 0, 0, 3]]),
        "mischief": random.choice([[""], ["", "", *MISCHIEF]]),
        "max_trials": max_trials,
        "max_failures": 3,
        "sync": random.choice(["stream", "stream", "stream", "lockstep"]),
        "on_driver_loss": on_loss,
        "driver_loss_grace_s": LOSS_GRACE_S,
        "standing": {
            "priority": random.choice(["high", "normal", "normal", "low"]),
            "share": random.choice([0.5, 1.0, 1.0, 3.0]),
            "preemptible": random.choice([True, False]),
        },
        "ignores_quotas": random.choice([True, False]),
        # What makes gangs of its trials.
        "gang": {},
        # Most drivers need not import Optuna, which takes as long as the rest of their start.
        "searcher": Random(f"{seed} {place} searcher").choice(["random", "random", "tpe"]),
        # Of a random of its own, as courses of seeds are to stay what they were. 0 for mqtune's own: then none comes so far.
        "chapter_bytes": Random(f"{seed} {place} chapters").choice([0, 2_000, 2_000, 20_000]),
    }


def kinds_of(random: Random, number: int, requests: int = REQUESTS) -> list[str]:
    """Return the kinds of a run's faults, in each third run such as touch neither workers nor trials.

    To them come 1 to *requests* requests, and changes to how the fleet is shared.
    """
    calm = random.random() < 1 / 3
    fails_over = not calm and random.random() < 0.4
    redis = "fails over" if fails_over else "lone"
    kinds = [
        name
        for name, fault in FAULTS.items()
        if not (calm and fault.may_lose) and fault.on in ("", redis) and name not in _SHARING
    ]
    chosen = random.choices(kinds, [FAULTS[name].weight for name in kinds], k=number)
    if fails_over:
        chosen[0] = "failover"
    chosen += random.choices(_REQUESTS, k=random.randint(max(1, requests // 4), requests))
    return chosen + random.choices(_SHARING, k=random.randint(0, 3))


@dataclass
class _Driving:
    """Who drives one experiment of the run, and since when nobody does."""

    experiment: Experiment
    #: Where its newest driver says that it is.
    host: str = ""
    is_over: bool = False
    is_starting: bool = False
    no_driver_before: float = 0.0
    undriven_since: float | None = None
    undriven: list[tuple[float, float]] = field(default_factory=list)


class Campaign:
    """A run under way; one thread uses it.

    Args:
        seed: what the run is made of.
        folder: where it keeps everything; a new one.
        own_times: whether mqtune's own times are kept, and not shorter ones.
        kinds: the kinds of its faults, in their order; by default drawn from the seed.
        requests: how many requests there are then at most.
        which: the runs with gangs: "some", as the seed says, "all" or "none".
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        own_times: bool = False,
        kinds: list[str] | None = None,
        requests: int = REQUESTS,
        which: gangs.Which = "some",
    ) -> None:
        self.random = Random(seed)
        self.times = run_times.OWN if own_times else run_times.SHORT
        self.lease_s, self.lock_s = self.times.lease_s, self.times.lock_s
        self.undriven_after_s = self.lock_s + LOSS_GRACE_S
        plans = plans_of(self.random, seed)
        self._kinds = kinds if kinds is not None else kinds_of(self.random, self.random.randint(3, 6), requests)
        if which == "all":
            # Devices are those of single seats.
            self._kinds = [kind for kind in self._kinds if not kind.startswith("device")]
        has_devices = any(kind.startswith("device") for kind in self._kinds)
        if not has_devices:
            plans = gangs.with_gangs(plans, seed, "all" if "seat struck" in self._kinds else which)
            may_strike = kinds is None and any(FAULTS[kind].may_lose for kind in self._kinds)
            if may_strike and any(plan["gang"] for plan in plans):
                self._kinds += gangs.strikes(seed)
        if has_devices and seed % 2:
            # In the other runs an error that says so is to be believed.
            plans = [plan | {"mischief": [*plan["mischief"], *([""] * 7), BLAMES]} for plan in plans]
        fails_over = "failover" in self._kinds
        hosts = 2 if any(kind.startswith("host") for kind in self._kinds) else 0
        self.world = World(folder, plans, self.times, has_devices=has_devices, fails_over=fails_over, hosts=hosts)
        self.outcome = Outcome(seed, plans, own_times, str(folder))
        self._looks = Looks(self.world.server, {each.name: each.keys.leases for each in self.world.experiments})
        self._driving = [_Driving(experiment) for experiment in self.world.experiments]
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._isolations: list[Isolation] = []
        self._broken: list[BrokenDevice] = []
        self._leavers: set[str] = set()
        self._revoked: dict[Experiment, set[tuple[str, int]]] = defaultdict(set)
        self._forgot: list[tuple[float, float]] = []
        self._looked_at: set[int] = set()
        self._seats: set[int] = set()

    # What faults use.

    def later(self, delay_s: float, action: Callable[[], object]) -> None:
        """Do something in some seconds, or when the experiments are over."""
        heapq.heappush(self._actions, (time.monotonic() + delay_s, next(self._order), action))

    def wrong(self, promise: str, what: str) -> None:
        self.outcome.violations.wrong(promise, what)

    def isolated(self, workers: list[Worker], begin: float) -> None:
        """Take note that workers could hear nothing since *begin* until now."""
        self._isolations += [Isolation(worker.name, begin, time.monotonic()) for worker in workers]

    def forgot(self, begin: float) -> None:
        """Take note that the Redis was away since *begin*, and has come back with less."""
        self._forgot.append((begin, time.monotonic()))

    def undriven(self, experiment: Experiment, for_s: float) -> None:
        """Record that nobody drives an experiment from now on, and keep it so for some seconds."""
        driving = next(each for each in self._driving if each.experiment is experiment)
        driving.undriven_since = time.monotonic()
        driving.no_driver_before = driving.undriven_since + for_s

    def broke(self, seat: int, device: str, error: str) -> None:
        """Take note that a device of a seat is broken from now on: what runs there fails with this error."""
        self._broken.append(BrokenDevice(seat, device, error, time.monotonic()))

    def left(self, worker: Worker) -> None:
        """Take note that a worker was told to end."""
        self._leavers.add(worker.name)

    def struck(self, kind: str, what: str) -> None:
        """Take note of a fault that has waited for its moment."""
        self.outcome.faults.append((round(time.monotonic() - self._began, 2), kind, what))

    def revoked(self, experiment: Experiment, trial: str, attempt: int) -> None:
        """Take note that Celery was told to revoke the task of an attempt."""
        self._revoked[experiment].add((trial, attempt))

    # The run.

    def run(self) -> Outcome:
        """Run it to the end and return what came of it; everything that it started is gone then."""
        began = time.monotonic()
        stalls = Stalls()
        try:
            with stalls, self._looks:
                self.world.start()
                self._began = time.monotonic()
                self._brew()
                for driving in self._driving:
                    self._start_driver(driving)
                if self._reach_end():
                    self._end_in_good_order(stalls)
        except Exception as error:  # whatever breaks here is to be looked at
            self.wrong("run", f"{type(error).__name__}: {error}")
        finally:
            self.world.close()
        self.outcome.took_s = round(time.monotonic() - began, 2)
        self.outcome.stall_s = round(stalls.worst_s, 2)
        return self.outcome

    def _brew(self) -> None:
        """Have one fault in three come while drivers start, and the others once a trial runs, however long that takes."""
        early, late = [], []
        for kind in self._kinds:
            is_early, at_s = self.random.random() < 1 / 3, self.random.uniform(0.2, 6.0)
            (early if is_early else late).append((at_s, kind))

        def plan(strikes: list[tuple[float, str]]) -> None:
            for at_s, kind in strikes:
                self.later(at_s, partial(self._strike, kind))

        def begin() -> None:
            if self._is_over or any(map(self.world.has_begun, self.world.experiments)):
                plan(late)
            else:
                self.later(0.1, begin)

        plan(early)

        begin()

    @property
    def _is_over(self) -> bool:
        return all(driving.is_over for driving in self._driving)

    def _strike(self, kind: str) -> None:
        if self._is_over:
            return
        at = time.monotonic()
        what = FAULTS[kind].act(self)
        if what:
            self.outcome.faults.append((round(at - self._began, 2), kind, what))
        elif kind in (*_REQUESTS, *_SHARING, _ENDING):
            # There is nothing yet that anything could be asked for.
            self.later(0.5, partial(self._strike, kind))

    def _reach_end(self) -> bool:
        deadline = time.monotonic() + DEADLINE_S
        while not self._is_over:
            if len(self.outcome.violations) > 5:
                return False
            if time.monotonic() > deadline:
                self.wrong("11", f"not over after {DEADLINE_S:g} s; {len(self.world.living_drivers())} drivers live")
                return False
            self._do_what_is_due()
            self._look_at_drivers()
            self._look_at_workers()
            time.sleep(0.02)
        return True

    def _do_what_is_due(self) -> None:
        while self._actions and self._actions[0][0] <= time.monotonic():
            heapq.heappop(self._actions)[2]()

    def _look_at_drivers(self) -> None:
        world = self.world
        world.adopt()
        for driver in world.drivers:
            if driver.number not in self._looked_at and not driver.lives:
                self._looked_at.add(driver.number)
                self._driver_ended(driver)
        for driving in self._driving:
            if not driving.is_over and not driving.is_starting and not world.living_drivers(driving.experiment):
                driving.is_starting = True
                wait_s = max(self.random.choice([0.0, 0.5, 2.0]), driving.no_driver_before - time.monotonic())
                self.later(wait_s, partial(self._start_driver, driving))

    def _start_driver(self, driving: _Driving) -> None:
        driving.is_starting = False
        if self.world.living_drivers(driving.experiment) or driving.is_over:
            return
        if self.world.hosts and not self.world.submit(driving.experiment):
            # One that was submitted waits, or runs; or the Redis is away.
            return
        if driving.undriven_since is not None:
            driving.undriven.append((driving.undriven_since + self.undriven_after_s, time.monotonic()))
            driving.undriven_since = None
        if self.world.hosts:
            return
        attaches = len(self.world.drivers_of(driving.experiment)) > 0 and self.random.random() < 0.5
        driver = self.world.start_driver(driving.experiment, host=driving.host, attaches=attaches)
        driving.host = driver.host

    def _driver_ended(self, driver: Driver) -> None:
        how = self.world.how_it_ended(driver)
        log = self.world.log_of(driver)
        if "the searcher now suggests" in log:
            self.wrong("12", f"driver {driver.number}: its searcher suggested something else: {_tail(log)}")
        if how == "finished":
            next(each for each in self._driving if each.experiment is driver.experiment).is_over = True
        elif how == "broken":
            self.wrong("driver", f"driver {driver.number} broke: {_tail(log)}")
        elif how == "refused":
            error = log.strip().splitlines()[-1].partition(":")[0] if log.strip() else ""
            kinds = [kind for _, kind, _ in self.outcome.faults]
            is_cut_off = any(kind.startswith(_CUTTING_OFF) for kind in kinds)
            may_refuse = {"NameTaken", "DriverFenced"}
            may_refuse |= {"BrokerUnavailable"} if is_cut_off else set()
            may_refuse |= {"ChapterUnavailable", "StoreUnavailable"} if "store away" in kinds else set()
            # A driver that begins meanwhile is started again.
            may_refuse |= {"BrokerRefused"} if "login refused" in kinds else set()
            if error not in may_refuse:
                self.wrong("driver", f"driver {driver.number} refused: {_tail(log)}")

    def _look_at_workers(self) -> None:
        seated = {worker.seat for worker in self.world.living_workers()}
        for worker in self.world.workers:
            if not worker.lives and not worker.is_given_up:
                worker.is_given_up = True
                if worker.is_struck and worker.process.returncode == os.EX_SOFTWARE:
                    continue
                log = self.world.log_of_worker(worker)
                # One that is started while the Redis is away, or full, says so, and is started again.
                if " ready." in log or not log.strip().splitlines()[-1].startswith("mqtune: "):
                    self.wrong("worker", f"worker {worker.name} ended with {worker.process.returncode}: {_tail(log)}")
        for seat in range(self.world.seats):
            if seat not in seated and seat not in self._seats:
                self._seats.add(seat)
                self.later(self.random.choice([0.0, 1.0]), partial(self._start_worker, seat))

    def _start_worker(self, seat: int) -> None:
        self._seats.discard(seat)
        if not self._is_over:
            self.world.start_worker(seat)

    # The end.

    def _end_in_good_order(self, stalls: Stalls) -> None:
        """Undo what is not undone, read everything once more, and have all end as it should."""
        world = self.world
        while self._actions:
            heapq.heappop(self._actions)[2]()
        eventually(lambda: all(each.poll() is not None for each in world.commands), DEADLINE_S, "an operator waits on")
        lift_quotas(self)
        for each in world.experiments:
            eventually(partial(world.halt, each), LEAVE_S, f"the submitted driver of {each.name} does not end")
        eventually(lambda: not world.living_drivers(), DEADLINE_S, "drivers run on although all is finished")
        self._look_at_drivers()
        seen = [self._read_again(driving, stalls) for driving in self._driving]
        self._look_at_threads()
        for problem in world.end_workers():
            self.wrong("11", problem)
        seen[0].left = [described(process) for process in world.processes()]
        for observed in seen:
            self.outcome.violations += check(observed)
            self._count(observed)
        self._check_quotas(seen)

    def _look_at_threads(self) -> None:
        """No worker serves on without a thread that an error has ended."""
        for worker in self.world.workers:
            if where := breaker.struck(worker.order):
                self.outcome.counts["threads that raised"] += 1
                if breaker.is_dead(worker.order) and worker.lives and not worker.is_given_up:
                    self.wrong("thread", f"worker {worker.name} lives on without its thread, which broke in {where}")

    def _check_quotas(self, seen: list[Observed]) -> None:
        # What can't be read was found before.
        names = [each.name for each in self.world.experiments]
        journals = {name: decoded(each.entries, Found()) for name, each in zip(names, seen, strict=True)}
        clock, looks = seen[0].clock, self._looks.taken
        forgot = [(begin - SET_BACK_S + clock, end + 2 * FENCED_S + clock) for begin, end in self._forgot]
        found, self.outcome.counts["claims under a quota"] = check_quotas(journals, looks, self.lease_s, forgot)
        self.outcome.violations += [*found, *check_starved(journals, looks)]

    def _read_again(self, driving: _Driving, stalls: Stalls) -> Observed:
        """Have another driver read a finished experiment, which must find the same; return what was seen of it."""
        world, results = self.world, driving.experiment.results
        first = json.loads(results.read_text())
        reader = world.start_driver(driving.experiment, host=driving.host)
        eventually(lambda: not reader.lives, DEADLINE_S, "the finished experiment can't be read")
        second = json.loads(results.read_text())
        asked = {what.split()[1] for _, kind, what in self.outcome.faults if kind in (*_REQUESTS, _ENDING)}
        if world.how_it_ended(reader) != "finished" or is_another(first, second, may_grow=bool(_GROWING & asked)):
            self.wrong("6", f"read again, the experiment is another: {_tail(world.log_of(reader))}")
        return self._observed(driving, second, stalls)

    def _observed(self, driving: _Driving, results: dict[str, Any], stalls: Stalls) -> Observed:
        world, plan = self.world, driving.experiment.plan
        client, keys = world.server.client, driving.experiment.keys
        prefix = keys.trial("")
        lasting = [key.decode()[len(prefix) :] for key in client.scan_iter(prefix + "*") if client.ttl(key) == -1]
        store = world.folder / "store" / plan["name"]
        seconds, microseconds = client.time()
        entries, chapters = entries_on(client, keys.journal, keys.chapters, store)
        self.outcome.counts["chapters"] += chapters
        trials = {
            key.decode()[len(prefix) :]: client.hget(key, "state").decode()
            for key in client.scan_iter()
            if key.startswith(prefix.encode())
        }
        kinds = [kind for _, kind, _ in self.outcome.faults]
        may_not_hear = any(kind.startswith(_CONFUSING) for kind in kinds)
        is_stalled = stalls.worst_s > _STALL * self.lease_s
        return Observed(
            entries=entries,
            max_trials=plan["max_trials"],
            max_failures=plan["max_failures"],
            told=[lines(driver.told) for driver in world.drivers_of(driving.experiment)],
            results=results,
            beats=counting.last_beats(world.folder / "beats", plan["name"]),
            clock=seconds + microseconds / 1e6 - time.monotonic(),
            isolations=self._isolations,
            leavers=frozenset(self._leavers),
            may_lose=is_stalled or any(FAULTS[kind].may_lose for kind in kinds),
            forgot=self._forgot,
            on_loss=plan["on_driver_loss"],
            may_be_undriven=is_stalled or any(kind.startswith(_SILENCING) for kind in kinds),
            undriven=driving.undriven,
            only_drivers=not is_stalled and all(kind.startswith(_DRIVERS) for kind in kinds),
            keys={
                "leases": client.zrange(keys.leases, 0, -1),
                "staged": client.zrange(keys.staged, 0, -1),
                "trials": trials,
                "lasting": lasting,
                "checkpoints": {name.decode(): data for name, data in client.hgetall(keys.checkpoints).items()},
            },
            store=store,
            store_was_away="store away" in kinds,
            said=lines(driving.experiment.said),
            broken=self._broken,
            pause_s=self.times.first_probe_s if not is_stalled and not may_not_hear else 0.0,
            revoked=frozenset(self._revoked[driving.experiment]),
            seats=gangs.seats_in(plan),
            are_apart="machines" in plan["gang"],
        )

    def _count(self, observed: Observed) -> None:
        counts = self.outcome.counts
        counts["drivers"], counts["workers"] = len(self.world.drivers), len(self.world.workers)
        processes = Counter((trial, attempt) for trial, attempt, _ in observed.beats)
        counts["attempts that ran twice"] += sum(number > 1 for number in processes.values())
        asked: dict[str, str] = {}
        for _, data in observed.entries:
            _, kind, body = msgpack.unpackb(data)
            match kind:
                case "reports":
                    counts["reports"] += sum(1 for _ in rows(body))
                case "started" if observed.seats > 1:
                    counts["gangs"] += not body.get("seat", 0)
                    counts["seats of gangs"] += 1
                case "ended":
                    counts["attempts lost"] += body["end"] == "lost"
                case "decided":
                    counts["attempts paused for others"] += body["intent"] == "give_way"
                case "requested":
                    asked[body["id"]] = body["action"]
                case "answered":
                    counts[f"{asked.get(body['id'])} {'done' if body['done'] else 'refused'}"] += 1


def is_another(first: dict[str, Any], second: dict[str, Any], *, may_grow: bool) -> bool:
    """Whether an experiment that is read again is another one.

    The next driver goes on with one that a request has ended, and with what was asked for too late. Then checkpoints of
    trials that have ended may be deleted for better ones.
    """
    if first.keys() == second.keys() or not may_grow:
        return first != second
    return any(trial | {"checkpoints": []} != second.get(id_, {}) | {"checkpoints": []} for id_, trial in first.items())


def _tail(log: str) -> str:
    return log.strip()[-600:]


def run_one(seed: int, folder: Path, **how: Any) -> Outcome:
    """Run one seed in a new folder, which is removed if all promises were kept; see Campaign."""
    outcome = Campaign(seed, folder, **how).run()
    if not outcome.violations:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome
