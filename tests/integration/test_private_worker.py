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
from mqtune.core.codec import encode_value
from mqtune.core.resources import queue_name
from mqtune.core.seats import seat_names
from mqtune.core.trial import TrialId
from mqtune.journal import Assignment, Fleet, LocalQueue, RedisClient, RedisJournal, ServerClock, encode_task
from mqtune.trainable import TrainableSpec

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
    import mqtune.worker.local
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

    def begin(ahead: tuple[str, str] = AHEAD, code_root: Path = CODE_ROOT) -> psutil.Process:
        worker.begin(redis_server.url, code_root=code_root, slots=SLOTS, ahead=ahead)
        eventually(lambda: worker.problem() or Fleet(redis_client, patience_s=5).workers(), 30)
        assert worker.problem() is None
        return psutil.Process(worker.pid)

    return begin


def test_what_is_put_on_the_queue_is_taken_in_its_order_and_seen_by_who_looks(redis_client: RedisClient) -> None:
    queue = LocalQueue(redis_client, patience_s=5)
    tasks = [("x", TrialId(f"000{number}"), number, "digest") for number in (1, 2)]
    for task in tasks:
        queue.put("here", task)

    fleet = Fleet(redis_client, patience_s=5)
    assert [message["id"] for message in fleet.queued("here") or ()] == ["x/0002/2", "x/0001/1"]
    assert fleet.waiting("here") == 2
    assert [queue.take("here"), queue.take("here")] == tasks


@pytest.fixture
def journal(redis_client: RedisClient) -> RedisJournal:
    return RedisJournal(redis_client, "x", patience_s=5)


def backend_on(server: EmbeddedServer, journal: RedisJournal, client: RedisClient, seats: int = 1) -> LocalBackend:
    clock, resources = ServerClock(client), mqtune.Resources(cpus=1, seats=seats)
    of: Any = {"title": "x/train", "digest": "digest", "patience_s": 5}
    return LocalBackend(client, server.url, journal=journal, clock=clock, resources=resources, **of)


def test_a_run_uses_its_own_worker_alone_on_a_server_that_others_use_too(
    redis_server: EmbeddedServer, redis_client: RedisClient, journal: RedisJournal
) -> None:
    fleet, resources = Fleet(redis_client, patience_s=5), mqtune.Resources(cpus=1)
    backend = backend_on(redis_server, journal, redis_client)
    fleet.join(fleets.worker("others@h", queue=queue_name(resources)), 60)
    backend.refresh()
    assert (backend.slots, backend.why_no_slot()) == (0, "starting the local worker")

    fleet.join(fleets.worker(private_name(), queue=queue_name(resources, "x"), experiments="x", slots=2), 60)
    backend.refresh()
    backend.publish(TrialId("0001"), 1, {})

    assert backend.slots == 2
    assert [fleet.waiting(queue_name(resources, *only)) for only in ((), ("x",))] == [0, 1]


def test_an_attempt_is_on_its_queue_once_it_is_staged_and_there_once(
    redis_server: EmbeddedServer, redis_client: RedisClient, journal: RedisJournal
) -> None:
    one = TrialId("0001")
    journal.lock("driver", "a test", 60)
    backend = backend_on(redis_server, journal, redis_client)
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


def test_seats_that_were_put_on_their_queue_when_they_were_staged_are_not_put_there_again(
    redis_server: EmbeddedServer, redis_client: RedisClient, journal: RedisJournal
) -> None:
    backend = backend_on(redis_server, journal, redis_client, 3)
    queue = queue_name(mqtune.Resources(cpus=1, seats=3), "x")
    tasks = LocalQueue(redis_client, patience_s=5)
    one, *further = seat_names(TrialId("0001"), 3)
    assert journal.task_of is not None
    # Of an attempt that was withdrawn before it was published nothing is left.
    journal.task_of(TrialId("0002"), 1)

    found = [journal.task_of(name, 1) for name in (one, further[0])]
    backend.publish(one, 1, {})

    assert found == [(queue, encode_task(("x", name, 1, "digest"))) for name in (one, further[0])]
    assert [tasks.take(queue), tasks.take(queue)] == [("x", further[1], 1, "digest"), None]
    backend.publish(one, 1, {})
    assert [tasks.take(queue) for _ in range(3)] == [("x", name, 1, "digest") for name in (one, *further)]


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


def test_a_worker_executes_a_slow_program_that_it_is_started_for_before_its_trials_come_and_once_for_all_slots(
    begin: Begin, journal: RedisJournal, tmp_path: Path
) -> None:
    note = tmp_path / "imported"
    (tmp_path / "noted.py").write_text(
        f"import os, time\nwith open({str(note)!r}, 'a') as file: print(os.getpid(), file=file)\n"
        "while time.process_time() < 1: pass\ndef train(config): pass\n"
    )
    spec = TrainableSpec("train", module="noted")
    journal.lock("driver", "a test", 60)
    journal.record(b"", definition=encode_value({"name": "x", "trainable": spec.encode()}))

    process = begin(("x", "digest"), tmp_path)

    eventually(note.exists, 30, "it has imported the trainable")
    (importer,) = process.children()
    # The scout executes it, and replaces the importer.
    eventually(lambda: [f"{scout.pid}\n" for scout in importer.children()] == [note.read_text()])
