"""An experiment continues while its fleet is upgraded by halves, and loses no attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import trainables_saving as saving
from pair import OPTIONS, counting, tuners
from running import running_worker

import mqtune
from mqtune.core.trial import AttemptEnd, TrialStatus
from mqtune.core.version import minor
from mqtune.testing.backends.world import drive

NEXT = "99.3.0"
#: ``python -c`` with this runs mqtune as if it were of the next minor version.
UPGRADED = (
    "-c",
    f"import mqtune.core.version as version; version.__version__ = {NEXT!r}; from mqtune.cli import main; main()",
)
END_S = 60.0


def said_by(broker: str, home: Path, *arguments: str, program: Sequence[str] = ("-m", "mqtune")) -> str:
    done = subprocess.run(
        [sys.executable, *program, *arguments],
        env={**os.environ, "MQTUNE_BROKER": broker, "MQTUNE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_experiment_continues_on_the_upgraded_half_once_its_driver_is_upgraded(
    own_broker: str, tmp_path: Path
) -> None:
    home = tmp_path / "elsewhere"
    with (
        running_worker(own_broker, tmp_path / "old.log", *OPTIONS, name="old"),
        running_worker(own_broker, tmp_path / "new.log", *OPTIONS, name="new", program=UPGRADED),
        tuners(own_broker, tmp_path / "store") as tune,
    ):
        tuner = tune(saving.Counts, counting(30), counting(30), run=mqtune.RunOptions(max_concurrent=1))
        drive(tuner, lambda: any(trial.attempt.reports >= 3 for trial in tuner.get_trials()))
        assert {trial.attempt.worker.partition("@")[0] for trial in tuner.get_trials()} - {""} == {"old"}
        drivers = f"drivers are of {minor(mqtune.__version__)}"
        assert f"1 slot of mqtune {minor(NEXT)} fit no driver: {drivers}" in said_by(own_broker, home, "fleet")

        tuner.close()
        said_by(own_broker, home, "fleet", "drain", "old")
        said_by(own_broker, home, "drive", tuner.name, program=UPGRADED)

        with mqtune.Client(own_broker) as client:
            trials = client.experiment(tuner.name).results(tmp_path / "copy").trials
        attempts = [attempt for trial in trials for attempt in trial.attempts]
        assert {trial.status for trial in trials} == {TrialStatus.COMPLETED}
        assert trials[-1].attempts[-1].worker.startswith("new@")
        assert not {attempt.end for attempt in attempts} & {AttemptEnd.LOST, AttemptEnd.FAILED}
