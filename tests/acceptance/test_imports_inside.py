"""Trials that import inside their function: later ones find it imported, in the next experiment too, unless that is not safe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trainables_late

import mqtune


def seen(name: str) -> list[dict[str, Any]]:
    """Return what each trial of an experiment found imported, in the order in which they began."""
    results = mqtune.Tuner(
        trainables_late.imports_inside,
        {"x": mqtune.uniform(0, 1)},
        metric="x",
        mode="min",
        max_trials=6,
        backend=mqtune.Local(slots=1),
        run=mqtune.RunOptions(progress=False),
        name=name,
    ).run()
    trials = sorted(results.trials, key=lambda trial: trial.attempts[0].started_at or 0.0)
    assert [trial.status for trial in trials] == [mqtune.TrialStatus.COMPLETED] * 6
    return [dict(trial.metrics) for trial in trials]


def test_what_the_first_trial_imports_inside_the_later_ones_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "late_and_sound.py").write_text("import wave\n")
    (packages / "late_with_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    monkeypatch.setenv(trainables_late.PACKAGES, str(packages))

    first = seen("first")

    assert (first[0]["sound"], first[0]["thread"]) == (0, 0)
    assert [each["sound"] for each in first[2:]] == [1] * 4, "they had it from their start"
    assert [each["thread"] for each in first] == [0] * 6, "a fork would lack the thread"
    assert [each["alive"] for each in first] == [1] * 6

    assert [each["sound"] for each in seen("second")] == [1] * 6, "the next experiment begins with it"
