"""What the slots of a worker share must not let one experiment's fault become another's, nor grow with what comes by."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from waiting import DEADLINE_S, eventually

from mqtune.core.codec import encode_value
from mqtune.core.events import START, AttemptStarted, TrialStaged, WorkerInfo
from mqtune.core.keys import ExperimentKeys, control_channel
from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.journal import LOOK, Assignment, Claim, Fleet, Grant, RedisClient, RedisJournal
from mqtune.worker import REMEMBERED, Slot, SlotPlan, Slots, WorkerRuntime

TRIAL = TrialId("0001")


@pytest.fixture
def beat_s() -> float:
    return 0.02


@pytest.fixture
def own_clock() -> SimpleNamespace:
    """This machine's clock, which a test may set."""
    return SimpleNamespace(time=time.time, monotonic=time.monotonic)


@pytest.fixture
def runtime(
    redis_client: RedisClient, tmp_path: Path, beat_s: float, own_clock: SimpleNamespace
) -> Iterator[WorkerRuntime]:
    runtime = WorkerRuntime(
        redis_client,
        name="w@here",
        plan=SlotPlan(offer=Resources(cpus=1), devices=((),)),
        code_root=tmp_path,
        log_root=tmp_path,
        grace_s=1.0,
        wake_consumer=lambda: None,
        show=lambda _: None,
        timing=Timing(heartbeat_s=beat_s, round_s=1.0),
        own_clock=own_clock,
    )
    runtime.start()
    yield runtime
    runtime.here.clear()
    if not runtime.closing.is_set():
        runtime.close(grace_s=0)
    # They use the client, which is about to be closed, and the one waits for a message.
    redis_client.publish(control_channel("w@here"), encode_value([LOOK]))
    runtime.join()


def created(client: redis.Redis, name: str) -> RedisJournal:
    journal = RedisJournal(client, name, patience_s=5)
    journal.lock("driver", "a test", 60)
    journal.record(b"", definition=encode_value({"name": name}))
    return journal


def test_an_experiment_whose_leases_are_broken_costs_no_other_its_leases(
    runtime: WorkerRuntime, redis_client: RedisClient
) -> None:
    names = [f"e{number}" for number in range(4)]
    for name in names:
        journal = created(redis_client, name)
        staged = TrialStaged(trial=TRIAL, attempt=1, config={}, at=1.0, cursor=START)
        journal.stage(TRIAL, 1, Assignment({}), staged.encode())
        claim = Claim(TRIAL, 1, "token")
        started = AttemptStarted(trial=TRIAL, attempt=1, worker="w", host="h", devices=[], at=1.0)
        assert isinstance(journal.claim(claim, "w", 0.1, started.encode()), Grant)
        run = runtime.attempt(name, TRIAL, 1, "token", "digest")
        run.is_running = True
        runtime.here.add(run)
    broken, *others = names
    redis_client.delete(ExperimentKeys(broken).leases)
    redis_client.set(ExperimentKeys(broken).leases, "no leases")

    def ahead_s(name: str) -> float:
        seconds, _ = redis_client.time()
        return (redis_client.zscore(ExperimentKeys(name).leases, TRIAL) or 0) / 1000 - seconds

    for name in others:
        eventually(lambda name=name: ahead_s(name) > Timing().lease_s - 5)


def test_what_waits_for_an_import_is_held_again_with_each_heartbeat(
    runtime: WorkerRuntime, redis_client: RedisClient
) -> None:
    staged = TrialStaged(trial=TRIAL, attempt=1, config={}, at=1.0, cursor=START)
    created(redis_client, "e").stage(TRIAL, 1, Assignment({}), staged.encode())
    runtime.here.add(runtime.attempt("e", TRIAL, 1, "token", "digest"))

    for _ in range(2):
        until = redis_client.hget(ExperimentKeys("e").trial(TRIAL), "held_until")
        eventually(lambda until=until: redis_client.hget(ExperimentKeys("e").trial(TRIAL), "held_until") != until)


@pytest.mark.parametrize("beat_s", [60.0])
@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_changes_nothing_about_when_the_server_was_heard(
    runtime: WorkerRuntime, redis_client: RedisClient, own_clock: SimpleNamespace, step_s: float
) -> None:
    redis_client.lpush(runtime.queue, "a task")
    own_clock.time = lambda: time.time() + step_s
    assert runtime.waiting() == 1

    later_s = Timing().lease_s + 1
    own_clock.monotonic = lambda: time.monotonic() + later_s
    assert runtime.waiting() == 0


def test_a_worker_does_not_grow_with_the_experiments_that_come_by(
    runtime: WorkerRuntime, redis_client: RedisClient
) -> None:
    created(redis_client, "e")
    for number in range(500):
        runtime.attempt("e", TRIAL, 1, "token", f"digest-{number}").close()
    for number in range(100):
        created(redis_client, f"e{number}")
        runtime.attempt(f"e{number}", TRIAL, 1, "token", "digest").close()

    assert runtime.remembered <= REMEMBERED
    again = [runtime.attempt("e99", TRIAL, number, "token", "digest") for number in (1, 2)]
    assert again[0].definition is again[1].definition
    assert again[0].journal is again[1].journal
    for run in again:
        run.close()


