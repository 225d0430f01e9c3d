"""What trials, experiments and workers share, and don't."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from running import running_worker
from waiting import eventually

import mqtune
from mqtune.core.trial import TrialStatus

#: A shape that no other test's worker has.
SLOT = mqtune.Resources(cpus=8)
OPTIONS = ("--gpus", "0", "--slots", "1", "--cpus", "8")
#: Longer than the others take, and short enough to wait for.
LONG_S = 60.0


def statuses(tuner: mqtune.Tuner) -> list[TrialStatus]:
    tuner.step(0.1)
    return [trial.status for trial in tuner.get_trials()]


def test_no_trial_waits_behind_a_long_one_while_another_worker_is_idle(
    broker: str, fleet: str, tmp_path: Path, tune: Callable[..., mqtune.Tuner]
):
    points = [{"seconds": LONG_S}, *({"seconds": 0.1 + number / 1000} for number in range(6))]
    with (
        running_worker(broker, tmp_path / "one.log", *OPTIONS, name="sharing-one"),
        running_worker(broker, tmp_path / "two.log", *OPTIONS, name="sharing-two"),
        contextlib.closing(
            tune(
                "as_long_as_it_says",
                {"seconds": mqtune.uniform(0, LONG_S)},
                searcher=mqtune.InitialPoints(points),
                max_trials=len(points),
                resources=SLOT,
            )
        ) as tuner,
    ):
        eventually(lambda: statuses(tuner).count(TrialStatus.COMPLETED) == len(points) - 1, LONG_S / 2)

        assert statuses(tuner)[0] is TrialStatus.RUNNING
        tuner.stop_all("the test is over")
        eventually(lambda: tuner.step(0.1) or tuner.is_finished, 30)
