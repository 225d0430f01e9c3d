"""Drivers and workers that do anything in any order, late, twice and with old tokens, hear the same of both journals."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
import redis
from contract.journals.world import FaultyLine, MemoryWorld, RedisWorld, unlike
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from mqtune.core.codec import REPORTS_PREFIX, decode_value, pack_metrics, segment_bytes
from mqtune.core.errors import DriverFenced, JournalGone, NameTaken
from mqtune.core.events import Reports, Requested, decode_event
from mqtune.core.keys import ExperimentKeys, control_channel
from mqtune.core.tasks import task_in, task_name
from mqtune.core.timing import Timing
from mqtune.core.trial import CheckpointId, Intent, TrialId, checkpoint_id
from mqtune.journal import (
    Assignment,
    AttemptCheck,
    Claim,
    DriverState,
    Entry,
    Grant,
    Journal,
    LastAttempt,
    OnLoss,
    Order,
    RedisClient,
    RedisJournal,
    Segment,
    Unclaimed,
    revocation,
)

EXPERIMENT: Final = "x"
#: The unit in which time passes: much more than an example takes, so that on Redis nothing runs out by itself.
TICK_S: Final = 1000.0
TRIALS: Final = [TrialId("0001"), TrialId("0002"), TrialId("0003")]
#: Those of them that may be gangs, and the names of all seats.
GANGS: Final = {"0002": ["", "2:apart:1 CPU"], "0003": ["2:apart:1 CPU", "2:any:1 CPU", "3:any:1 CPU"]}
SEATS: Final = [*TRIALS, task_name(TRIALS[1], 1), task_name(TRIALS[2], 1), task_name(TRIALS[2], 2)]
WORKERS: Final = ["w0", "w1", "w2"]
#: Calls that are known again by a mark which each call makes anew: when the journal asks again, that is nothing new, and
#: when its caller does, it is.
MARKED: Final = frozenset({"record"})


#: The outcome of a driver's call after a later driver took over, and after the server lost that the driver had the lock.
DRIVER_FENCED: Final = "the driver is fenced"
JOURNAL_GONE: Final = "the journal is gone"


@dataclass(frozen=True)
class Taken:
    """The outcome of asking for a lock that another driver holds: who, and how much longer."""

    holder: str
    left_s: float


@dataclass(frozen=True)
class Place:
    """An entry by its number: each journal has an id of its own for it."""

    number: int


@dataclass
class Seat:
    """One process: its journal on Redis, and in memory."""

    redis: Journal
    memory: Journal
    #: Of a driver: who it is, and the epoch that it has learnt from the answers that it has heard.
    owner: str = ""
    description: str = ""
    epoch: int = 0


class ShiftedWorld(RedisWorld):
    """A server with one experiment, whose time passes when it is told to."""

    def __init__(self, client: redis.Redis, subscription: Any) -> None:
        super().__init__(client)
        self.line: Any = FaultyLine(client)
        self.subscription = subscription
        self.passed_s = 0.0
        self.published()

    def journal(self, experiment: str = EXPERIMENT) -> Journal:
        return RedisJournal(self.line, experiment)

    def let_pass(self, seconds: float) -> None:
        """Set whatever runs out back, which is the same to everybody."""
        self.passed_s += seconds
        self._shift(seconds)

    def _shift(self, seconds: float) -> None:
        keys = ExperimentKeys(EXPERIMENT)
        for key in (keys.leases, keys.staged):
            scores = dict(self.client.zrange(key, 0, -1, withscores=True))
            if scores:
                self.client.zadd(key, {trial: at - seconds * 1000 for trial, at in scores.items()})
        for trial, field in itertools.product(SEATS, ("held_until", "seated_until")):
            until = self.client.hget(keys.trial(trial), field)
            if until is not None:
                self.client.hset(keys.trial(trial), field, round(int(until) - seconds * 1000))
        lock_until = self.client.hget(keys.meta, "driver_until")
        if lock_until is not None:
            self.client.hset(keys.meta, "driver_until", int(float(lock_until) - seconds * 1000))

    def snapshot(self) -> Any:
        return self.passed_s, super().snapshot()

    def set_back(self, snapshot: Any) -> None:
        passed_s, held = snapshot or (self.passed_s, {})
        super().set_back(held)
        self._shift(self.passed_s - passed_s)

    def forget(self, trial: TrialId, what: str = "trial") -> None:
        keys = ExperimentKeys(EXPERIMENT)
        self.client.delete(keys.trial(trial))
        self.client.zrem(keys.leases, trial)
        self.client.zrem(keys.staged, trial)

    def published(self) -> list[tuple[str, bytes]]:
        """Return what came on all channels since this was asked last: channel and data."""
        # What was published before is answered before this is.
        self.subscription.ping()
        found = []
        while (message := self.subscription.get_message(timeout=10.0)) is None or message["type"] != "pong":
            if message is not None and message["type"] == "pmessage":
                found.append((message["channel"].decode(), message["data"]))
        return found

    def close(self) -> None:
        self.client.flushdb()


driver = st.sampled_from(["holder"] * 4 + ["first", "second"])
worker = st.sampled_from(WORKERS)
trial = st.sampled_from(TRIALS)
place = st.sampled_from(SEATS)
#: By how much a call names another attempt than the current one, or another sequence number than the next.
off = st.sampled_from([0] * 8 + [-1, 1])
whose = st.sampled_from(
    ["holder"] * 8 + ["other token", "no token", "attempt before", "attempt after", "tried", "first"]
)
ticks = st.sampled_from([0, 1, 1, 2, 3])
#: What happens without a driver; the grace ends between two ticks, since at the very moment either would be right.
on_loss = st.builds(
    OnLoss, st.sampled_from(["continue", "finish", "stop", "stop"]), st.sampled_from([0.5 * TICK_S, 1.5 * TICK_S])
)
intent = st.sampled_from([Intent.STOP, Intent.STOP, Intent.PAUSE, Intent.HAND_BACK, Intent.COMPLETE])
number = st.integers(1, 3)


class JournalMachine(RuleBasedStateMachine):
    """Two drivers and three workers at one journal and at its twin, on a line that is cut now and then."""

    def __init__(self, open_world: Callable[[], ShiftedWorld]) -> None:
        super().__init__()
        self.world = open_world()
        self.twin = MemoryWorld()
        self.seats = {
            "first": self._new_seat("first-owner", "driver on a"),
            "second": self._new_seat("second-owner", "driver on b"),
        }
        self.workers = {name: self._new_seat() for name in WORKERS}
        self.eye = self._new_seat()
        #: All claims that anybody tried, and the last one that was granted.
        self.claims: dict[TrialId, list[Claim]] = defaultdict(list)
        self.granted: dict[TrialId, Claim] = {}
        self.ids: list[str] = ["0-0"]
        self.twin_ids: list[str] = ["0-0"]
        self.entries: list[bytes] = []
        #: Id, the id before, and bytes of what was appended.
        self.published: list[tuple[str, str, bytes]] = []
        #: Calls that were made, and calls that are still on their way.
        self.past: list[tuple[Any, ...]] = []
        self.late: list[tuple[Any, ...]] = []
        self.holds_back = False
        #: What of the next calls, the last one first, is lost on its way: the call, the answer, or nothing.
        self.losing: list[str] = []
        self.count = 0
        self.is_sound = True

    def _new_seat(self, owner: str = "", description: str = "") -> Seat:
        return Seat(self.world.journal(), self.twin.journal(), owner, description)

    # What the rules share.

    def event(self, what: str) -> bytes:
        self.count += 1
        return f"{what} {self.count}".encode()

    @property
    def holder(self) -> Seat | None:
        """The driver that has, or had, the lock last, if it is one of the two."""
        return next((seat for seat in self.seats.values() if seat.epoch and seat.epoch == self.twin.state.epoch), None)

    def seat(self, which: str) -> Seat:
        """A driver: the one that has, or had, the lock last, or one of the two."""
        return (self.holder or self.seats["first"]) if which == "holder" else self.seats[which]

    def newest(self, trial: TrialId) -> int:
        """The number of a trial's attempt; 0 if it has none."""
        state = self.twin.state.trials.get(trial)
        return 0 if state is None else state.attempt

    def attempt(self, trial: TrialId, off: int) -> int:
        return max(1, (self.newest(trial) or 1) + off)

    def of(self, trial: TrialId, whose: str) -> Claim:
        """A claim of a trial: the last one that was granted, or one that is wrong in some way."""
        tried = self.claims[trial]
        held = self.granted.get(trial) or (tried[-1] if tried else Claim(trial, 1, "never"))
        wrong = {
            "other token": unlike(held, token="another"),
            "no token": Claim(trial, self.attempt(trial, 0), ""),
            "attempt before": unlike(held, attempt=max(1, held.attempt - 1)),
            "attempt after": unlike(held, attempt=held.attempt + 1),
            "tried": tried[-1] if tried else held,
            "first": tried[0] if tried else held,
        }
        return wrong.get(whose, held)

    def by(self, seat: Seat, name: str, *args: Any) -> None:
        """Make a call now; or put it off, when the rule before said so."""
        call = (seat, name, args)
        if self.holds_back:
            self.holds_back = False
            self.late.append(call)
        else:
            self.make(call)

    def make(self, call: tuple[Any, ...]) -> None:
        """Make a call on the journal and on its twin; both must answer and append the same."""
        seat, name, args = call
        lost = self.losing.pop() if self.losing else ""
        if lost:
            self.world.line.cut(lost)
        self.past.append(call)
        self.is_sound = False
        args, twin_args = _placed(args, self.ids), _placed(args, self.twin_ids)
        answer = _outcome(seat.redis, name, args)
        expected = _outcome(seat.memory, name, twin_args)
        if lost == "answer" and name not in MARKED:
            # The journal has asked again by itself, and heard what came of that.
            expected = _outcome(seat.memory, name, twin_args)
        if isinstance(answer, Taken) and isinstance(expected, Taken):
            # Real time passes too on Redis, though less than a tick.
            assert expected.left_s - TICK_S < answer.left_s <= expected.left_s
            assert answer.holder == expected.holder
            answer = expected
        self._see()
        if name == "request" and expected != JOURNAL_GONE:
            answer, expected = self.ids.index(answer), self.twin_ids.index(expected)
        assert answer == expected, f"{name}{args}"
        self.is_sound = True
        if name == "lock" and answer is None and not seat.epoch:
            seat.epoch = self.twin.state.epoch
        elif name == "claim":
            self.claims[args[0].trial].append(args[0])
            if isinstance(answer, Grant):
                self.granted[args[0].trial] = args[0]

    def _see(self) -> None:
        """Check what was appended; whatever was read before stays as it was, as the whole is read in the end."""
        found = self.eye.redis.read(self.ids[-1], count=100)
        expected = self.eye.memory.read(self.twin_ids[-1], count=100)
        assert [entry.data for entry in found] == [entry.data for entry in expected]
        self.twin_ids += [entry.id for entry in expected]
        for id_, data in found:
            assert _order(id_) > _order(self.ids[-1])
            self.published.append((id_, self.ids[-1], data))
            self.ids.append(id_)
            self.entries.append(data)

    # Time, and what goes wrong.

    @rule(ticks=st.integers(1, 3))
    def let_pass(self, ticks: int) -> None:
        self.world.let_pass(ticks * TICK_S)
        self.twin.let_pass(ticks * TICK_S)

    @rule(losing=st.lists(st.sampled_from(["call", "answer", "answer", ""]), min_size=1, max_size=6))
    def cut_the_line(self, losing: list[str]) -> None:
        self.losing = losing

    @rule()
    def hold_back_the_next_call(self) -> None:
        self.holds_back = True

    @precondition(lambda self: self.late)
    @rule(which=st.integers(0, 99))
    def let_a_late_call_arrive(self, which: int) -> None:
        self.make(self.late.pop(which % len(self.late)))

    @precondition(lambda self: self.past)
    @rule(back=st.sampled_from([1, 1, 1, 2, 3, 5, 8, 20]))
    def repeat_a_call(self, back: int) -> None:
        self.make(self.past[-min(back, len(self.past))])

    # The driver's lock.

    @initialize(begun=st.tuples(*[st.sampled_from(["not", "staged", "running", "running"]) for _ in TRIALS]))
    def begin(self, begun: tuple[str, ...]) -> None:
        """A driver has the lock, and some trials are under way: what comes is about what a start alone doesn't reach."""
        self.lock("first", 2, "", unheard=False)
        for trial, state in zip(TRIALS, begun, strict=True):
            if state == "running":
                self.start_the_next_attempt("holder", "w0", trial, 2)
            elif state == "staged":
                self.stage("holder", trial, 1)

    @rule(driver=driver, worker=worker, trial=trial, ticks=ticks)
    def start_the_next_attempt(self, driver: str, worker: str, trial: TrialId, ticks: int) -> None:
        self.stage(driver, trial, 1)
        self.claim(worker, trial, 0, again=False, ticks=ticks)
        self.fill_a_gang(worker, trial, ticks)

    @rule(worker=worker, trial=st.sampled_from(TRIALS[1:]), ticks=ticks)
    def fill_a_gang(self, worker: str, trial: TrialId, ticks: int) -> None:
        """Workers claim the seats that are left, in their order."""
        others = [each for each in WORKERS if each != worker]
        for name, other in zip([each for each in SEATS if task_in(each)[0] == trial][1:], others, strict=False):
            self.claim(other, name, 0, again=False, ticks=ticks)

    @rule(
        which=st.sampled_from(["first", "second"]),
        ticks=st.integers(1, 3),
        dead=st.sampled_from(["", "", "", "driver on a", "driver on b", "driver on a, later"]),
        unheard=st.sampled_from([False, False, False, True]),
    )
    def lock(self, which: str, ticks: int, dead: str, unheard: bool) -> None:
        seat = self.seats[which]
        if unheard:
            # The driver gives up before it hears the answer, and may ask again.
            seat = dataclasses.replace(seat, redis=copy.copy(seat.redis), memory=copy.copy(seat.memory))
        self.by(seat, "lock", seat.owner, seat.description, ticks * TICK_S, dead)

    @rule(which=st.sampled_from(["first", "second"]), ticks=st.integers(1, 3), on_loss=on_loss)
    def heartbeat(self, which: str, ticks: int, on_loss: OnLoss) -> None:
        seat = self.seats[which]
        self.by(seat, "heartbeat", seat.owner, ticks * TICK_S, DriverState(on_loss))

    @rule(which=st.sampled_from(["first", "second"]))
    def unlock(self, which: str) -> None:
        seat = self.seats[which]
        self.by(seat, "unlock", seat.owner)

    @rule(which=st.sampled_from(["first", "second"]))
    def start_another_driver(self, which: str) -> None:
        self.count += 1
        self.seats[which] = self._new_seat(f"{which}-{self.count}", f"driver on {'ab'[which == 'second']}, later")

    # What drivers write.

    @rule(driver=driver, defines=st.booleans())
    def record(self, driver: str, defines: bool) -> None:
        self.by(self.seat(driver), "record", self.event("recorded"), self.event("definition") if defines else None)

    @rule(driver=driver, trial=trial, ahead=st.sampled_from([1] * 6 + [0, -1, 2]))
    def stage(self, driver: str, trial: TrialId, ahead: int) -> None:
        attempt = max(1, ahead + self.newest(trial))
        self.count += 1
        gangs = GANGS.get(trial, [""])
        timeout_s = float(self.count) if attempt > 1 else None
        assignment = Assignment(
            {"n": self.count}, CheckpointId(""), timeout_s, task_plan=gangs[self.count % len(gangs)]
        )
        self.by(self.seat(driver), "stage", trial, attempt, assignment, self.event("staged"))

    @rule(driver=driver, trial=trial, off=off, intent=intent)
    def intend(self, driver: str, trial: TrialId, off: int, intent: Intent) -> None:
        events = self.event("decided"), self.event("ended by a driver")
        self.by(self.seat(driver), "intend", trial, self.attempt(trial, off), intent, *events)

    @rule(driver=driver, trial=trial, off=off, again=st.sampled_from([False, False, True]))
    def close_trial(self, driver: str, trial: TrialId, off: int, again: bool) -> None:
        state = self.twin.state.trials.get(trial)
        event = (state and state.closed) or b"closed" if again else self.event("closed")
        self.by(self.seat(driver), "close_trial", trial, self.attempt(trial, off), event)

    @rule(driver=driver, trials=st.lists(st.tuples(trial, off), max_size=3, unique_by=lambda t: t[0]))
    def look(self, driver: str, trials: list[tuple[TrialId, int]]) -> None:
        attempts = [(trial, self.attempt(trial, off)) for trial, off in trials]
        self.by(self.seat(driver), "look", attempts, TICK_S)

    @rule(
        driver=driver,
        trial=trial,
        off=off,
        guard=st.sampled_from(["expired", "any", "gone"]),
        unread=st.sampled_from([0, 0, 1, 2, 5]),
        timestamp=number.map(float),
    )
    def lose(self, driver: str, trial: TrialId, off: int, guard: Any, unread: int, timestamp: float) -> None:
        read = Place(max(0, len(self.ids) - 1 - unread))
        attempt = self.attempt(trial, off)
        self.by(self.seat(driver), "lose", trial, attempt, guard, self.event("lost"), timestamp, read)

    @rule(
        driver=driver,
        worker=worker,
        trial=trial,
        guard=st.sampled_from(["expired", "any"]),
        others=st.lists(trial, max_size=2),
        unread=st.integers(0, 3),
        timestamps=st.tuples(number, number),
    )
    def lose_after_a_report(
        self,
        driver: str,
        worker: str,
        trial: TrialId,
        guard: Any,
        others: list[TrialId],
        unread: int,
        timestamps: tuple[int, int],
    ) -> None:
        """A trial reports, and others perhaps; then it is lost by a driver that has read some of that."""
        for each in (trial, *others):
            self.report(worker, [(each, "holder", 0, 1, timestamps[0])])
        self.lose(driver, trial, 0, guard, unread, float(timestamps[1]))

    @precondition(lambda self: self.twin.state.trials and self.holder is not None)
    @rule(name=place)
    def lose_a_trial(self, name: TrialId) -> None:
        """The key of a seat is deleted; who drives ends the attempt, and stages no other of its number."""
        trial, _ = task_in(name)
        number = self.attempt(trial, 0)
        self.world.forget(name)
        self.twin.forget(name, "trial")
        self.make((self.seat("holder"), "look", ([(trial, number)], TICK_S)))
        self.make((self.seat("holder"), "lose", (trial, number, "gone", self.event("lost key"), 3.5)))

    @rule(
        driver=driver,
        orders=st.lists(
            st.tuples(trial, off, st.sampled_from(["save:1", "save:2", "go:1", "go:2", "go:2:eWVz"])), max_size=3
        ),
    )
    def order(self, driver: str, orders: list[tuple[TrialId, int, str]]) -> None:
        made = [Order(trial, self.attempt(trial, off), word) for trial, off, word in orders]
        self.by(self.seat(driver), "order", made)

    @rule(driver=driver, names=st.lists(st.tuples(trial, number), max_size=3, unique=True))
    def drop_checkpoints(self, driver: str, names: list[tuple[TrialId, int]]) -> None:
        ids = [self._checkpoint(trial, number) for trial, number in names]
        self.by(self.seat(driver), "drop_checkpoints", ids, self.event("dropped"))

    @rule(driver=driver, trial=trial, number=number)
    def bring_checkpoint(self, driver: str, trial: TrialId, number: int) -> None:
        self.by(self.seat(driver), "bring_checkpoint", self._checkpoint(trial, number), self.event("data"))

    def _checkpoint(self, trial: TrialId, number: int) -> CheckpointId:
        return checkpoint_id(trial, self.attempt(trial, 0), number, in_memory=True)

    # What workers write.

    @rule(worker=worker, trial=place, off=off, again=st.sampled_from([False, False, True]), ticks=ticks)
    def claim(self, worker: str, trial: TrialId, off: int, again: bool, ticks: int) -> None:
        self.count += 1
        claim = self.of(trial, "holder") if again else Claim(trial, self.attempt(trial, off), f"t{self.count}")
        self.by(self.workers[worker], "claim", claim, worker, ticks * TICK_S, self.event("started"), f"{worker}:1")

    @rule(
        worker=worker,
        parts=st.lists(
            st.tuples(trial, whose, st.sampled_from([0] * 8 + [-3, -2, -1, 1, 2]), number, st.integers(0, 9)),
            min_size=1,
            max_size=3,
            unique_by=lambda part: part[0],
        ),
    )
    def report(self, worker: str, parts: list[tuple[TrialId, str, int, int, int]]) -> None:
        segments = []
        for trial, whose, shift, size, clock in parts:
            claim = self.of(trial, whose)
            state = self.twin.state.trials.get(trial)
            first = max(1, (state.sequence if state else 0) + 1 + shift)
            self.count += 1
            packed = [pack_metrics(float(clock), {"n": self.count, "raw": b"\x00\xff a b\n"}) for _ in range(size)]
            data = segment_bytes(claim.trial, claim.attempt, first, packed)
            segments.append(Segment(claim, first, size, float(clock), data))
        self.by(self.workers[worker], "report", segments)

    @rule(worker=worker, trial=place, off=off, ticks=ticks)
    def hold(self, worker: str, trial: TrialId, off: int, ticks: int) -> None:
        held = [Unclaimed(trial, self.attempt(trial, off), worker)]
        self.by(self.workers[worker], "hold", held, ticks * TICK_S)

    @rule(worker=worker, which=st.lists(st.tuples(place, whose), max_size=3), ticks=ticks)
    def renew(self, worker: str, which: list[tuple[TrialId, str]], ticks: int) -> None:
        self.by(self.workers[worker], "renew", [self.of(*each) for each in which], ticks * TICK_S)

    @rule(
        worker=worker,
        trial=place,
        whose=whose,
        reports=st.sampled_from([0, 0, 1, 2, 3]),
        by=st.sampled_from(["itself", "itself", "failure", "worker"]),
    )
    def end(self, worker: str, trial: TrialId, whose: str, reports: int, by: Any) -> None:
        self.by(self.workers[worker], "end", self.of(trial, whose), self.event("ended"), reports, by)

    @rule(worker=worker, trial=trial, whose=whose, number=number)
    def put_checkpoint(self, worker: str, trial: TrialId, whose: str, number: int) -> None:
        name = self._checkpoint(trial, number)
        self.by(self.workers[worker], "put_checkpoint", self.of(trial, whose), name, self.event("data"))

    @rule(worker=worker, trial=trial, whose=whose, number=number)
    def saved(self, worker: str, trial: TrialId, whose: str, number: int) -> None:
        events = {self._checkpoint(trial, each): self.event("saved") for each in (number, 1)}
        self.by(self.workers[worker], "saved", self.of(trial, whose), events)

    # What anybody writes.

    @rule(who=worker, number=number, trial=trial)
    def request(self, who: str, number: int, trial: TrialId) -> None:
        event = Requested(id=f"r{number}", action="stop", trial=trial, arguments={}, by=who, at=1.0)
        self.by(self.workers[who], "request", event)

    @rule(who=worker, trial=trial)
    def revoke(self, who: str, trial: TrialId) -> None:
        id_ = revocation(trial, self.attempt(trial, 0))
        self.by(
            self.workers[who], "request", Requested(id=id_, action="stop", trial=trial, arguments={}, by=who, at=1.0)
        )

    # What anybody reads.

    @rule(trial=trial, number=number)
    def look_at_a_checkpoint(self, trial: TrialId, number: int) -> None:
        self.by(self.eye, "checkpoint", self._checkpoint(trial, number))

    @rule(ticks=ticks)
    def look_at_what_ran_out(self, ticks: int) -> None:
        self.make((self.eye, "expired", ()))
        self.make((self.eye, "unclaimed", (ticks * TICK_S,)))
        self.make((self.eye, "definition", ()))
        self.make((self.eye, "checkpoints", ()))
        assert all(self.eye.redis.holds(id_) for id_ in self.ids[1:][-3:])

    @rule(after=st.integers(0, 99), count=st.integers(1, 9), block_s=st.sampled_from([0, 5.0]))
    def read(self, after: int, count: int, block_s: float) -> None:
        after %= len(self.ids)
        # A read that waits would, without an entry, wait.
        if after < len(self.entries) or not block_s:
            found = self.eye.redis.read(self.ids[after], count=count, block_s=block_s)
            assert [data for _, data in found] == self.entries[after : after + count] or (block_s and not found)

    # At the end.

    def teardown(self) -> None:
        try:
            if self.is_sound:
                self._check_the_whole()
        finally:
            self.world.close()

    def _check_the_whole(self) -> None:
        found = self.eye.redis.read("0-0", count=100_000)
        assert [entry.data for entry in found] == self.entries
        assert [entry.id for entry in found] == self.ids[1:]
        assert [entry.data for entry in self.eye.memory.read("0-0", count=100_000)] == self.entries
        reports: dict[tuple[str, int], list[int]] = defaultdict(list)
        for data in self.entries:
            if data.startswith(REPORTS_PREFIX):
                for each in _reports(data):
                    reports[each.trial, each.attempt].append(each.sequence)
        for sequences in reports.values():
            assert sequences == list(range(1, len(sequences) + 1))
        self._check_the_channels()
        claims = list(dict.fromkeys(claim for tried in self.claims.values() for claim in tried))
        answers = self.eye.redis.renew(claims, TICK_S)
        live = Counter(claim.trial for claim, answer in zip(claims, answers, strict=True) if answer != "fenced")
        assert all(held == 1 for held in live.values())

    def _check_the_channels(self) -> None:
        """Check that all entries came in their order, and that hints are of this experiment, to workers of it."""
        chain = []
        for channel, data in self.world.published():
            if channel == ExperimentKeys(EXPERIMENT).metrics:
                id_, link, event = data.split(b" ", 2)
                chain.append((id_.decode(), link.decode(), event))
            else:
                assert channel in {control_channel(name) for name in WORKERS}
                assert {(experiment, trial in SEATS) for experiment, trial, _, _ in decode_value(data)} == {
                    (EXPERIMENT, True)
                }
        assert chain == self.published


