"""What lies in Redis and goes over its channels is msgpack and JSON, and what is neither hurts nobody."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trainables_saving as saving
from hostile import Touch, message, pickled, remote
from pair import both_run, counting, tuners
from running import running_worker
from waiting import eventually

from mqtune.backends import EmbeddedServer, find_binary
from mqtune.core.errors import MessageVersionError
from mqtune.core.keys import ExperimentKeys
from mqtune.core.resources import QUEUE_VERSION
from mqtune.journal import connect
from mqtune.testing.backends.world import drive

QUEUE: Final = f"mqtune-{QUEUE_VERSION}.gpu0.cpu5"
REMOTE: Final = "/0.mqtune.pidbox"
OPTIONS: Final = ["--gpus", "0", "--slots", "2", "--cpus", "10"]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any, Path]]:
    folder = tmp_path_factory.mktemp("hostile")
    with (
        EmbeddedServer.start(folder / "server", binary=find_binary()) as server,
        running_worker(server.url, folder / "w.log", *OPTIONS, name="hardy") as process,
    ):
        yield server.url, process, folder / "w.log"


def tasks(mark: Path) -> dict[str, str | bytes]:
    wrong: list[list[Any]] = [
        [1, "0001", 1, "digest"],
        [{}, "0001", 1, "digest"],
        ["../../outside", "0001", 1, "digest"],
        ["e", "../0001", 1, "digest"],
        ["e" * 100_000, "0001", 1, "digest"],
        ["there-is-none", "0001", 1, "digest"],
    ]
    return {
        "a pickle": pickled(mark, queue=QUEUE),
        "a pickle for another task": pickled(mark, queue=QUEUE, task="os.system"),
        "a pickle that says it is JSON": pickled(mark, queue=QUEUE).replace("x-python-serialize", "json"),
        "YAML": message([[], {}, {}]).replace("application/json", "application/x-yaml"),
        "a task that there is not": message([["true"], {}, {}], task="os.system"),
        "one of Celery's own tasks": message([[], {}, {}], task="celery.backend_cleanup"),
        **{f"arguments {index}": message([each, {}, {}], queue=QUEUE) for index, each in enumerate(wrong)},
        "keywords": message([[], {"experiment": "e", "shell": "true"}, {}]),
        "no body": json.dumps({"headers": {}, "properties": {}}),
        "no headers": json.dumps({"body": "", "properties": {"delivery_tag": "x", "delivery_info": {}}}),
        "a number": "5",
        "noise": b"\xff\xfe\x00noise",
        "half of JSON": '{"body": ',
        "lists in lists": "[" * 100_000,
    }


def test_a_message_that_is_no_task_of_mqtunes_runs_nothing_and_ends_no_worker(
    worker: tuple[str, Any, Path], tmp_path: Path
):
    url, process, log = worker
    with contextlib.closing(connect(url)) as client:
        keys = lasting_keys(client)
        for what, sent in tasks(tmp_path / "mark").items():
            before = len(log.read_text())
            client.lpush(QUEUE, sent)
            eventually(lambda before=before: not client.llen(QUEUE) and len(log.read_text()) > before, 30, what)
        assert not (tmp_path / "mark").exists()
        assert process.poll() is None
        assert lasting_keys(client) == keys


def lasting_keys(client: Any) -> set[bytes]:
    """The keys of experiments, without those for what a worker's trials use, which come and expire by themselves."""
    return {key for key in client.keys("mqtune:x:*") if b":usage:" not in key}


#: Headers that Celery reads, and what they must not be.
HEADERS: Final[dict[str, Any]] = {
    "timelimit": "soon",
    "callbacks": 5,
    "chain": [5],
    "stamped_headers": 5,
    "eta": "tomorrow",
}


def test_messages_whose_headers_make_no_sense_take_no_slot(worker: tuple[str, Any, Path], tmp_path: Path):
    url, process, _ = worker
    with contextlib.closing(connect(url)) as client, tuners(url, tmp_path / "store") as tune:
        for name, value in HEADERS.items():
            for number in range(3):
                headers = {name.split(" ")[0]: value}
                body = [["there-is-none", "0001", number, "digest"], {}, {}]
                task_id = f"there-is-none/{name}/{number}".replace(" ", "-")
                client.lpush(QUEUE, message(body, queue=QUEUE, task_id=task_id, **headers))
        eventually(lambda: client.llen(QUEUE) == 0, 30, "all of them were taken")

        tuner = tune(saving.CountsInDict, counting(), counting(), name="unhindered", store=None)
        first, second = both_run(tuner)
        for trial in (first, second):
            tuner.trial(trial).stop()
        drive(tuner, lambda: first.status.is_terminal and second.status.is_terminal)

    assert process.poll() is None


def test_remote_commands_that_are_none_run_nothing_and_end_no_worker(worker: tuple[str, Any, Path], tmp_path: Path):
    url, process, log = worker
    body = pickle.dumps({"method": "ping", "arguments": Touch(tmp_path / "mark")})
    with contextlib.closing(connect(url)) as client:
        for noise in (
            remote("", kind="application/x-python-serialize", body=body),
            remote("", kind="application/json", body=body),
            remote("os.system"),
            remote("ping", x=[]),
            "5",
            "{}",
            b"\xff\x00",
            "[" * 100_000,
        ):
            # A worker that has just begun, or taken the last one, may not listen yet.
            eventually(lambda noise=noise: client.publish(REMOTE, noise) == 1, 30)
        # Commands are heard in their order.
        client.publish(REMOTE, remote("rate_limit", task_name="the-last-one", rate_limit="1/s"))
        eventually(lambda: "the-last-one" in log.read_text(), 30)

    assert not (tmp_path / "mark").exists()
    assert process.poll() is None


def test_an_entry_that_can_not_be_read_is_a_clear_error_and_the_run_goes_on_without_it(
    worker: tuple[str, Any, Path], tmp_path: Path
):
    url, _, _ = worker
    with contextlib.closing(connect(url)) as client, tuners(url, tmp_path / "store") as tune:
        tuner = tune(saving.Counts, counting(), name="poisoned")
        drive(tuner, lambda: tuner.get_trials() and tuner.get_trials()[0].attempt.reports > 1)
        journal = ExperimentKeys("poisoned").journal
        entry = client.xadd(journal, {"e": b"\xc1 noise"})

        with pytest.raises(MessageVersionError, match=f"entry {entry.decode()} .*not an event"):
            drive(tuner, lambda: False)
        tuner.close()

        client.xdel(journal, entry)
        again = tune(saving.Counts, counting(), name="poisoned")
        drive(again, lambda: again.get_trials() and again.get_trials()[0].attempt.reports > 10)
        assert len(again.get_trials()[0].attempts) == 1, "its trial ran on all the time"
