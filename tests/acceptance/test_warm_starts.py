"""A model that learns from another experiment, which the broker alone has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from waiting import eventually

import mqtune

Tune = Callable[..., mqtune.Tuner]


def taught(tune: Tune, old: str) -> mqtune.Tuner:
    """A tuner whose trials never report, so that what is suggested depends on what was learnt alone."""
    run = mqtune.RunOptions(max_concurrent=2)
    return tune("silent", max_trials=9, seed=3, searcher=mqtune.WarmStart([old], "tpe"), run=run)


def test_an_experiment_is_learnt_from_on_a_machine_that_has_no_folder_of_it(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tune("steady", max_trials=12, seed=1).run()
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "elsewhere"))

    with closing(taught(tune, old.name)) as tuner:
        eventually(lambda: tuner.step(0.1) or len(tuner.get_trials()) > 1, 30)
        tuner.finish()
        configs = [trial.config for trial in tuner.get_trials()]

    assert all(config["x"] < 0.5 for config in configs), "the least loss is at 0"
