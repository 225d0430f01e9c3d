"""What trials print, read on another machine than the worker's: by the tuner, by a function and by the command."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from waiting import DEADLINE_S, eventually

import mqtune
from mqtune.cli import group
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import TrialStatus
from mqtune.results.logs import AttemptOutput
from mqtune.testing.backends.world import drive


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttemptOutput, "is_here", False)


@pytest.fixture
def talking(tune: Callable[..., mqtune.Tuner], tmp_path: Path) -> mqtune.Tuner:
    return tune("talks_until", {"until": str(tmp_path / "until")}, max_trials=1)


def read(*arguments: str, broker: str, home: Path) -> bytes:
    env = {"MQTUNE_BROKER": broker, "MQTUNE_HOME": str(home / "nothing")}
    return CliRunner(env=env).invoke(group, ["logs", *arguments], catch_exceptions=False).stdout_bytes


def test_output_on_another_machine_is_read_while_a_trial_runs_and_afterwards(
    far: None, talking: mqtune.Tuner, fleet: str, tmp_path: Path
):
    with contextlib.closing(talking) as tuner:
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.reports)
        trial = tuner.trial("0001").record
        eventually(lambda: len(tuner.trial(trial).stdout()) > 3)
        first = tuner.trial(trial).stdout()
        assert first[:2] == ["line 0", "line 1"]
        assert tuner.trial(trial).stdout(offset=7)[0] == "line 1"
        assert tuner.trial(trial).stderr() == ["on stderr"]

        following = subprocess.Popen(
            [sys.executable, "-m", "mqtune", "logs", tuner.name, "1", "--follow"],
            env={**os.environ, "MQTUNE_BROKER": fleet, "MQTUNE_HOME": str(tmp_path / "nothing")},
            stdout=subprocess.PIPE,
        )
        try:
            assert following.stdout is not None
            assert following.stdout.readline() == b"line 0\n"
            (tmp_path / "until").touch()
            drive(tuner, lambda: trial.status is TrialStatus.COMPLETED)
            rest = following.stdout.read()
            following.wait(DEADLINE_S)
        finally:
            following.kill()
            following.communicate()

        assert rest.splitlines()[-1] == b"the end"
        assert following.returncode == 0
        assert tuner.trial(trial).stdout() == ["line 0", *rest.decode().splitlines()]
        assert b"".join(mqtune.follow_log(tuner.name, "0001", broker=fleet)).endswith(b"the end\n")
        assert read(tuner.name, "1", "--stderr", broker=fleet, home=tmp_path) == b"on stderr\n"
        assert read(tuner.name, "1", "--offset", "-8", broker=fleet, home=tmp_path) == b"the end\n"
        assert read(tuner.name, "best", "--offset", "-8", broker=fleet, home=tmp_path) == b"the end\n"


def test_output_on_this_machine_is_followed_without_a_broker(talking: mqtune.Tuner, tmp_path: Path):
    with contextlib.closing(talking) as tuner:
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.reports)
        following = mqtune.follow_log(tuner.folder, "1")
        found = next(following)
        assert found.startswith(b"line 0\n")

        (tmp_path / "until").touch()
        drive(tuner, lambda: tuner.is_finished)

        assert (found + b"".join(following)).endswith(b"the end\n")
        assert next(mqtune.follow_log(tuner.name, "1", offset=-8, follow=False)) == b"the end\n"
        shown = CliRunner().invoke(group, ["logs", tuner.name, "best", "--offset", "-8"])
        assert (shown.exit_code, shown.output) == (0, "the end\n")


def test_each_seat_of_a_gang_has_its_output_from_its_worker_and_from_its_file(
    tune: Callable[..., mqtune.Tuner], fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = {"resources": mqtune.Resources(cpus=1, seats=2), "max_trials": 1}
    with contextlib.closing(tune("names_its_seat", **asked)) as tuner:
        drive(tuner, lambda: tuner.is_finished)
        here = CliRunner().invoke(group, ["logs", tuner.name, "1~1"])
        assert (here.exit_code, here.output) == (0, "seat 1\n")
        with pytest.raises(
            ConfigurationError, match="trial 0001 attempt 1 has no seat 2; it has 2 seats, numbered from 0"
        ):
            next(mqtune.follow_log(tuner.name, "0001~2"))

        monkeypatch.setattr(AttemptOutput, "is_here", False)

        assert read(tuner.name, "1", broker=fleet, home=tmp_path) == b"seat 0\n"
        assert read(tuner.name, "1~1", broker=fleet, home=tmp_path) == b"seat 1\n"
        stderr = read(tuner.name, "0001~1", "--stderr", "--follow", broker=fleet, home=tmp_path)
        assert stderr.startswith(b"on stderr of 1\n")
        with pytest.raises(ConfigurationError, match="Redis knows no trial '1~2' of that experiment"):
            next(mqtune.follow_log(tmp_path / tuner.name, "1~2", broker=fleet))
