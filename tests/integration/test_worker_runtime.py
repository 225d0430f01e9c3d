"""What the slots of a worker share must not let one experiment's fault become another's, nor grow with what comes by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from waiting import eventually

from mqtune.core.codec import encode_value
from mqtune.core.events import START, AttemptStarted, TrialStaged
from mqtune.core.keys import ExperimentKeys, control_channel
from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.journal import LOOK, Assignment, Claim, Grant, RedisClient, RedisJournal
from mqtune.worker import REMEMBERED, SlotPlan, WorkerRuntime, WorkerSettings, make_worker

TRIAL = TrialId("0001")
STAGED = TrialStaged(trial=TRIAL, attempt=1, config={}, at=1.0, cursor=START).encode()


@pytest.fixture
def runtime(request: pytest.FixtureRequest, redis_client: RedisClient, tmp_path: Path) -> Iterator[WorkerRuntime]:
    timing = Timing(heartbeat_s=getattr(request, "param", 0.02), round_s=1.0)
    settings = WorkerSettings(broker="", code_root=tmp_path, log_root=tmp_path, grace_s=1.0, timing=timing)
    plan = SlotPlan(offer=Resources(cpus=1), devices=((),))
    runtime = make_worker(redis_client, "w@here", plan, settings, wake_consumer=lambda: None)
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
        journal.stage(TRIAL, 1, Assignment({}), STAGED)
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


def test_a_worker_does_not_grow_with_the_experiments_that_come_by(runtime: WorkerRuntime, redis_client: RedisClient):
    created(redis_client, "e")
    for number in range(500):
        runtime.attempt("e", TRIAL, 1, "token", f"digest-{number}").close()
    for number in range(100):
        created(redis_client, f"e{number}")
        runtime.attempt(f"e{number}", TRIAL, 1, "token", "digest").close()

    assert runtime.remembered <= REMEMBERED
    again = [runtime.attempt("e99", TRIAL, number, "token", "digest") for number in (1, 2)]
    assert again[0].definition is again[1].definition
    other = runtime.attempt("e99", TRIAL, 3, "token", "another digest")
    assert other.definition is not again[0].definition
    assert again[0].journal is again[1].journal is other.journal
    for run in (*again, other):
        run.close()


@pytest.mark.parametrize("runtime", [60.0], indirect=True)
def test_a_task_that_goes_back_to_its_queue_is_not_lost_to_its_driver_meanwhile(
    runtime: WorkerRuntime, redis_client: RedisClient
) -> None:
    journal = created(redis_client, "e")
    journal.stage(TRIAL, 1, Assignment({}), STAGED)
    assert [each.worker for each in journal.unclaimed()] == [""]
    # As if its device were quarantined.
    run = runtime.attempt("e", TRIAL, 1, "token", "digest")
    runtime.parts.slots.acquire(run, timeout_s=0)
    runtime.parts.slots.usable = 0

    assert runtime.run(run).goes_back
    assert all(each.worker for each in journal.unclaimed())
