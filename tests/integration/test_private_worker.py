"""A run on this machine alone: its worker, which works without Celery, and the queue between the two."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import eventually

import mqtune
from mqtune.backends import EmbeddedServer, PrivateWorker
from mqtune.core.resources import queue_name
from mqtune.core.trial import TrialId
from mqtune.journal import Fleet, LocalQueue, RedisClient

CODE_ROOT = Path(mqtune.__file__).parents[1]
SLOTS = {"gpus": "0", "slots": 2, "cpus": 2}
#: An experiment that is not there: nothing is started for it.
AHEAD = ("nobody", "digest")
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


def begin(
    worker: PrivateWorker,
    server: EmbeddedServer,
    client: RedisClient,
    *,
    ahead: tuple[str, str] = AHEAD,
    code_root: Path = CODE_ROOT,
) -> psutil.Process:
    """Have the worker join, and return its process."""
    worker.begin(server.url, code_root=code_root, slots=SLOTS, ahead=ahead)
    eventually(lambda: worker.problem() or Fleet(client, patience_s=5).workers(), 30)
    assert worker.problem() is None
    return psutil.Process(worker.pid)


@pytest.mark.usefixtures("mqtune_home")
def test_a_run_on_this_machine_alone_needs_no_celery_and_what_waits_for_a_slot_has_the_files_of_its_output(
    tmp_path: Path,
) -> None:
    (tmp_path / "alone.py").write_text(SCRIPT)

    said = subprocess.run([sys.executable, "alone.py"], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert said.stdout.splitlines()[-3:] == ["[1, 1]", "False False", "False False"], said


def test_a_worker_that_can_not_start_says_why_in_one_line(
    worker: PrivateWorker, redis_server: EmbeddedServer, tmp_path: Path
) -> None:
    worker.begin(redis_server.url, code_root=tmp_path / "nowhere", slots=SLOTS, ahead=AHEAD)

    eventually(worker.problem, 30)

    assert (worker.problem() or "").endswith(
        f"mqtune: the code root {tmp_path / 'nowhere'} is not a folder: give the one below which trainables are"
    )


def test_a_task_that_makes_no_sense_does_not_keep_others_from_running(
    worker: PrivateWorker, redis_server: EmbeddedServer, redis_client: RedisClient
) -> None:
    begin(worker, redis_server, redis_client)
    queue, tasks = queue_name(mqtune.Resources(cpus=1), AHEAD[0]), LocalQueue(redis_client, patience_s=5)

    redis_client.lpush(queue, b"nonsense")
    tasks.put(queue, ("nobody's", TrialId("0001"), 1, "digest"))

    eventually(lambda: redis_client.llen(queue) == 0, 10)
    eventually(lambda: "is not run" in worker.log.read_text(), 10)
    assert worker.problem() is None
