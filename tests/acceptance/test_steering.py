"""Steering a real experiment from outside its driver's process, with an operator's account: with a driver, and without."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accounts import Accounts
from faces import running
from pair import OPTIONS, counting
from running import HERE, running_worker
from waiting import eventually

import mqtune
from mqtune.backends.local.server import EmbeddedServer, find_binary
from mqtune.client import Answer, ExperimentHandle
from mqtune.core.errors import RequestRefused
from mqtune.core.events import CheckpointSaved, Requested, TrialStaged, decode_event
from mqtune.core.trial import Trial, TrialStatus
from mqtune.results.results import Results

pytestmark = pytest.mark.timeout(240)

#: The longest that something takes that a driver and a worker do together, on a machine that runs other tests.
DONE_S = 60.0
_names = itertools.count(1)


class World:
    """A server with accounts and a worker of two slots, and the driver of one experiment, which may be killed."""

    def __init__(self, accounts: Accounts, client: mqtune.Client, folder: Path, home: Path) -> None:
        self.accounts = accounts
        self.client = client
        self.folder = folder
        self.home = home
        self.name = f"steered-{next(_names)}"
        self.driver: subprocess.Popen[Any] | None = None
        self._open = contextlib.ExitStack()

    def drive(self) -> ExperimentHandle:
        """Start a driver, and return the experiment when its first two trials have been staged."""
        program = [sys.executable, str(HERE / "steered_driver.py"), self.accounts.url_of("mqtune-driver", "drives-7")]
        environment = {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]), "MQTUNE_HOME": str(self.home)}
        log = self.folder / f"driver-{next(_names)}.log"
        command = [*program, self.name, str(self.folder / "store")]
        self.driver = self._open.enter_context(running(command, environment, log))
        eventually(lambda: any(each.name == self.name and each.state() for each in self.client.experiments()), DONE_S)
        experiment = self.client.experiment(self.name)
        eventually(lambda: len(self.trials()) >= 2, DONE_S)
        return experiment

    def kill(self) -> None:
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait()

    def results(self) -> Results:
        folder = self.folder / f"look-{next(_names)}"
        folder.mkdir()
        return self.client.experiment(self.name).results(folder)

    def trials(self) -> dict[str, Trial]:
        return dict(self.results().experiment.trials)  # type: ignore[arg-type]

    def reaches(self, trial: str, status: TrialStatus, attempt: int = 0) -> Trial:
        """Return a trial once it has this status, in this attempt or a later one."""

        def found() -> Trial | None:
            trial_ = self.trials()[trial]
            return trial_ if trial_.status is status and trial_.attempt.number >= attempt else None

        return eventually(found, DONE_S)

    def events(self, kind: type) -> list[Any]:
        entries = self.results()._copy.read()
        return [event for event in (decode_event(entry.data) for entry in entries) if isinstance(event, kind)]

    def close(self) -> None:
        self._open.close()


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accounts]:
    with (
        EmbeddedServer.start(tmp_path_factory.mktemp("steering"), binary=find_binary()) as server,
        contextlib.closing(Accounts(server.url)) as accounts,
    ):
        accounts.make("driver")
        options = [*OPTIONS[:-4], "--slots", "2", "--cpus", "10"]
        log = tmp_path_factory.mktemp("steered") / "worker.log"
        with running_worker(accounts.make("worker"), log, *options, name="steered"):
            yield accounts


@pytest.fixture
def world(accounts: Accounts, tmp_path: Path) -> Iterator[World]:
    with (
        mqtune.Client(accounts.make("operator")) as client,
        contextlib.closing(World(accounts, client, tmp_path, tmp_path / "home")) as world,
    ):
        yield world
        with contextlib.suppress(RequestRefused):
            if world.driver is not None and world.driver.poll() is None:
                client.experiment(world.name).end(now=True, timeout_s=10)
                world.driver.wait(DONE_S)


def test_an_operator_steers_an_experiment_while_its_driver_lives(world: World) -> None:
    experiment = world.drive()
    one, two = experiment.trial("0001"), experiment.trial("0002")
    for id_ in ("0001", "0002"):
        world.reaches(id_, TrialStatus.RUNNING)
    eventually(lambda: world.trials()["0001"].reports, DONE_S)

    assert one.pause("a look").is_done
    assert world.reaches("0001", TrialStatus.PAUSED).reason == "a look"
    with pytest.raises(RequestRefused, match="0001"):
        one.save()
    assert one.resume({"lr": 2.0}).is_done
    assert world.reaches("0001", TrialStatus.RUNNING, attempt=2).config["lr"] == 2.0
    assert two.save().is_done
    eventually(lambda: any(event.trial == "0002" for event in world.events(CheckpointSaved)), DONE_S)
    assert two.restart({"lr": 3.0}, checkpoint="newest").is_done
    assert world.reaches("0002", TrialStatus.RUNNING, attempt=2).config["lr"] == 3.0

    added = experiment.add(counting(lr=4), source="0001", request_id="added")
    assert added == experiment.add(counting(lr=4), source="0001", request_id="added")
    assert added == Answer("added", is_done=True, trial="0003")
    assert two.complete().is_done
    assert world.reaches("0003", TrialStatus.RUNNING).attempt.source == "0001"

    assert experiment.set(max_trials=3).is_done
    assert one.stop().is_done
    world.reaches("0001", TrialStatus.EARLY_STOPPED)
    world.reaches("0004", TrialStatus.RUNNING)
    assert experiment.trial("0004").fail("nonsense").is_done
    assert experiment.trial("0003").abandon("enough").is_done
    assert world.driver is not None
    world.driver.wait(DONE_S)
    found = world.trials()
    statuses = [TrialStatus.EARLY_STOPPED, TrialStatus.COMPLETED, TrialStatus.ABANDONED, TrialStatus.FAILED]
    assert [trial.status for trial in found.values()] == statuses


def test_what_is_requested_while_no_driver_lives_the_next_one_does_once(world: World) -> None:
    experiment = world.drive()
    for id_ in ("0001", "0002"):
        world.reaches(id_, TrialStatus.RUNNING)
    world.kill()

    requests: list[Callable[[], Answer]] = [
        lambda: experiment.trial("0001").restart({"lr": 5.0}, timeout_s=0, request_id="restart"),
        lambda: experiment.trial("0002").complete(timeout_s=0, request_id="complete"),
        lambda: experiment.add(counting(lr=6), key="six", timeout_s=0, request_id="add"),
    ]
    # Each is made twice, as by somebody who has heard no answer.
    assert [request().is_done for request in requests * 2] == [False] * 6
    world.drive()

    world.reaches("0002", TrialStatus.COMPLETED)
    assert world.reaches("0001", TrialStatus.RUNNING, attempt=2).config["lr"] == 5.0
    assert world.reaches("0003", TrialStatus.RUNNING).config["lr"] == 6.0
    assert [request().is_done for request in requests] == [True] * 3
    assert [event.id for event in world.events(Requested)] == ["restart", "complete", "add"]
    assert experiment.add(counting(lr=7), key="six").trial == "0003"
    assert sum(event.trial in ("0001", "0003") for event in world.events(TrialStaged)) == 3

    assert experiment.end(now=True).is_done
    assert world.driver is not None
    world.driver.wait(DONE_S)
    assert all(trial.status.is_terminal for trial in world.trials().values())
    assert world.accounts.refused() == []