class LossyMachine(JournalMachine):
    """The same, with a server that comes back empty, or as it was before."""

    def __init__(self, open_world: Callable[[], ShiftedWorld]) -> None:
        super().__init__(open_world)
        self.before: tuple[Any, Any, list[str], list[str], list[bytes]] | None = None
        #: What a driver has in its copies: all that was there when the server lost something.
        self.copy: list[Entry] = []
        self.twin_copy: list[Entry] = []
        self.attempts: dict[TrialId, LastAttempt] = {}
        #: The ids of requests, each with the place of its entry.
        self.requests: dict[str, int] = {}

    @rule()
    def remember(self) -> None:
        held = self.world.snapshot(), self.twin.snapshot()
        self.before = *held, list(self.ids), list(self.twin_ids), list(self.entries)

    def _last_attempts(self) -> dict[TrialId, LastAttempt]:
        return {
            trial: LastAttempt(trial, state.attempt, state.timestamp)
            for trial, state in self.twin.state.trials.items()
            if trial in TRIALS
        }

    @rule(empty=st.booleans())
    def set_back(self, empty: bool) -> None:
        """The server comes back, with what was remembered or with nothing."""
        if len(self.entries) >= len(self.copy):
            self.copy = [Entry(*each) for each in zip(self.ids[1:], self.entries, strict=True)]
            self.twin_copy = [Entry(*each) for each in zip(self.twin_ids[1:], self.entries, strict=True)]
            self.requests = {id_: self.twin_ids.index(entry) for id_, entry in self.twin.state.requests.items()}
            self.attempts = self._last_attempts()
        before = None if empty or self.before is None else self.before
        ours, twins, *seen = before or (None, None, ["0-0"], ["0-0"], [])
        self.world.set_back(ours)
        self.twin.set_back(twins)
        self.ids, self.twin_ids, self.entries = map(list, seen)

    @precondition(lambda self: self.copy)
    @rule(which=st.sampled_from(["first", "second"]), events=st.integers(0, 2), twice=st.booleans())
    def restore(self, which: str, events: int, twice: bool) -> None:
        seat = self.seats[which]
        if not seat.epoch:
            return
        # Who puts something back has read what the server has, and only the driver that does stages.
        last = dict(self.attempts)
        for trial, found in self._last_attempts().items():
            known = self.attempts.get(trial, found)
            last[trial] = LastAttempt(trial, max(found.attempt, known.attempt), found.timestamp)
        new = [self.event("forgotten") for _ in range(events)]
        definition = self.event("definition")
        for _ in range(1 + twice):
            self._restore(seat, [*last.values()], new, definition)

    def _restore(self, seat: Seat, attempts: list[LastAttempt], new: list[bytes], definition: bytes) -> None:
        """Put back, on each of the two, the entries as they have them."""
        lost = self.losing.pop() if self.losing else ""
        if lost:
            self.world.line.cut(lost)
        self.is_sound = False
        outcomes = []
        for journal, entries in ((seat.redis, self.copy), (seat.memory, self.twin_copy)):
            requests = {id_: entries[place - 1].id for id_, place in self.requests.items()}
            outcomes.append(_outcome(journal, "restore", (entries, attempts, new, requests, definition)))
        answer, expected = outcomes
        assert answer == expected
        if answer is None:
            self.ids, self.twin_ids, self.entries = ["0-0"], ["0-0"], []
            for held, ids, journal in (
                (self.copy, self.ids, self.eye.redis),
                (self.twin_copy, self.twin_ids, self.eye.memory),
            ):
                assert journal.read("0-0", count=len(held)) == held
                ids += [entry.id for entry in held]
            self.entries = [entry.data for entry in self.copy]
        self._see()
        self.is_sound = True


