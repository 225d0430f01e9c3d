from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.results.results import Results


def curve(config: dict[str, Any]) -> list[dict[str, float]]:
    return [{"loss": config["x"] / (n + 1)} for n in range(3)]


def tuned(**options: Any) -> mqtune.Tuner:
    backend = mqtune.Simulated(lambda config: ((1.0, each) for each in curve(config)), slots=2)
    settings: dict[str, Any] = {
        "metric": "loss",
        "mode": "min",
        "name": "x",
        "max_trials": 3,
        "run": mqtune.RunOptions(progress=False),
    }
    return mqtune.Tuner(curve, {"x": mqtune.uniform(0, 1)}, backend=backend, **{**settings, **options})


def test_results_that_can_not_be_saved_are_returned_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mqtune_home: Path
) -> None:
    def refuse(results: Results) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(results.folder / "trials.csv"))

    monkeypatch.setattr(Results, "save", refuse)

    results = tuned().run()

    assert (len(results), results.outcome) == (3, "finished")
    assert f"the results of experiment x can't be written to {mqtune_home / 'x'}" in caplog.text
    assert "`mqtune drive x` writes them" in caplog.text


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"on_driver_loss": "panic"}, "on_driver_loss='panic' is none of 'continue', 'finish', 'stop'"),
        ({"driver_loss_grace_s": 0}, "driver_loss_grace_s=0 must be above 0"),
        ({"driver_loss_grace_s": "soon"}, "driver_loss_grace_s='soon' is not a finite number"),
    ],
)
def test_an_invalid_policy_is_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        mqtune.Failures(**options)


def test_the_progress_counts_the_trials_that_a_request_has_set(capsys: pytest.CaptureFixture[str]) -> None:
    tuner = tuned(run=mqtune.RunOptions(progress=True))
    tuner.step()
    tuner._runner.look().steer("set", "", {"max_trials": 5})

    tuner.run()

    assert "5/5 trials: 5 completed" in capsys.readouterr().err
