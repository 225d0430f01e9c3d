"""A tuner that a thread drives: it goes on by itself, and does what other threads ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from waiting import eventually

import mqtune
from mqtune import BackgroundTuner
from mqtune.core.errors import ConfigurationError, InvalidTransition
from mqtune.core.trial import TrialStatus


def curve(config: dict[str, Any]) -> Any:
    for step in range(1, config.get("steps", 3) + 1):
        yield 1.0, {"loss": 1.0 / step}


Open = Callable[[], BackgroundTuner]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open the same experiment, again and again."""
    backend = mqtune.Simulated(curve, slots=2, keep_journal=True)
    found = []

    def opened() -> BackgroundTuner:
        run = mqtune.RunOptions(progress=False)
        found.append(BackgroundTuner(lambda: mqtune.Tuner(curve, backend=backend, name="served", run=run)))
        return found[-1]

    yield opened
    for each in found:
        each.close()


def test_its_trials_run_while_nobody_calls_and_their_reports_can_be_had(opened: Open) -> None:
    tuner = opened()
    asked = tuner.do(lambda tuner: [tuner.add({"steps": steps}, key=f"{steps} steps") for steps in (2, 4)])

    found = tuner.find("4 steps")
    assert found is asked[1]
    eventually(lambda: found.status is TrialStatus.COMPLETED)
    assert len(tuner.reports(found)) == 4
    eventually(lambda: asked[0].status is TrialStatus.COMPLETED)
    assert [report.metrics["loss"] for report in tuner.reports(asked[0])] == [1.0, 0.5]
    assert tuner.find("another") is None
    # An error of what was asked is the asker's, and the thread goes on.
    with pytest.raises(InvalidTransition):
        tuner.do(lambda tuner: tuner.trial(found).stop())
    assert tuner.do(lambda tuner: len(tuner.get_trials())) == 2


def test_the_next_one_has_the_reports_of_the_one_before_also_when_that_was_finished(opened: Open) -> None:
    first = opened()
    trial = first.do(lambda tuner: tuner.add({}, key="mine"))
    eventually(lambda: trial.status is TrialStatus.COMPLETED)
    first.do(lambda tuner: tuner.finish())
    another = first.do(lambda tuner: tuner.add({}))
    eventually(lambda: another.status is TrialStatus.COMPLETED)
    first.close()
    with pytest.raises(ConfigurationError, match="closed; make another one"):
        first.do(lambda tuner: tuner.name)

    second = opened()

    found = second.find("mine")
    assert found is not None
    assert [report.sequence for report in second.reports(found)] == [1, 2, 3]


def test_what_can_not_be_opened_raises_why() -> None:
    with pytest.raises(ConfigurationError, match="name='no name'"):
        BackgroundTuner(lambda: mqtune.Tuner(curve, backend=mqtune.Simulated(curve), name="no name"))


def test_an_error_of_the_tuner_ends_the_thread_and_is_everybodys(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ConfigurationError("the disk is gone")

    tuner = opened()
    monkeypatch.setattr(mqtune.Tuner, "step", fail)
    eventually(lambda: tuner.problem)

    for _ in range(2):
        with pytest.raises(ConfigurationError, match="the disk is gone") as raised:
            tuner.do(lambda tuner: tuner.name)
        assert raised.value is tuner.problem
