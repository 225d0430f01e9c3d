"""Run programs as their authors do, and with mqtune: on one machine and a fleet, one of them after ``kill -9``.

The value that a program gives by hand is the expected one: see ``by_hand.py``. All programs stand in one folder, ``project``,
as in a user's project; a run of tests works in copies of it. A program's experiment has the name of its file, with dashes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pytest
from click.testing import CliRunner
from notebooks import RUN_NOTEBOOK
from servers import the_server
from started import started, wait_for_worker
from waiting import eventually

from mqtune.backends import EmbeddedServer
from mqtune.cli import group
from mqtune.core.errors import MqtuneError
from mqtune.core.trial import TrialStatus
from mqtune.results.results import Results

HERE: Final = Path(__file__).resolve().parent
#: How long a program may take, in seconds: each needs two or three, and a busy machine is many times slower.
PROGRAM_S: Final = 90.0
#: The key by which workers trust code that drivers bring, such as closures and cells: any text of this length.
CODE_KEY: Final = "0123456789abcdef" * 4
TIMES: Final = frozenset({"time_this_iter_s", "time_total_s"})

#: How a program is run: on this machine alone; by the workers of a fleet; the same, with a driver that is killed and run again.
Way = Literal["alone", "fleet", "resumed alone", "resumed on a fleet"]
#: A second driver makes no difference to most programs, and costs as much as the first.
WAYS: Final[tuple[Way, ...]] = ("alone", "fleet")
#: Ways of programs whose second driver might read, draw or rebuild something else.
WAYS_RESUMED: Final[tuple[Way, ...]] = ("alone", "resumed on a fleet")
#: The ways of programs that must import everything again after a kill.
WAYS_ANEW: Final[tuple[Way, ...]] = ("resumed alone", "fleet")


@dataclass(frozen=True)
class Finished:
    results: Results
    #: The output of the driver, errors too, and of the killed driver before it.
    output: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics of each trial, without times: those of its best report, which is the last one in these programs."""
        return [
            {name: value for name, value in (trial.metrics or {}).items() if name not in TIMES}
            for trial in self.results
        ]

    def check_completed(self) -> None:
        """Fail if a trial has not completed; its error is shown."""
        left = {
            trial.id: trial.error or trial.reason for trial in self.results if trial.status is not TrialStatus.COMPLETED
        }
        assert not left, f"trials that did not complete: {left}\n{self.output[-2000:]}"


@dataclass(frozen=True)
class Fleet:
    """A server with two workers of one project, which run code that drivers bring, too."""

    url: str
    project: Path
    logs: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"MQTUNE_BROKER": self.url, "MQTUNE_CODE_KEY": CODE_KEY}


class Programs:
    """The programs of a project, run in one way; by hand they run in another copy, which is *untouched*."""

    def __init__(self, way: Way, project: Path, untouched: Path, fleet: Fleet | None) -> None:
        self.way, self.project, self.untouched, self._fleet = way, project, untouched, fleet
        self._names: list[str] = []

    def check(self, program: str, *arguments: str, name: str = "") -> Finished:
        """Run a program, and check that each trial has reported what the plain program gives for its config."""
        finished = self.run(program, *arguments, name=name)
        finished.check_completed()
        configs = json.dumps([trial.config for trial in finished.results])
        assert finished.rows == run_by_hand(self.untouched, program, arguments, configs)
        return finished

    def run(self, program: str, *arguments: str, name: str = "", code: int = 0) -> Finished:
        """Run a program to its end, which has this exit code; its experiment has the name of its file if none is given."""
        name = name or Path(program).stem.replace("_", "-")
        self._names.append(name)
        log = self.project.parent / f"{name}.{self.way.replace(' ', '-')}.log"
        command = [*command_of(program), *arguments]
        if self.way.startswith("resumed"):
            with self._driver(command, log) as driver:
                self._wait_for_end_of_trial(name, driver, log)
                driver.kill()
                assert driver.wait() == -signal.SIGKILL, f"it ended before it was killed: {log.read_text()[-2000:]}"
        with self._driver(command, log) as driver:
            try:
                ended_with = driver.wait(PROGRAM_S)
            except subprocess.TimeoutExpired:
                pytest.fail(f"{program} did not end within {PROGRAM_S:g} s: {log.read_text()[-2000:]}")
        output = log.read_text()
        assert ended_with == code, output[-4000:]
        return Finished(Results.load(name), output)

    def close(self) -> None:
        """Delete the experiments, so that the same programs can be run in another way."""
        if self._fleet is None:
            return
        for name in self._names:
            # An experiment that a failed test has left running stays.
            CliRunner().invoke(group, ["delete", name, "--broker", self._fleet.url, "--yes"])
            for logs in self._fleet.logs.glob(f"**/{name}"):
                shutil.rmtree(logs, ignore_errors=True)

    @contextlib.contextmanager
    def _driver(self, command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
        environment = self._fleet.environment if self._fleet else {}
        with started(command, environment, log, cwd=self.project, within_s=5) as driver:
            yield driver

    def _wait_for_end_of_trial(self, name: str, driver: subprocess.Popen[bytes], log: Path) -> None:
        """Wait until the driver has seen a trial end; others run then or have not begun, as there are two slots."""

        def has_ended() -> bool:
            assert driver.poll() is None, f"the program ended before it could be killed: {log.read_text()[-2000:]}"
            return has_ended_trial(name)

        eventually(has_ended, PROGRAM_S)


def has_ended_trial(name: str) -> bool:
    with contextlib.suppress(MqtuneError):
        return any(trial.status.is_terminal for trial in Results.load(name))
    return False


def command_of(program: str) -> list[str]:
    return [sys.executable, "-c", RUN_NOTEBOOK, program] if program.endswith(".ipynb") else [sys.executable, program]


@functools.cache
def run_by_hand(folder: Path, program: str, arguments: tuple[str, ...], configs: str) -> list[dict[str, Any]]:
    """Return what a plain program reports last for each of these configs, as JSON has it."""
    rows = folder.parent / "rows.json"
    rows.unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MQTUNE_")}
    command = [sys.executable, str(HERE / "by_hand.py"), str(rows), configs, program, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PROGRAM_S)
    assert done.returncode == 0, f"the plain program fails: {done.stderr}"
    found: list[dict[str, Any]] = json.loads(rows.read_text())
    return found


def copied_project(folder: Path) -> Path:
    """Return a copy of the project in a folder, with the data that is too large for a repository."""
    project = folder / "project"
    shutil.copytree(HERE / "project", project, ignore=shutil.ignore_patterns("__pycache__"))
    np.savez(project / "data" / "arrays.npz", **{f"array{number}": np.full(20_000, number) for number in range(8)})
    return project


@contextlib.contextmanager
def running_fleet(folder: Path, project: Path) -> Iterator[Fleet]:
    """A server and two real workers of one slot each, started in the project's folder as a person starts them."""
    with EmbeddedServer.start(folder / "server", binary=the_server()) as server, contextlib.ExitStack() as workers:
        fleet = Fleet(server.url, project, folder / "logs")
        options = ["--gpus", "0", "--slots", "1", "--accept-code"]
        for name in ("one", "two"):
            log = folder / f"{name}.log"
            command = [sys.executable, "-m", "mqtune", "worker", "--name", name, *options]
            settings = {**fleet.environment, "MQTUNE_LOG_ROOT": str(fleet.logs / name)}
            worker = workers.enter_context(started(command, settings, log, cwd=project, within_s=20))
            wait_for_worker(server.url, worker, log)
        yield fleet
