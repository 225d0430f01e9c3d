"""The contract of callbacks; subclass ``CallbackContract`` and give it yours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from pathlib import Path

import pytest

from mqtune.core.callback import Callback
from mqtune.core.experiment import Experiment
from mqtune.core.trial import CONTINUE, Attempt, CheckpointId, Decision, Report, Trial, TrialId
from mqtune.schedulers.asha import PromotionASHA
from mqtune.testing.worlds import WORLDS, happened, new_name

__all__ = ["CallbackContract", "NewCallback"]

#: Returns a new callback, which may write into the folder.
NewCallback = Callable[[Path], Callback]

_Fact = tuple[str | int, ...]


class CallbackContract:
    """The tests that a callback must pass, in virtual time; they also show what it can rely on.

    A subclass whose name pytest collects overrides one fixture::

        class TestMine(CallbackContract):
            @pytest.fixture
            def new_callback(self) -> NewCallback:
                return lambda folder: Mine(folder / "mine.txt")
    """

    @pytest.fixture
    def new_callback(self) -> NewCallback:
        """Return the function that makes callbacks; a subclass must override it."""
        raise NotImplementedError("override the fixture new_callback: it returns a function that makes a callback")

    @pytest.fixture(autouse=True)
    def _home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "home"))

    @pytest.mark.parametrize("world", WORLDS)
    def test_no_event_makes_it_fail_or_change_a_trial(
        self, new_callback: NewCallback, world: str, tmp_path: Path
    ) -> None:
        heard = _Heard(new_callback(tmp_path))
        _run(world, heard)

        assert heard.problems == []
        assert heard.facts[("start",)] == heard.facts[("end",)] == 1

    @pytest.mark.parametrize("world", ["failures", "slow"])
    def test_each_event_is_heard_once_also_after_a_resume(
        self, new_callback: NewCallback, world: str, tmp_path: Path
    ) -> None:
        whole = _Heard(new_callback(tmp_path))
        _run(world, whole)

        first, second = _Heard(new_callback(tmp_path)), _Heard(new_callback(tmp_path))
        _run(world, first, second)

        both = first.facts + second.facts
        assert first.problems + second.problems == []
        assert both.pop(("start",)) == both.pop(("end",)) == 2
        assert both == {fact: 1 for fact in whole.facts if fact not in (("start",), ("end",))}

    def test_an_experiment_goes_as_it_would_without_it(self, new_callback: NewCallback, tmp_path: Path) -> None:
        assert _run("failures", new_callback(tmp_path)) == _run("failures", _Heard(Callback()))

    def test_an_experiment_may_end_before_its_first_trial(self, new_callback: NewCallback, tmp_path: Path) -> None:
        callback = new_callback(tmp_path)

        callback.on_start(Experiment("empty", metric="loss", mode="min"))
        callback.on_step("no worker is connected")
        callback.on_end()

    def test_the_wait_between_its_steps_is_a_time(self, new_callback: NewCallback, tmp_path: Path) -> None:
        interval_s = new_callback(tmp_path).interval_s

        assert interval_s is None or interval_s > 0


def _run(world: str, *callbacks: Callback) -> list[str]:
    """Run an experiment with a driver for each callback, each but the last for some steps; return what happened."""
    name, backend = new_name(), WORLDS[world].backend()
    results = None
    for number, callback in enumerate(callbacks, 1):
        scheduler = PromotionASHA(9, grace_period=3)
        with closing(WORLDS[world].tuner(backend, name, scheduler=scheduler, callbacks=[callback])) as tuner:
            steps = 20
            while number < len(callbacks) and steps and not tuner.is_finished:
                tuner.step(1.0)
                steps -= 1
            results = tuner.run() if number == len(callbacks) else None
    assert results is not None
    return happened(results)


class _Heard(Callback):
    """Passes everything on to a callback, counts what there is to hear, and notes errors and changed trials."""

    def __init__(self, inner: Callback) -> None:
        self.in_loop = inner.in_loop
        self.interval_s = inner.interval_s
        self.facts: Counter[_Fact] = Counter()
        self.problems: list[str] = []
        self._inner = inner

    def on_start(self, experiment: Experiment) -> None:
        self._pass("start", lambda: self._inner.on_start(experiment))

    def on_step(self, waiting_for: str) -> None:
        # As often as the driver looks: nothing that could be counted.
        self._pass("", lambda: self._inner.on_step(waiting_for))

    def on_stage(self, trial: Trial) -> None:
        self._pass("stage", lambda: self._inner.on_stage(trial), trial)

    def on_trial_start(self, trial: Trial) -> None:
        self._pass("trial start", lambda: self._inner.on_trial_start(trial), trial)

    def on_report(self, trial: Trial, report: Report) -> None:
        self._pass("report", lambda: self._inner.on_report(trial, report), trial, report.attempt, report.sequence)

    def on_decision(self, trial: Trial, decision: Decision) -> None:
        assert decision != CONTINUE, "on_decision tells what ends an attempt"
        self._pass("decision", lambda: self._inner.on_decision(trial, decision), trial, decision.action.value)

    def on_checkpoint(self, trial: Trial, checkpoint: CheckpointId) -> None:
        self._pass("checkpoint", lambda: self._inner.on_checkpoint(trial, checkpoint), trial, checkpoint)

    def on_attempt_end(self, trial: Trial, attempt: Attempt) -> None:
        self._pass("attempt end", lambda: self._inner.on_attempt_end(trial, attempt), trial, attempt.number)

    def on_trial_pause(self, trial: Trial) -> None:
        self._pass("pause", lambda: self._inner.on_trial_pause(trial), trial)

    def on_trial_resume(self, trial: Trial) -> None:
        self._pass("resume", lambda: self._inner.on_trial_resume(trial), trial)

    def on_trial_end(self, trial: Trial) -> None:
        self._pass("trial end", lambda: self._inner.on_trial_end(trial), trial)

    def on_restore(self, entries: int, missing: int) -> None:
        self._pass("restore", lambda: self._inner.on_restore(entries, missing))

    def on_end(self) -> None:
        self._pass("end", self._inner.on_end)

    def _pass(self, event: str, call: Callable[[], None], trial: Trial | None = None, *more: str | int) -> None:
        about: tuple[TrialId | int, ...] = () if trial is None else (trial.id, len(trial.attempts))
        if event:
            self.facts[(event, *about, *more)] += 1
        before = deepcopy(trial)
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.problems.append(f"on {event or 'step'}: {type(error).__name__}: {error}")
        # As text, in which NaN equals itself.
        if repr(trial) != repr(before):
            self.problems.append(f"on {event}: it changed trial {about[0]}")
