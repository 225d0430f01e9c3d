"""A run on this machine alone: its worker, which works without Celery, and the queue between the two."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fleets
import psutil
import pytest
from waiting import eventually, lives

import mqtune
from mqtune.backends import EmbeddedServer, LocalBackend, PrivateWorker, private_name
from mqtune.core.resources import queue_name
from mqtune.core.trial import TrialId
from mqtune.journal import Assignment, Fleet, LocalQueue, RedisClient, RedisJournal, ServerClock

CODE_ROOT = Path(mqtune.__file__).parents[1]
SLOTS = {"gpus": "0", "slots": 2, "cpus": 2}
#: An experiment that is not there: nothing is started for it.
AHEAD = ("nobody", "digest")
Begin = Callable[..., psutil.Process]
#: A run of two trials, of which the first waits for the files of the second, and what its driver has imported at its end.
SCRIPT = """
import os, sys, time
from pathlib import Path
import mqtune

def train(config):
    output = Path(os.environ["MQTUNE_HOME"], "alone", "0002", "1.stderr")
    until = time.monotonic() + (30 if config["x"] == 1 else 0)
    while not output.exists() and time.monotonic() < until:
        time.sleep(0.01)
    mqtune.report({"seen": int(output.exists())})

if __name__ == "__main__":
    space = {"x": mqtune.grid_search([1, 2])}
    results = mqtune.Tuner(train, space, metric="seen", mode="max", backend=mqtune.Local(slots=1), name="alone").run()
    print([trial.last_metrics["seen"] for trial in results.experiment.trials.values()])
    print("celery" in sys.modules, "kombu" in sys.modules)
    import mqtune.worker.tasks.local
    print("celery" in sys.modules, "kombu" in sys.modules)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[PrivateWorker]:
    worker = PrivateWorker(tmp_path)
    yield worker
    worker.kill()


@pytest.fixture
def begin(worker: PrivateWorker, redis_server: EmbeddedServer, redis_client: RedisClient) -> Begin:
    """Has the worker join, and returns its process."""

    def begin() -> psutil.Process:
        worker.begin(redis_server.url, code_root=CODE_ROOT, slots=SLOTS, ahead=AHEAD)
        eventually(lambda: worker.problem() or Fleet(redis_client, patience_s=5).workers(), 30)
        assert worker.problem() is None
        return psutil.Process(worker.pid)

    return begin


@pytest.fixture
def journal(redis_client: RedisClient) -> RedisJournal:
    return RedisJournal(redis_client, "x", patience_s=5)


@pytest.fixture
def backend(redis_server: EmbeddedServer, journal: RedisJournal, redis_client: RedisClient) -> LocalBackend:
    clock, resources = ServerClock(redis_client), mqtune.Resources(cpus=1)
    of: Any = {"title": "x/train", "digest": "digest", "patience_s": 5}
    return LocalBackend(redis_client, redis_server.url, journal=journal, clock=clock, resources=resources, **of)


def test_a_run_uses_its_own_worker_alone_on_a_server_that_others_use_too(
    backend: LocalBackend, redis_client: RedisClient
) -> None:
    fleet, resources = Fleet(redis_client, patience_s=5), mqtune.Resources(cpus=1)
    fleet.join(fleets.worker("others@h", queue=queue_name(resources)), 60)
    backend.refresh()
    assert (backend.slots, backend.why_no_slot()) == (0, "starting the local worker")

    fleet.join(fleets.worker(private_name(), queue=queue_name(resources, "x"), experiments="x", slots=2), 60)
    backend.refresh()
    backend.publish(TrialId("0001"), 1, {})

    assert backend.slots == 2
    assert [fleet.waiting(queue_name(resources, *only)) for only in ((), ("x",))] == [0, 1]


def test_an_attempt_is_on_its_queue_once_it_is_staged_and_there_once(
    backend: LocalBackend, redis_client: RedisClient, journal: RedisJournal
) -> None:
    one = TrialId("0001")
    journal.lock("driver", "a test", 60)
    queue, tasks = queue_name(mqtune.Resources(cpus=1), "x"), LocalQueue(redis_client, patience_s=5)

    assert journal.stage(one, 1, Assignment({}), b"event")
    assert redis_client.llen(queue) == 1
    # As when the answer was lost.
    assert not journal.stage(one, 1, Assignment({}), b"event")
    backend.publish(one, 1, {})

    assert tasks.take(queue) == ("x", one, 1, "digest")
    assert redis_client.llen(queue) == 0
    # As a driver does with one that nobody has taken.
    backend.publish(one, 1, {})
    assert tasks.take(queue) == ("x", one, 1, "digest")


@pytest.mark.usefixtures("mqtune_home")
def test_a_run_on_this_machine_alone_needs_no_celery_and_what_waits_for_a_slot_has_the_files_of_its_output(
    tmp_path: Path,
) -> None:
    (tmp_path / "alone.py").write_text(SCRIPT)

    said = subprocess.run([sys.executable, "alone.py"], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert said.stdout.splitlines()[-3:] == ["[1, 1]", "False False", "False False"], said


def test_an_idle_worker_that_is_told_to_end_leaves_the_fleet_and_no_process(
    worker: PrivateWorker, begin: Begin, redis_client: RedisClient
) -> None:
    process = begin()
    family = [process, *process.children(recursive=True)]

    worker.leave()
    worker.stop()

    assert (worker.problem() or "").startswith("the local worker ended with code 0;")
    assert not any(map(lives, family))
    assert Fleet(redis_client, patience_s=5).workers() == []
    assert not list(worker.log.parent.parent.glob(".scratch/*"))


def test_a_worker_that_can_not_start_says_why_in_one_line(
    worker: PrivateWorker, redis_server: EmbeddedServer, tmp_path: Path
) -> None:
    worker.begin(redis_server.url, code_root=tmp_path / "nowhere", slots=SLOTS, ahead=AHEAD)

    eventually(worker.problem, 30)

    why = f"mqtune: the code root {tmp_path / 'nowhere'} is not a folder: give the one below which trainables are"
    assert (worker.problem() or "").endswith(why)


def test_a_task_that_makes_no_sense_does_not_keep_others_from_running(
    worker: PrivateWorker, begin: Begin, redis_client: RedisClient
) -> None:
    begin()
    queue, tasks = queue_name(mqtune.Resources(cpus=1), AHEAD[0]), LocalQueue(redis_client, patience_s=5)

    redis_client.lpush(queue, b"nonsense")
    tasks.put(queue, ("nobody's", TrialId("0001"), 1, "digest"))

    eventually(lambda: redis_client.llen(queue) == 0, 10)
    eventually(lambda: "is not run" in worker.log.read_text(), 10)
    assert worker.problem() is None


def test_a_worker_that_can_take_nothing_any_more_ends_and_says_why(
    worker: PrivateWorker, begin: Begin, redis_client: RedisClient
) -> None:
    process = begin()

    redis_client.set(queue_name(mqtune.Resources(cpus=1), AHEAD[0]), "no queue")

    eventually(lambda: not lives(process), 60)
    assert "WRONGTYPE" in worker.log.read_text()
