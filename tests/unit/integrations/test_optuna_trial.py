"""An objective's calls and its study: both ends, without the journal between them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import distribution_to_json

from mqtune.core.trial import Metrics, TrialId
from mqtune.integrations import ASKED, CALL, MARK, TOOK, StudyTrials, as_trainable, storage_of
from mqtune.trainable import reporting

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Wire:
    """Runs objectives against a study, and notes what they asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.study = optuna.create_study(**options)
        self.trials = StudyTrials(self.study, "experiment")
        self.asked: list[str] = []
        #: Whether the process dies with unsent calls.
        self.loses = False
        self._number = 0
        for call in ("ask", "report"):
            monkeypatch.setattr(reporting, call, self._send)

    def run(self, objective: Callable[..., Any], *, again: bool = False) -> list[str]:
        """Run a trial, or the last one again, and return what it has asked."""
        self._number += not again
        self.asked = []
        as_trainable(objective)({})
        return self.asked

    def _send(self, metrics: Metrics) -> object:
        """Carry the trial's call to the study, and return the answer."""
        call, trial = metrics[CALL], TrialId(f"{self._number:04d}")
        if self.loses and call not in ASKED:
            return None
        if took := metrics.get(TOOK):
            self.trials.take_parameters(trial, took)
        if call in ASKED:
            self.asked.append(call)
            return {"is": self.trials.answer(trial, call, metrics)}
        if call == "end":
            if metrics["state"]:
                return None
            self.trials.end(trial, metrics["values"], None, "")
        else:
            self.trials.take(trial, call, metrics)
        self.trials.storage.flush()
        return None


def fixed(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", 0, 1)
    return x + trial.suggest_int("n", 0, 5) + len(trial.suggest_categorical("c", ["a", "bb"]))


def by_turns(trial: optuna.Trial) -> float:
    total = trial.suggest_float("x", 0, 1)
    total += trial.suggest_float("even" if trial.number % 2 == 0 else "odd", 0, 1)
    return total + trial.suggest_int("n", 0, 5)


@pytest.mark.parametrize("sampler", [optuna.samplers.RandomSampler(1), optuna.samplers.TPESampler(seed=1)])
def test_known_questions_wait_for_nobody(monkeypatch: pytest.MonkeyPatch, sampler: optuna.samplers.BaseSampler) -> None:
    wire = Wire(monkeypatch, sampler=sampler)

    asked = [wire.run(fixed) for _ in range(15)]

    assert asked == [["begin", *["suggest"] * 3], *[["begin"]] * 14]
    for trial in wire.study.trials:
        assert trial.value == trial.params["x"] + trial.params["n"] + len(trial.params["c"])
        assert [*trial.params] == ["x", "n", "c"]
    assert len({trial.params["x"] for trial in wire.study.trials}) == 15


def test_what_a_trial_does_not_ask_for_is_not_its(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch, sampler=optuna.samplers.RandomSampler(1))

    asked = [wire.run(by_turns) for _ in range(4)]

    assert asked[1:] == [["begin", "suggest", "suggest"]] * 3
    for trial in wire.study.trials:
        assert [*trial.params] == ["x", "odd" if trial.number % 2 else "even", "n"]
        assert trial.value == sum(trial.params.values())


def test_a_range_that_moves_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)

    def moving(trial: optuna.Trial) -> float:
        return trial.suggest_float("x", trial.number, trial.number + 1)

    assert [wire.run(moving) for _ in range(3)] == [["begin", "suggest"]] * 3
    assert [int(trial.value) for trial in wire.study.trials if trial.value is not None] == [0, 1, 2]


