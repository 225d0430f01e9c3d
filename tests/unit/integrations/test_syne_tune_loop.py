"""Syne Tune's own Tuner over simulated workers: several results in one fetch, each decided on where its trial was."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqtune
from mqtune.backends import SimulatedFleet, SimulatedJournal

pytest.importorskip("syne_tune", reason="its dependencies take some 800 MB; pip install 'mqtune[syne-tune]'")

import dill
from syne_tune import Tuner
from syne_tune.optimizer.scheduler import SchedulerDecision, TrialScheduler, TrialSuggestion

from mqtune.integrations import CeleryBackend

pytestmark = pytest.mark.filterwarnings("ignore:::syne_tune|pandas|numpy")

IS_OLD = "trial_id" in inspect.signature(TrialScheduler.suggest).parameters
EPOCHS = 24
#: Where each trial is paused, and goes on from; others start meanwhile.
PAUSES = (3, 7)
TRIALS = 3
#: Fetches between two saves.
SAVE_EVERY = 3
#: How many reports the simulated workers make before the driver looks.
BURST = 9


def curve(config: dict[str, Any]) -> Any:
    for epoch in range(1, EPOCHS + 1):
        yield 1.0, {"epoch": epoch, "loss": config["x"] / epoch}


def train(config: dict[str, Any]) -> None:
    """Stand for a trainable: the simulated backend doesn't call it."""


class Pauses(TrialScheduler):
    """Starts some trials, pauses each at some epochs, and resumes it behind the others."""

    def __init__(self) -> None:
        super().__init__(**({"config_space": {}} if IS_OLD else {}))
        self.time_attr = "epoch"
        self.started = 0
        self.to_resume: list[int] = []
        self.told: dict[int, list[int]] = {}

    def suggest(self, trial_id: int | None = None) -> TrialSuggestion | None:
        if self.started >= TRIALS and self.to_resume:
            return TrialSuggestion.resume_suggestion(self.to_resume.pop(0))
        self.started += 1
        return TrialSuggestion.start_suggestion({"x": 1.0 / self.started})

    def on_trial_result(self, trial: Any, result: dict[str, Any]) -> str:
        self.told.setdefault(trial.trial_id, []).append(result["epoch"])
        if result["epoch"] not in PAUSES:
            return SchedulerDecision.CONTINUE
        self.to_resume.append(trial.trial_id)
        return SchedulerDecision.PAUSE

    def metric_names(self) -> list[str]:
        return ["loss"]

    def metric_mode(self) -> str:
        return "min"


class KilledError(BaseException):
    """The process is gone."""


class Watched(CeleryBackend):
    """Notes how many results a fetch had, and what a Tuner that is killed then would be loaded from."""

    def watch(self, workers: mqtune.Simulated) -> None:
        self._broker, self.sizes, self.saved, self.is_killed = workers, Counter[int](), b"", False
        self.is_ending = False

    def fetch_status_results(self, trial_ids: list[int]) -> Any:
        if not self.sizes.total() % SAVE_EVERY:
            self.saved = dill.dumps(self.tuner)
        found = super().fetch_status_results(trial_ids)
        self.sizes[len(found[1])] += 1
        return found

    def epochs(self) -> dict[int, list[int]]:
        """Return the epochs that Syne Tune has of each trial."""
        return {number: [each["epoch"] for each in trial.metrics] for number, trial in self._trial_dict.items()}

    def stop_all(self) -> None:
        self.is_ending = True
        if self.is_killed:
            self._close()
        else:
            super().stop_all()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("saved", "_broker")}


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNETUNE_FOLDER", str(tmp_path / "syne-tune"))
    logging.getLogger("syne_tune").setLevel(logging.ERROR)


@pytest.fixture(autouse=True)
def _bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = SimulatedFleet.advance

    def advance_far(self: SimulatedFleet, seconds: float) -> None:
        for _ in range(BURST):
            if self._agenda:
                advance(self, seconds)

    monkeypatch.setattr(SimulatedFleet, "advance", advance_far)


_names = itertools.count(1)


def tuner_of(workers: mqtune.Simulated) -> Tuner:
    backend = Watched(train)
    backend.watch(workers)
    backend.tuner = Tuner(
        backend,
        Pauses(),
        lambda status: status.num_trials_completed >= TRIALS,
        n_workers=2,
        tuner_name=f"burst-{next(_names)}",
        suffix_tuner_name=False,
        save_tuner=False,
        callbacks=[],
    )
    return backend.tuner


def check(tuner: Tuner, name: str) -> None:
    """Check that each trial was paused where that was decided, and that each of its epochs was told once."""
    attempts = [
        [each.reports for each in trial.attempts] for trial in mqtune.Results.load(name).experiment.trials.values()
    ]
    first, second = PAUSES
    assert attempts.count([first, second - first, EPOCHS - second]) >= TRIALS
    assert {each[0] for each in attempts if len(each) > 1} == {first}
    for number, epochs in tuner.trial_backend.epochs().items():
        assert epochs == [*range(1, len(epochs) + 1)]
        assert tuner.scheduler.told.get(number, []) == epochs[: len(tuner.scheduler.told.get(number, []))]


def killing(monkeypatch: pytest.MonkeyPatch, backend: Watched, kill_at: int, *, is_written: bool) -> list[int]:
    """Have the driver die at one of its writes to the journal, before or behind it; return the number of writes."""
    writes = [0]

    def fatal(write: Callable[..., Any]) -> Callable[..., Any]:
        def written(self: SimulatedJournal, *arguments: Any, **options: Any) -> Any:
            writes[0] += not backend.is_ending
            found = write(self, *arguments, **options) if is_written or writes[0] != kill_at else None
            if writes[0] == kill_at and not backend.is_ending:
                backend.is_killed = True
                raise KilledError
            return found

        return written

    for name in ("record", "stage", "intend"):
        monkeypatch.setattr(SimulatedJournal, name, fatal(getattr(SimulatedJournal, name)))
    return writes


def test_at_whatever_write_its_tuner_is_killed_trials_pause_where_that_was_decided_and_each_epoch_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kill_at in itertools.count(1):
        workers = mqtune.Simulated(curve, slots=2, keep_journal=True)
        tuner = tuner_of(workers)
        with monkeypatch.context() as patching:
            writes = killing(patching, tuner.trial_backend, kill_at, is_written=kill_at % 2 == 0)
            with contextlib.suppress(KilledError):
                tuner.run()
        if writes[0] < kill_at:
            # Nobody has killed this one.
            assert max(tuner.trial_backend.sizes) > BURST / 2
            check(tuner, tuner.name)
            return
        loaded = dill.loads(tuner.trial_backend.saved)
        loaded.trial_backend.watch(workers)
        loaded.trial_backend.tuner = loaded
        loaded.run()
        check(loaded, tuner.name)
