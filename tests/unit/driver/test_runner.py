from __future__ import annotations

import contextlib
import errno
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import mqtune
from mqtune import Results
from mqtune.core.errors import ExperimentFinished, UserCodeFailed
from mqtune.core.trial import Decision, Report, Trial, TrialStatus


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
        "backend": backend,
    }
    return mqtune.Tuner(curve, {"x": mqtune.uniform(0, 1)}, **{**settings, **options})


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


def drive(tuner: mqtune.Tuner) -> None:
    while not tuner.is_finished:
        tuner.step()
    tuner.step()


class Breaks(mqtune.FIFO):
    def on_report(self, trial: Trial, report: Report) -> Decision:
        raise ValueError("broken")


def test_an_experiment_that_fails_in_a_loop_of_ones_own_is_ended_as_failed(mqtune_home: Path) -> None:
    with contextlib.closing(tuned(scheduler=Breaks())) as tuner:
        with pytest.raises(UserCodeFailed):
            drive(tuner)
        assert tuner.results().outcome != "failed"

        with pytest.raises(UserCodeFailed):
            tuner.finish("the loop is over")

        assert tuner.results().outcome == "failed"


def test_a_run_that_is_over_can_still_be_looked_at(mqtune_home: Path) -> None:
    tuner = tuned()
    tuner.run()

    assert [report.sequence for report in tuner.new_reports() if report.trial == "0001"] == [1, 2, 3]
    assert tuner.next_failed_trial() is None
    assert tuner.is_finished
    assert "3 COMPLETED" in tuner.debug_string()
    assert "best loss=" in tuner.debug_string()
    assert {path.name for path in tuner.folder.iterdir()} >= {"journal.msgpack", "trials.csv", "results.json"}


def test_a_finished_experiment_is_not_stepped_and_goes_on_with_a_trial_that_is_added(mqtune_home: Path) -> None:
    tuner = tuned()
    while not tuner.is_finished:
        tuner.step()
    with pytest.raises(ExperimentFinished, match="nothing left to step"):
        tuner.step()

    added = tuner.add({"x": 0.5})
    while not tuner.is_finished:
        tuner.step()

    assert added.status is TrialStatus.COMPLETED
    tuner.close()


def interrupted(config: dict[str, Any]) -> Iterator[tuple[float, dict[str, float]]]:
    """Return the reports of a trial during which a person presses Ctrl-C."""
    signal.raise_signal(signal.SIGINT)
    yield 1.0, {"loss": 1.0}


def test_who_interrupts_a_run_that_overwrites_is_told_that_the_script_would_begin_anew(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = mqtune.RunOptions(progress=False, overwrite=True)

    with pytest.raises(SystemExit):
        tuned(backend=mqtune.Simulated(interrupted), run=run).run()

    said = "".join(capsys.readouterr())
    assert "mqtune drive x goes on with it" in said
    assert "the same script would delete it" in said


class Unreachable:
    """A backend for which a person does not wait."""

    def open(self, experiment: str, resources: object) -> NoReturn:
        signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt


def test_who_interrupts_before_the_experiment_is_opened_is_not_told_of_a_folder(
    mqtune_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        tuned(backend=Unreachable()).run()

    said = "Interrupted before experiment x was opened: nothing of it has changed; run the same script again."
    assert said in capsys.readouterr().err
