"""The world that the contract's tests run in: a journal's server, the events that they write, and how they look at it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, Protocol

import fleets
import losing
import pytest
import redis
from waiting import DEADLINE_S, eventually

from mqtune.core.codec import pack_metrics, segment_bytes
from mqtune.core.events import (
    START,
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    CheckpointsDropped,
    DecisionTaken,
    ExperimentEnded,
    Reports,
    TrialClosed,
    TrialStaged,
    decode_event,
)
from mqtune.core.keys import ExperimentKeys
from mqtune.core.trial import AttemptEnd, CheckpointId, Intent, TrialId, checkpoint_id
from mqtune.journal import Assignment, Claim, Entry, Grant, Journal, MemoryJournal, MemoryServer, RedisJournal, Segment

#: A lease or lock that runs out while a test waits for it, and one that doesn't.
SHORT_S: Final = 0.03
LONG_S: Final = 600.0

ONE: Final = TrialId("0001")
TWO: Final = TrialId("0002")
THREE: Final = TrialId("0003")
#: The token of a claim that is not the one that was granted.
OTHER: Final = "other"
CONFIG: Final[dict[str, Any]] = {
    "lr": 0.1 + 0.2,
    "layers": [1, {"kind": "ü"}],
    "raw": b"\x00\xff",
    "inf": math.inf,
    "no": None,
}
#: Checkpoints of the first attempt of trial 0001: two that the journal holds, and one of the store.
HELD: Final = checkpoint_id(ONE, 1, 1, in_memory=True)
HELD_TOO: Final = checkpoint_id(ONE, 1, 2, in_memory=True)
STORED: Final = checkpoint_id(ONE, 1, 3, in_memory=False)
ASSIGNMENT: Final = Assignment(CONFIG, checkpoint_id("0009", 2, 1, in_memory=False), 12.5)
#: What a worker says of itself.
INFO: Final = fleets.worker("w", slots=2, devices=["0", "1"])


class World(Protocol):
    """A server, and a way for its time to pass."""

    def journal(self, experiment: str = "x") -> Journal:
        """Return a new object for an experiment's journal; a process of its own would have one."""

    def let_pass(self, seconds: float) -> None:
        """Return when this much more time has passed on the server."""

    def forget(self, trial: TrialId, what: Literal["trial", "lease", "staged"]) -> None:
        """Delete what the server has of a trial's attempt, or only its place among leases, or those that nobody has claimed."""

    def snapshot(self) -> object:
        """Return all that the server holds."""

    def set_back(self, snapshot: Any) -> None:
        """Have the server hold what it did then, and nothing else, as when it comes back with an old file; None: nothing."""


class MemoryWorld:
    """A server in memory, whose time passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.server = MemoryServer(lambda: self.now)

    @property
    def state(self) -> Any:
        """What the server holds of the experiment of a journal that is given no other name."""
        return self.server.experiments["x"]

    def journal(self, experiment: str = "x") -> Journal:
        return MemoryJournal(self.server, experiment)

    def let_pass(self, seconds: float) -> None:
        self.now += seconds

    def forget(self, trial: TrialId, what: str) -> None:
        if what == "trial":
            self.state.trials.pop(trial, None)
        elif what == "lease":
            self.state.trials[trial].lease_until = math.inf
        else:
            self.state.trials[trial].staged_at = math.inf

    def snapshot(self) -> object:
        return losing.snapshot(self.server)

    def set_back(self, snapshot: Any) -> None:
        losing.set_back(self.server, snapshot)


class RedisWorld:
    """A server of Redis, whose time passes by itself."""

    def __init__(self, client: redis.Redis) -> None:
        self.client: Any = client

    def journal(self, experiment: str = "x") -> Journal:
        return RedisJournal(self.client, experiment)

    def let_pass(self, seconds: float) -> None:
        until = self._now() + seconds
        eventually(lambda: self._now() > until)

    def forget(self, trial: TrialId, what: str) -> None:
        keys = ExperimentKeys("x")
        if what == "trial":
            assert self.client.delete(keys.trial(trial))
        else:
            assert self.client.zrem(keys.leases if what == "lease" else keys.staged, trial)

    def snapshot(self) -> object:
        return losing.snapshot_of_redis(self.client)

    def set_back(self, snapshot: Any) -> None:
        losing.set_back_redis(self.client, snapshot or {})

    def _now(self) -> float:
        whole, micro = self.client.time()
        return float(whole) + micro / 1e6


class FaultyLine:
    """A client whose next calls, or those of one command, fail once it is cut: before the server has done them, or after."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.faults = 0
        self.cut("", times=0)

    def cut(self, lost: str, *, times: int = 1, error: Exception | None = None, on: str = "") -> None:
        """Lose so many calls, or the answers to them, that begin with *on*."""
        self._lost, self._on = lost, on
        self._last = self.faults + times
        self._error = error or redis.exceptions.ConnectionError("the line is cut")

    def __getattr__(self, name: str) -> Any:
        if name in ("get_connection_kwargs", "timing"):
            # It asks nothing of the server.
            return getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            command = str(args[0]).lower() if name == "execute_command" else name
            fails = self.faults < self._last and command.startswith(self._on)
            self.faults += fails
            if fails and self._lost == "call":
                raise self._error
            result = getattr(self._client, name)(*args, **kwargs)
            if fails:
                raise self._error
            return result

        return call