def _placed(args: tuple[Any, ...], ids: Sequence[str]) -> tuple[Any, ...]:
    """Return arguments with the ids of entries; one that the server has lost is the last that there is."""
    return tuple(ids[min(arg.number, len(ids) - 1)] if isinstance(arg, Place) else arg for arg in args)


def _outcome(journal: Journal, name: str, args: tuple[Any, ...]) -> Any:
    keywords: dict[str, Any] = {}
    if name == "record":
        args, keywords = args[:1], {"definition": args[1]}
    elif name == "lock":
        args, keywords = args[:3], {"dead": args[3]}
    elif name == "unclaimed":
        args, keywords = (), {"older_than_s": args[0]}
    elif name == "restore":
        entries, attempts, events, *rest = args
        args = (lambda: entries, attempts, events)
        keywords = dict(zip(("requests", "definition"), rest, strict=True))
    try:
        answer = getattr(journal, name)(*args, **keywords)
    except DriverFenced:
        return DRIVER_FENCED
    except JournalGone:
        return JOURNAL_GONE
    except NameTaken as error:
        return Taken(error.holder, error.left_s)
    if isinstance(answer, AttemptCheck):
        return answer.under_way
    if name == "unclaimed":
        return {(each.trial, each.attempt, bool(each.worker)) for each in answer}
    return set(answer) if name == "expired" else answer


