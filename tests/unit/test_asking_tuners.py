"""A tuner in whose own process somebody asks for configs, and tells what came of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulation import tuner_on

import mqtune
from mqtune.core.errors import ConfigurationError, InvalidTransition, SpaceError
from mqtune.core.trial import TrialStatus

SPACE = {"x": mqtune.uniform(0, 1)}


def never(config: dict[str, Any]) -> None:
    raise AssertionError("no worker runs anything here")


@contextlib.contextmanager
def opened(name: str, space: Any = SPACE, **options: Any) -> Iterator[mqtune.Tuner]:
    tuner = tuner_on(mqtune.Simulated(lambda config: [], keep_journal=True), never, space, name=name, **options)
    with contextlib.closing(tuner):
        yield tuner


@pytest.mark.usefixtures("mqtune_home")
def test_a_search_without_any_worker_is_a_loop_of_ask_and_tell() -> None:
    with opened("by-hand", max_trials=10, seed=1) as tuner:
        for _ in range(10):
            trial = tuner.ask()
            tuner.tell(trial, {"loss": np.float32((trial.config["x"] - 0.3) ** 2)})
        with pytest.raises(ConfigurationError, match="all of max_trials=10 have begun"):
            tuner.ask()
        assert tuner.is_finished
        best = tuner.results().best

    assert min(abs(trial.config["x"] - 0.3) for trial in tuner.get_trials()) == abs(best.config["x"] - 0.3)
    assert {trial.status for trial in tuner.get_trials()} == {TrialStatus.COMPLETED}
    loaded = mqtune.Results.load("by-hand")
    assert (loaded.outcome, len(list(loaded.reports())), loaded.best.id) == ("finished", 10, best.id)


@pytest.mark.usefixtures("mqtune_home")
def test_trials_are_named_by_themselves_by_their_ids_or_by_a_config_and_are_told_once() -> None:
    with opened("named", max_trials=3) as tuner:
        first = tuner.ask({"x": 0.5}, tags=["mine"], key="a")
        assert tuner.ask(key="a") is first
        tuner.tell(first.id, {"loss": 0.5}, ends=False)
        assert tuner.tell(first, {"loss": 0.25}).status is TrialStatus.COMPLETED
        last_year = [tuner.tell({"x": 0.125}, {"loss": 0.75}, key="row 1") for _ in range(2)]

        assert last_year[0] is last_year[1]
        assert [(trial.config["x"], trial.reports) for trial in tuner.get_trials()] == [(0.5, 2), (0.125, 1)]
        with pytest.raises(InvalidTransition, match="nothing more is told: trial 0001 is COMPLETED"):
            tuner.tell(first, {"loss": 0.1})
        with pytest.raises(SpaceError, match="x"):
            tuner.tell({"x": 7}, {"loss": 0.1})


@pytest.mark.usefixtures("mqtune_home")
def test_an_experiment_without_a_space_takes_any_config_and_has_none_to_ask_for(tmp_path: Path) -> None:
    with opened("open", None) as tuner:
        asked = tuner.ask({"anything": [1, 2]})
        tuner.tell({"else": 3}, {"loss": 0.5})

        assert tuner.tell(asked, {"loss": 0.25}).config == {"anything": [1, 2]}
        with pytest.raises(ConfigurationError, match="nothing is searched without a space; give one of your own"):
            tuner.ask()
