"""A model that has learnt from another experiment, on a broker: its driver is killed, and what it learnt from is gone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from running import HERE
from started import started
from taught_driver import taught
from waiting import eventually

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.core.keys import ExperimentKeys
from mqtune.core.trial import Config
from mqtune.journal.connection import connect


def first_two(tuner: mqtune.Tuner) -> list[Config]:
    """The configs of the first two trials, which are stopped then."""
    with closing(tuner):
        eventually(lambda: tuner.step(0.1) or len(tuner.get_trials()) > 1, 30)
        tuner.finish()
        return [trial.config for trial in tuner.get_trials()]


def test_a_driver_that_is_killed_is_followed_by_one_that_has_learnt_the_same(
    tune: Callable[..., mqtune.Tuner], fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tune("steady", max_trials=12, seed=1).run()
    whole, cut = f"{old.name}-whole", f"{old.name}-cut"
    # On a machine that has no folder of it; the broker has it.
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "elsewhere"))
    both = first_two(taught(whole, fleet, old.name, max_concurrent=2))
    assert all(config["x"] < 0.5 for config in both), "the least loss is at 0"

    with started([sys.executable, "taught_driver.py", cut, fleet, old.name], {}, tmp_path / "log", cwd=HERE) as driver:
        with mqtune.Client(fleet) as client:
            eventually(
                lambda: any(each.name == cut and each.state() and each.trials() for each in client.experiments()), 30
            )
        driver.kill()
        driver.wait()
    with closing(connect(fleet)) as redis:
        assert redis.delete(ExperimentKeys(old.name).journal)
    resumed = mqtune.Tuner.attach(cut, backend=fleet, run=mqtune.RunOptions(progress=False, max_concurrent=2))

    assert first_two(resumed) == both


def test_a_name_that_nobody_knows_is_an_error_with_those_that_there_are(
    fleet: str,
) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no experiment 'elder' in .*; nor is there one on unix://"):
        taught("learns-from-nobody", fleet, "elder").run()