def staged(trial: TrialId = ONE, attempt: int = 1) -> bytes:
    """The driver asks for an attempt."""
    return TrialStaged(trial=trial, attempt=attempt, config=CONFIG, at=1.0, cursor=START).encode()


def unlike(claim: Claim, **change: Any) -> Claim:
    """Return a claim that differs in some parts."""
    return Claim(**{"trial": claim.trial, "attempt": claim.attempt, "token": claim.token, **change})


def started(claim: Claim) -> bytes:
    """A worker has claimed an attempt."""
    return AttemptStarted(
        trial=claim.trial, attempt=claim.attempt, worker=f"w-{claim.token}", host="h", devices=["0"], at=2.0
    ).encode()


def decided(trial: TrialId = ONE, attempt: int = 1, intent: Intent = Intent.STOP) -> bytes:
    """The driver has decided to end an attempt."""
    return DecisionTaken(
        trial=trial, attempt=attempt, sequence=1, action="stop", intent=intent, reason="", at=3.0, cursor=START
    ).encode()


def ended(trial: TrialId = ONE, attempt: int = 1, end: AttemptEnd = AttemptEnd.COMPLETED) -> bytes:
    """An attempt is over."""
    return AttemptEnded(trial=trial, attempt=attempt, end=end, at=4.0).encode()


def closed(outcome: str = "finished") -> bytes:
    """The experiment is over."""
    return ExperimentEnded(outcome=outcome, reason="", at=5.0, cursor=START).encode()


def trial_closed(trial: TrialId = ONE) -> bytes:
    """The driver has ended a trial that had no attempt under way."""
    return TrialClosed(trial=trial, status="early_stopped", reason="", by="scheduler", at=5.0, cursor=START).encode()


def dropped(*checkpoints: CheckpointId) -> bytes:
    """The driver has deleted checkpoints."""
    return CheckpointsDropped(checkpoints=list(checkpoints), at=6.0, cursor=START).encode()


def saved(checkpoint: CheckpointId, trial: TrialId = ONE, attempt: int = 1) -> bytes:
    """A worker has a checkpoint that no report came with."""
    return CheckpointSaved(trial=trial, attempt=attempt, checkpoint=checkpoint, at=3.5).encode()


def segment(claim: Claim, first: int, count: int = 1, *, timestamp: float | None = None, **metrics: Any) -> Segment:
    """Return reports of an attempt; each holds its own sequence number."""
    times = [100.0 + n for n in range(first, first + count)]
    if timestamp is not None:
        times[-1] = timestamp
    packed = [pack_metrics(at, {"n": first + i, **metrics}) for i, at in enumerate(times)]
    return Segment(claim, first, count, times[-1], segment_bytes(claim.trial, claim.attempt, first, packed))


def entries(journal: Journal) -> list[Entry]:
    """Return all that the journal holds."""
    return journal.read("0-0", count=1_000_000)


def kinds(journal: Journal) -> list[str]:
    """Return what the journal holds, one word for each entry."""
    return [type(decode_event(entry.data)).__name__ for entry in entries(journal)]


def reported(journal: Journal) -> list[list[tuple[str, int, int]]]:
    """Return the reports that the journal holds: trial, attempt and sequence number, entry by entry."""
    events = [decode_event(entry.data) for entry in entries(journal)]
    return [[(r.trial, r.attempt, r.sequence) for r in event] for event in events if isinstance(event, Reports)]


def all_at_once(calls: Iterable[Callable[[], object]]) -> list[Any]:
    """Run *calls* in threads that begin together, and return what they returned or raised."""
    calls = list(calls)
    results: list[object] = [AssertionError("did not end")] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(index: int, call: Callable[[], object]) -> None:
        try:
            barrier.wait(DEADLINE_S)
            results[index] = call()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return results


class InWorld:
    """What the tests share: a journal as its driver has it, and as a worker has it."""

    @pytest.fixture
    def world(self) -> World:
        """The server under test."""
        raise NotImplementedError

    @pytest.fixture
    def driver(self, world: World) -> Journal:
        """The journal as its driver has it."""
        journal = world.journal()
        journal.lock("driver-1", "process 1 on head", LONG_S)
        return journal

    @pytest.fixture
    def worker(self, world: World) -> Journal:
        """The journal as a worker has it."""
        return world.journal()

    @pytest.fixture
    def held(self, driver: Journal, worker: Journal) -> Claim:
        """A claim on trial 0001 that runs."""
        return self.start(driver, worker)

    @staticmethod
    def start(
        driver: Journal, worker: Journal, trial: TrialId = ONE, attempt: int = 1, lease_s: float = LONG_S
    ) -> Claim:
        """Return a claim on an attempt that was staged and runs."""
        claim = Claim(trial, attempt, f"token-{trial}-{attempt}")
        # On a busy machine a call may be tried again, and then says that it was done before.
        driver.stage(trial, attempt, ASSIGNMENT, staged(trial, attempt))
        assert isinstance(worker.claim(claim, "w", lease_s, started(claim)), Grant)
        return claim