def test_a_question_that_is_answered_again_after_a_kill_has_the_same_answer(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(study_name="killed", storage=storage)
    trial, distribution = TrialId("0001"), distribution_to_json(optuna.distributions.FloatDistribution(0, 1))
    asked = {"name": "x", "distribution": distribution}
    killed = StudyTrials(study, "experiment")
    killed.begin(trial)

    first = killed.answer(trial, "suggest", asked)
    heir = StudyTrials(optuna.load_study(study_name="killed", storage=storage), "experiment")
    again = heir.answer(trial, "suggest", asked)

    assert again == first
    assert isinstance(first, float)
    heir.take_parameters(trial, [("x", distribution, first)])
    heir.end(trial, [first], None, "")
    heir.storage.flush()
    assert study.best_params == {"x": first}


def test_an_attempt_gets_the_parameters_of_the_one_before_also_those_it_had_not_said(monkeypatch: pytest.MonkeyPatch):
    wire = Wire(monkeypatch)
    wire.run(fixed)
    seen: list[dict[str, Any]] = []

    def dying(trial: optuna.Trial) -> float:
        fixed(trial)
        seen.append(trial.params)
        trial.report(1.0, len(seen))
        if len(seen) < 3:
            raise MemoryError
        return 1.0

    wire.loses = True
    with pytest.raises(MemoryError):
        wire.run(dying)
    wire.loses = False
    with pytest.raises(MemoryError):
        wire.run(dying, again=True)
    assert wire.run(dying, again=True) == ["begin"]
    assert seen[0] == seen[1] == seen[2] == wire.study.trials[1].params
    assert wire.study.trials[1].intermediate_values == {2: 1.0, 3: 1.0}


def test_an_attribute_that_no_database_takes_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wire = Wire(monkeypatch, storage=f"sqlite:///{tmp_path}/study.db")

    def setting(trial: optuna.Trial) -> float:
        for set_attr in (trial.set_user_attr, trial.set_system_attr):
            with pytest.raises(TypeError, match="bytes is not JSON serializable"):
                set_attr("raw", {"deep": [b"\xff"]})
            with pytest.raises(TypeError):
                set_attr("object", object())
            # NumPy's numbers are numbers, also where Optuna takes floats alone.
            set_attr("accuracy", {"top": (np.float32(0.5), np.int64(3))})
        return trial.suggest_float("x", 0, 1)

    wire.run(setting)

    (trial,) = wire.study.trials
    assert trial.user_attrs["accuracy"] == trial.system_attrs["accuracy"] == {"top": [0.5, 3]}
    assert trial.user_attrs.keys() | trial.system_attrs.keys() == {"accuracy", MARK}


@pytest.mark.filterwarnings("ignore:`optuna.terminator` module has been deprecated:FutureWarning")
def test_an_objective_uploads_artifacts_and_sets_scores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Here, as it imports SciPy and scikit-learn.
    from optuna.terminator import report_cross_validation_scores

    wire = Wire(monkeypatch)
    (tmp_path / "store").mkdir()
    store = optuna.artifacts.FileSystemArtifactStore(tmp_path / "store")
    (tmp_path / "model.txt").write_text("weights")

    def saving(trial: optuna.Trial) -> float:
        file = str(tmp_path / "model.txt")
        optuna.artifacts.upload_artifact(artifact_store=store, file_path=file, study_or_trial=trial)
        (seen,) = optuna.artifacts.get_all_artifact_meta(trial)
        report_cross_validation_scores(trial, [0.5, 0.75])
        with pytest.raises(KeyError, match="its own trial"):
            trial.storage.set_trial_user_attr(1_000_000, "other", 1)
        with pytest.raises(AttributeError, match="get_all_trials"):
            trial.storage.get_all_trials(0)
        trial.set_user_attr("file", seen.filename)
        return 0.0

    wire.run(saving)

    (trial,) = wire.study.trials
    (stored,) = optuna.artifacts.get_all_artifact_meta(trial, storage=storage_of(wire.study))
    assert (stored.filename, trial.user_attrs["file"]) == ("model.txt", "model.txt")
    assert (tmp_path / "store" / stored.artifact_id).read_text() == "weights"
    assert [0.5, 0.75] in trial.system_attrs.values()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tuples_stay_choices_where_the_storage_has_tuples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shapes = [(3, 4), [5, (6,)], ({"deep": (7, None)},), "none"]
    seen: list[object] = []

    def choosing(trial: optuna.Trial) -> float:
        seen.append(trial.suggest_categorical("shape", shapes))
        return 0.0

    for storage in (None, f"sqlite:///{tmp_path}/study.db"):
        wire = Wire(monkeypatch, sampler=optuna.samplers.RandomSampler(1), storage=storage)
        seen.clear()
        asked = [wire.run(choosing) for _ in range(20)]

        assert {*map(repr, seen)} == {*map(repr, shapes)}
        assert asked[1:] == [["begin"]] * 19
        params = [trial.params["shape"] for trial in wire.study.trials]
        assert params == (seen if storage is None else [json.loads(json.dumps(each)) for each in seen])


class FailsOnce(optuna.samplers.RandomSampler):
    """A sampler that raises an error for the first trial that begins."""

    has_failed = False

    def before_trial(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError


def test_a_trial_for_which_the_sampler_raises_an_error_has_begun_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch, sampler=FailsOnce())
    with pytest.raises(ZeroDivisionError):
        wire.run(fixed)

    wire.trials.end(TrialId("0001"), None, optuna.trial.TrialState.FAIL, "")
    wire.run(fixed)

    assert [trial.state.name for trial in wire.study.trials] == ["FAIL", "COMPLETE"]