def _order(id_: str) -> tuple[int, ...]:
    return tuple(int(word) for word in id_.split("-"))


def _reports(data: bytes) -> Reports:
    event = decode_event(data)
    assert isinstance(event, Reports)
    return event


#: Examples that are made one from another; what hypothesis remembers of them takes some 0.2 MB each.
BATCH: Final = 1000


def check(machine: Callable[[], JournalMachine], share: float) -> None:
    """Run a machine for a multiple of the examples that the profile asks for."""
    left = round(settings.default.max_examples * share)
    while left > 0:
        batch = settings(max_examples=min(left, BATCH), suppress_health_check=list(HealthCheck))
        run_state_machine_as_test(machine, settings=batch)
        left -= BATCH


@pytest.fixture
def open_redis_world(
    redis_client: RedisClient, caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[[], ShiftedWorld]]:
    redis_client.timing = Timing(first_retry_s=0.0)
    # What is said of each cut would be kept, and with its error all that was on the stack.
    caplog.set_level(logging.ERROR, logger="mqtune.journal.redis")
    with contextlib.closing(redis_client.pubsub()) as subscription:
        subscription.psubscribe("mqtune:*")
        yield lambda: ShiftedWorld(redis_client, subscription)


@pytest.mark.hypothesis
def test_the_journal_and_its_twin_do_the_same(open_redis_world: Callable[[], ShiftedWorld]) -> None:
    check(lambda: JournalMachine(open_redis_world), 1.0)


@pytest.mark.hypothesis
def test_a_journal_that_loses_what_it_had_and_its_twin_do_the_same(
    open_redis_world: Callable[[], ShiftedWorld],
) -> None:
    check(lambda: LossyMachine(open_redis_world), 0.6)