def test_a_worker_that_leaves_in_the_middle_of_a_heartbeat_is_gone_from_the_fleet(
    runtime: WorkerRuntime, redis_client: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(redis_client, patience_s=5)
    eventually(fleet.workers)
    is_beating = threading.Event()
    keep = runtime.fleet.keep

    def keep_slowly(info: WorkerInfo, hold_s: float) -> bool:
        if threading.current_thread().name == "mqtune-heartbeat":
            is_beating.set()
            runtime.closing.wait(10)
            # Longer than it takes to leave.
            time.sleep(0.2)
        return keep(info, hold_s)

    monkeypatch.setattr(runtime.fleet, "keep", keep_slowly)
    assert is_beating.wait(10)

    runtime.close(grace_s=0)
    redis_client.publish(control_channel("w@here"), encode_value([LOOK]))
    runtime.join()

    assert fleet.workers() == []


def test_a_zygote_that_will_not_close_delays_no_heartbeat(
    runtime: WorkerRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, closed = threading.Event(), threading.Event()
    beats: list[None] = []

    def trim(*_: object) -> None:
        closing.set()
        closed.wait(DEADLINE_S)

    monkeypatch.setattr(runtime.services.memory_kills, "look", lambda: beats.append(None))
    monkeypatch.setattr(Slots, "trim", trim)
    try:
        assert closing.wait(DEADLINE_S)
        before = len(beats)
        eventually(lambda: len(beats) > before + 2)
    finally:
        closed.set()


def test_attempts_that_are_not_run_leave_no_open_files(runtime: WorkerRuntime, redis_client: RedisClient) -> None:
    created(redis_client, "e")
    runtime.requeue_all("a test")
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(50):
        result = runtime.run(runtime.attempt("e", TRIAL, 1, "token", "digest"))
        assert result.note == "not run: the worker is shutting down"

    # Some threads connect meanwhile.
    assert len(os.listdir("/proc/self/fd")) < before + 50


def test_an_attempt_that_waits_for_a_slot_waits_no_longer_once_the_worker_is_leaving(
    runtime: WorkerRuntime, redis_client: RedisClient
) -> None:
    created(redis_client, "e")
    assert runtime.services.slots.acquire(timeout_s=0) is not None
    notes: list[str] = []
    attempt = runtime.attempt("e", TRIAL, 1, "token", "digest")
    waiting = threading.Thread(target=lambda: notes.append(runtime.run(attempt).note), daemon=True)
    waiting.start()
    eventually(lambda: attempt in runtime.here)
    waiting.join(0.2)
    assert waiting.is_alive()

    runtime.requeue_all("a test")

    waiting.join(DEADLINE_S)
    assert notes == ["not run: the worker is shutting down"]


def test_a_slot_is_free_again_when_a_drain_keeps_its_attempt_from_running(
    runtime: WorkerRuntime, redis_client: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    created(redis_client, "e")
    slots = runtime.services.slots

    def acquire_and_drain(*_: object, **__: object) -> Slot | None:
        slot = Slots.acquire(slots)
        runtime.requeue_all("a test")
        return slot

    monkeypatch.setattr(slots, "acquire", acquire_and_drain)
    assert runtime.run(runtime.attempt("e", TRIAL, 1, "token", "digest")).note == "not run: the worker is shutting down"

    assert Slots.acquire(slots, timeout_s=0) is not None


@pytest.mark.parametrize("beat_s", [60.0])
def test_a_task_that_goes_back_to_its_queue_is_not_lost_to_its_driver_meanwhile(
    runtime: WorkerRuntime, redis_client: RedisClient
) -> None:
    journal = created(redis_client, "e")
    journal.stage(
        TRIAL, 1, Assignment({}), TrialStaged(trial=TRIAL, attempt=1, config={}, at=1.0, cursor=START).encode()
    )
    assert [each.worker for each in journal.unclaimed()] == [""]
    # As if its device were quarantined.
    runtime.services.slots.acquire(timeout_s=0)
    runtime.services.slots.usable = 0

    assert runtime.run(runtime.attempt("e", TRIAL, 1, "token", "digest")).goes_back
    assert all(each.worker for each in journal.unclaimed())


def test_nobody_waits_for_a_server_that_is_away_to_say_whether_tasks_wait(
    runtime: WorkerRuntime, redis_client: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks looks at devices in the same thread."""
    redis_client.lpush(runtime.queue, "a task")
    eventually(lambda: runtime.waiting() == 1)

    def no_answer(*_: object, **__: object) -> None:
        raise redis.ConnectionError("gone")

    monkeypatch.setattr(redis_client, "pipeline", no_answer)
    assert runtime.waiting() == 0
    monkeypatch.undo()
    eventually(lambda: runtime.waiting() == 1)
