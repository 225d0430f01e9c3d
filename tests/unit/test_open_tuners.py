"""Tuners that somebody else drives: without a space, with any configs, open until they are finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mqtune
from mqtune.core.errors import ConfigurationError, ExperimentFinished, MetricMissing, SpaceError
from mqtune.core.trial import TrialStatus
from mqtune.results.results import Results


def curve(config: dict[str, Any]) -> Any:
    for step in range(1, config.get("steps", 3) + 1):
        yield 1.0, {"loss": 1.0 / step, "latency": float(step), "step": step}


def opened(backend: mqtune.Simulated | None = None, **options: Any) -> mqtune.Tuner:
    backend = mqtune.Simulated(curve, slots=2, keep_journal=True) if backend is None else backend
    return mqtune.Tuner(curve, backend=backend, name="open", run=mqtune.Run(progress=False), **options)


def drive_until(tuner: mqtune.Tuner, trial: mqtune.TrialHandle | Any, status: TrialStatus) -> None:
    for _ in range(100):
        if trial.status is status:
            return
        tuner.step()
    pytest.fail(f"trial {trial.id} is {trial.status}")


def test_any_config_is_tried_as_it_is_and_the_experiment_is_open_until_it_is_finished() -> None:
    tuner = opened()
    config = {"any": [1, {"x": None}], "a/b": (2, 3), "steps": 2}

    trial = tuner.add(config)
    drive_until(tuner, trial, TrialStatus.COMPLETED)

    assert trial.config == {"any": [1, {"x": None}], "a/b": [2, 3], "steps": 2}
    tuner.step()
    assert not tuner.is_finished
    assert "a trial to be added" in tuner.debug_string()
    other = tuner.add({}, key="other")
    results = tuner.finish("they have enough")
    assert (results.outcome, results.experiment.reason) == ("finished", "they have enough")
    assert (other.status, other.reason) == (TrialStatus.EARLY_STOPPED, "they have enough")
    assert tuner.is_finished
    tuner.close()


def test_what_was_finished_is_finished_for_the_next_driver_until_a_trial_is_added() -> None:
    backend = mqtune.Simulated(curve, keep_journal=True)
    first = opened(backend)
    first.add({}, key="one")
    first.finish()
    first.close()

    second = opened(backend)

    assert second.is_finished
    with pytest.raises(ExperimentFinished):
        second.step()
    drive_until(second, second.add({}, key="two"), TrialStatus.COMPLETED)
    assert not second.is_finished
    assert [trial.key for trial in second.get_trials()] == ["one", "two"]
    assert second.finish().outcome == "finished"
    second.close()


def test_one_that_is_only_closed_is_open_for_the_next_driver() -> None:
    backend = mqtune.Simulated(curve, keep_journal=True)
    first = opened(backend)
    drive_until(first, first.add({}), TrialStatus.COMPLETED)
    first.close()

    second = opened(backend)

    second.step()
    assert not second.is_finished
    assert second.results().outcome == ""
    second.close()


def test_trials_that_are_paused_wait_for_whoever_drives() -> None:
    tuner = opened()
    trial = tuner.add({"steps": 50})
    drive_until(tuner, trial, TrialStatus.RUNNING)
    tuner.trial(trial).pause()
    drive_until(tuner, trial, TrialStatus.PAUSED)

    tuner.step()
    tuner.trial(trial).resume({"steps": 3, "new": True})
    drive_until(tuner, trial, TrialStatus.COMPLETED)

    assert trial.config == {"steps": 3, "new": True}
    tuner.close()


def test_without_a_metric_there_is_no_best_trial_and_none_is_missed(mqtune_home: Path) -> None:
    tuner = opened()
    drive_until(tuner, tuner.add({"steps": 0}), TrialStatus.COMPLETED)
    drive_until(tuner, tuner.add({}), TrialStatus.COMPLETED)

    results = tuner.finish()

    with pytest.raises(MetricMissing):
        _ = results.best
    tuner.close()
    assert [trial.status for trial in Results.load(mqtune_home / "open")] == [TrialStatus.COMPLETED] * 2


def test_with_a_metric_the_best_trial_is_known_and_a_scheduler_may_decide() -> None:
    tuner = opened(metric="loss", mode="min", scheduler=mqtune.ASHA(max_t=9), stop={"step": 4})
    for steps in (1, 9):
        drive_until(tuner, tuner.add({"steps": steps}), TrialStatus.COMPLETED)

    assert tuner.finish().best.metrics["step"] == 4
    tuner.close()


def test_a_request_ends_one_that_runs_for_others() -> None:
    tuner = opened()
    tuner.add({})
    tuner._runner.look().steer("end", "", {"reason": "that was all"})

    results = tuner.run()

    assert (results.outcome, results.experiment.reason) == ("finished", "that was all")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"max_trials": 3}, "max_trials=3 needs a space"),
        ({"searcher": "random"}, "searcher='random' needs a space"),
        ({"mode": "min"}, "mode='min' needs a metric"),
        ({"stop": {"loss": 1}}, "stop={'loss': 1} needs a metric"),
        ({"scheduler": mqtune.ASHA(max_t=9)}, "needs a metric; give one, or leave scheduler out"),
        ({"metric": "loss"}, "mode=None: give 'min' or 'max'"),
        ({"metric": "", "mode": "min", "space": {}}, "metric='' is not a name"),
        ({"space": {}}, "metric=None: give the key"),
    ],
)
def test_what_goes_by_something_that_was_left_out_is_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        opened(**options)


@pytest.mark.parametrize("config", [{"x": object()}, {"x": {1: 2}}, [1]])
def test_a_config_that_no_worker_can_be_sent_is_refused(config: Any) -> None:
    tuner = opened()

    with pytest.raises(SpaceError):
        tuner.add(config)

    assert tuner.get_trials() == []
    tuner.close()
