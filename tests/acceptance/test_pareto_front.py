"""Two metrics over real workers: the front is that of all trials, also when the driver is killed in the middle."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from running import HERE
from waiting import eventually

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.core.objective import dominates
from mqtune.core.trial import TrialStatus

PROGRAM: Final = """
import sys

import trainables

import mqtune

mqtune.Tuner(
    trainables.trades,
    {"x": mqtune.uniform(0, 1), "y": mqtune.uniform(0, 1)},
    metric=["loss", "speed"],
    mode=["min", "max"],
    searcher="tpe",
    scheduler=mqtune.MOASHA(max_t=9, reduction_factor=2),
    max_trials=16,
    seed=1,
    backend=sys.argv[1],
    name=sys.argv[2],
    run=mqtune.RunOptions(progress=False),
).run()
"""


def test_a_driver_that_is_killed_is_followed_by_one_that_comes_to_the_front(fleet: str, tmp_path: Path) -> None:
    name = f"several-{os.getpid()}"
    experiment = mqtune.Client(fleet).experiment

    def reports() -> int:
        with contextlib.suppress(ConfigurationError):
            return experiment(name).results(tmp_path).experiment.reports
        return 0

    first = subprocess.Popen([sys.executable, "-c", PROGRAM, fleet, name], cwd=HERE)
    try:
        eventually(lambda: reports() > 25, 60)
    finally:
        first.kill()
        first.wait()
    with contextlib.closing(mqtune.Tuner.attach(name, backend=fleet, run=mqtune.RunOptions(progress=False))) as second:
        results = second.run()

    assert len(results) == 16
    assert {trial.status for trial in results} == {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}
    points = {trial.id: (trial.metrics["loss"], -trial.metrics["speed"]) for trial in results}
    front = {one for one, point in points.items() if not any(dominates(other, point) for other in points.values())}
    assert {trial.id for trial in results.pareto_front} == front
    assert [trial.id for trial in results.pareto_front] == sorted(front, key=points.__getitem__)
    assert {trial.id for trial in mqtune.Results.load(results.folder).pareto_front} == front
    state = experiment(name).state()
    assert state is not None
    assert state.metric == "loss, speed"
    last = {report.trial: report.metrics for report in results.reports() if not report.late}
    assert {trial: (metrics["loss"], -metrics["speed"]) for trial, metrics in last.items()} == points
