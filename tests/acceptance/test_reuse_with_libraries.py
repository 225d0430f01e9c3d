"""Training libraries in a process of many trials: whatever they leave, one process runs them all, and each begins as the first."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import trainables_reusing_libraries
from running import tuner_on

import mqtune
from mqtune.core.trial import TrialStatus

TRIALS = 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize("library", ["torch", "lightning", "transformers", "keras", "sklearn", "xgboost", "lightgbm"])
def test_one_process_runs_all_trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not here")
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    tuner = tuner_on(
        mqtune.Local(slots=1),
        getattr(trainables_reusing_libraries, library),
        {"lr": mqtune.uniform(0.05, 0.1)},
        max_trials=TRIALS,
        name=f"reuse-{library}",
        process=mqtune.Process(reuse=True, working_dir="trial"),
    )
    results = tuner.run()
    trials = tuner.get_trials()
    errors = ["\n".join(tuner.trial(trial).stderr()) for trial in trials]

    assert [trial.status for trial in trials] == [TrialStatus.COMPLETED] * TRIALS, errors
    assert [trial.attempt.retired for trial in trials] == [""] * TRIALS
    assert len({trial.attempt.pid for trial in trials}) == 1
    # Threads of scikit-learn that end at once may empty the filters of warnings that the next ones get, and it warns of that.
    assert not [text for text in errors if "warning" in text.lower() and "sklearn.utils.parallel.delayed" not in text]
    assert len({report.metrics.get("settings") for report in results.reports() if "settings" in report.metrics}) <= 1
