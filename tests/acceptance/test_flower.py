"""What Flower shows: one row for each attempt, readable while it runs, and with a state that is true at the end."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from faces import celery, running, settings, wait_until_joined
from running import tuner_on
from started import free_port
from trainables import lingers, raises, slow, steady
from waiting import eventually

import mqtune
from mqtune.backends import EmbeddedServer, find_binary
from mqtune.core.trial import TrialStatus

Row = dict[str, Any]
#: Flower asks workers for events every 5 s, and a worker puts rows right every 3 s.
WATCHED_S = 20.0


class Flower:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        #: The page of an attempt that ran, and the tasks that were found to run then.
        self.while_running: tuple[str, list[str]] = ("", [])
        self.login = "Basic " + base64.b64encode(b"person:secret").decode()

    def call(self, path: str, **fields: str) -> str:
        request = urllib.request.Request(self.url + path, data=urlencode(fields).encode() if fields else None)
        request.add_header("Authorization", self.login)
        with urllib.request.urlopen(request, timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    def rows(self) -> dict[str, Row]:
        found: dict[str, Row] = json.loads(self.call("/api/tasks"))
        return found

    def row(self, experiment: str, attempt: int = 1) -> Row:
        return self.rows().get(f"{experiment}/0001/{attempt}", {})

    def found(self, search: str) -> list[str]:
        """The ids that the page of tasks shows for a search; its buttons, such as Started, are searches."""
        asked = {"draw": "1", "start": "0", "length": "50", "search[value]": search}
        order = {"order[0][column]": "0", "order[0][dir]": "asc", "columns[0][data]": "name"}
        return [row["uuid"] for row in json.loads(self.call("/tasks/datatable", **asked, **order))["data"]]

    def page(self, experiment: str) -> str:
        return self.call(f"/task/{quote(f'{experiment}/0001/1', safe='')}")

    def is_up(self) -> bool:
        with contextlib.suppress(OSError):
            return self.rows() == {}
        return False


def tuner_of(broker: str, name: str, trainable: Callable[..., None], **options: Any) -> mqtune.Tuner:
    return tuner_on(broker, trainable, {"x": mqtune.uniform(0, 1), "width": 64}, name=name, **options)


def until_it_runs(tuner: mqtune.Tuner) -> None:
    def runs() -> bool:
        tuner.step(0.1)
        return any(trial.status is TrialStatus.RUNNING and trial.attempt.reports > 2 for trial in tuner.get_trials())

    eventually(runs, 30)


def until_it_ends(tuner: mqtune.Tuner) -> None:
    eventually(lambda: tuner.step(0.1) or tuner.is_finished, 30)


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """A Flower that has seen an attempt come to each of its ends, and one that had begun before Flower came."""
    folder = tmp_path_factory.mktemp("flower")
    port = free_port()
    with EmbeddedServer.start(folder / "server", binary=find_binary()) as server, contextlib.ExitStack() as stack:
        broker, found = server.url, Flower(port)
        # What needs no GPU doesn't fit it.
        a_gpu = settings(broker, folder, MQTUNE_GPUS="7,", MQTUNE_SLOTS="", MQTUNE_CPUS="2")
        stack.enter_context(running(celery("worker", "-n", "early@%h"), a_gpu, folder / "early.log"))
        early = tuner_of(broker, "early", slow, resources=mqtune.Resources(gpus=1))
        stack.callback(early.close)
        until_it_runs(early)

        dies = settings(broker, folder, MQTUNE_GPUS="7,", MQTUNE_SLOTS="", MQTUNE_CPUS="3")
        dying = stack.enter_context(running(celery("worker", "-n", "dying@%h"), dies, folder / "dying.log"))
        lost = tuner_of(broker, "lost", slow, resources=mqtune.Resources(gpus=1, cpus=3))
        stack.callback(lost.close)
        until_it_runs(lost)

        login = {"MQTUNE_BROKER": broker, "FLOWER_BASIC_AUTH": "person:secret"}
        command = celery("flower", "--address=127.0.0.1", f"--port={port}")
        stack.enter_context(running(command, login, folder / "flower.log"))
        eventually(found.is_up, 30)
        eventually(lambda: lost.step(0.1) or found.row("lost").get("state") == "STARTED", WATCHED_S)
        dying.kill()
        begin_and_end(broker, folder, found)

        eventually(lambda: early.step(0.1) or found.row("early").get("state") == "STARTED", WATCHED_S)
        eventually(lambda: lost.step(0.1) or lost.get_trials()[0].attempts[0].end, 40)
        # Nobody is there to run it again.
        lost.close()
        eventually(lambda: found.row("lost").get("state") == "LOST", WATCHED_S)
        found.while_running = found.page("early"), found.found("state:STARTED")
        early.stop_all("the test is over")
        until_it_ends(early)
        eventually(lambda: found.row("early")["state"] != "STARTED", WATCHED_S)
        yield found


def begin_and_end(broker: str, folder: Path, flower: Flower) -> None:
    """Have an attempt end in each way, on a worker that starts now and leaves at last."""
    with running(celery("worker", "-n", "late@%h"), settings(broker, folder), folder / "late.log") as worker:
        wait_until_joined(broker, "late")
        for name, trainable in (("completes", steady), ("fails", raises)):
            with contextlib.closing(tuner_of(broker, name, trainable)) as tuner:
                until_it_ends(tuner)
        with contextlib.closing(tuner_of(broker, "stopped", slow)) as tuner:
            until_it_runs(tuner)
            tuner.stop_all("it is bad")
            until_it_ends(tuner)
        with contextlib.closing(tuner_of(broker, "paused", slow)) as tuner:
            until_it_runs(tuner)
            tuner.trial("0001").pause()
            eventually(lambda: tuner.step(0.1) or tuner.get_trials()[0].status is TrialStatus.PAUSED, 30)
        with contextlib.closing(tuner_of(broker, "terminated", slow)) as tuner:
            until_it_runs(tuner)
            eventually(lambda: flower.row("terminated").get("state") == "STARTED", WATCHED_S)
            assert "task-terminate" in flower.page("terminated")
            # As the button does.
            flower.call(f"/api/task/revoke/{quote('terminated/0001/1', safe='')}", terminate="true")
            until_it_ends(tuner)
            assert tuner.get_trials()[0].status is TrialStatus.EARLY_STOPPED
            assert tuner.results().best.id == "0001", "its reports count"
        with contextlib.closing(tuner_of(broker, "handed-back", lingers)) as tuner:
            until_it_runs(tuner)
            worker.send_signal(signal.SIGINT)
            assert worker.wait(timeout=20) == 0
            eventually(lambda: tuner.step(0.1) or tuner.get_trials()[0].attempts[0].end, 10)
    eventually(lambda: flower.row("handed-back").get("state") == "HANDED_BACK", WATCHED_S)


#: What every report has besides its own metrics.
TIMES = r" training_iteration=\d+ time_this_iter_s=[\d.e-]+ time_total_s=[\d.e-]+"
LAST_REPORT = r"report \d+: loss=[\d.e-]+"
#: Experiment, its trainable, its row's last state, and the result column.
ENDS = [
    ("completes", "steady", "SUCCESS", r"report 9: loss=[\d.e-]+ epoch=9"),
    ("fails", "raises", "FAILURE", "report 1: loss=1"),
    ("stopped", "slow", "EARLY_STOPPED", LAST_REPORT),
    ("paused", "slow", "PAUSED", LAST_REPORT),
    ("terminated", "slow", "EARLY_STOPPED", LAST_REPORT),
    ("handed-back", "lingers", "HANDED_BACK", LAST_REPORT),
    ("early", "slow", "EARLY_STOPPED", LAST_REPORT),
    ("lost", "slow", "LOST", LAST_REPORT),
]


@pytest.mark.parametrize(("experiment", "trainable", "state", "result"), ENDS)
def test_each_end_has_its_state_with_config_and_latest_metrics(
    flower: Flower, experiment: str, trainable: str, state: str, result: str
):
    row = flower.row(experiment)

    assert (row["state"], row["name"]) == (state, f"{experiment}/{trainable}")
    assert re.fullmatch(r"x=[\d.e-]+ width=64", row["kwargs"])
    assert re.fullmatch(result + TIMES, row["result"])
    assert row["worker"].startswith({"early": "early@", "lost": "dying@"}.get(experiment, "late@"))
    assert all(row[each] for each in ("received", "started", "runtime"))
    if experiment == "fails":
        assert row["exception"] == "TrialFailed('ValueError: the learning rate exploded')"
        assert "trainables.py" in row["traceback"]


def test_what_runs_has_the_button_that_ends_it_and_is_found_by_the_filter(flower: Flower):
    page, found = flower.while_running

    assert "task-terminate" in page
    assert found == ["early/0001/1"]
    assert sorted(flower.rows()) == sorted(f"{experiment}/0001/1" for experiment, *_ in ENDS)
    assert flower.found("state:STARTED") == []
    assert flower.found("state:PAUSED") == ["paused/0001/1"]
    assert flower.found("state:EARLY_STOPPED") == ["early/0001/1", "stopped/0001/1", "terminated/0001/1"]
    assert "task-terminate" not in flower.page("early")
