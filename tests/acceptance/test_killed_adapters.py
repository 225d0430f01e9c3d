"""Training libraries on a real worker: a trial whose process is killed goes on with the epoch after its checkpoint."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import trainables_adapters

import mqtune
from mqtune.core.trial import AttemptEnd, TrialStatus

TITLES = {
    "sklearn": "scikit-learn",
    "lightning": "PyTorch Lightning",
    "transformers": "Hugging Face Trainer",
    "keras": "Keras",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
}


@pytest.mark.parametrize("library", TITLES)
def test_a_trial_that_is_killed_goes_on_behind_its_checkpoint(
    tune: Callable[..., mqtune.Tuner], tmp_path: Path, library: str
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not here")
    tuner = tune(
        trainables_adapters.train,
        {"lr": mqtune.uniform(0.05, 0.1), "library": library, "title": TITLES[library]},
        max_trials=1,
        checkpoints=mqtune.Checkpoints(tmp_path / "store"),
        failures=mqtune.Failures(max_failures=1),
    )
    tuner.run()

    (trial,) = tuner.get_trials()
    assert trial.status is TrialStatus.COMPLETED
    assert [attempt.end for attempt in trial.attempts] == [AttemptEnd.FAILED, AttemptEnd.COMPLETED]
    reports = [(report.attempt, report.metrics["training_iteration"]) for report in tuner.results().reports()]
    assert reports == [(1, 1), (1, 2), (2, 3), (2, 4)]
