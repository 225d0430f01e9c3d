"""Optuna's own studies over workers: objectives as their users write them, unmodified."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import objectives
import optuna
import psutil
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from started import started
from waiting import eventually

import mqtune
from mqtune.core.errors import ConfigurationError, TrialFailed
from mqtune.core.trial import TrialStatus
from mqtune.integrations.optuna_optimize import EXPERIMENT, MARK, optuna_optimize
from mqtune.integrations.optuna_private import storage_of

HERE = Path(__file__).parent
optuna.logging.set_verbosity(optuna.logging.WARNING)
COMPLETE, PRUNED, FAIL = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.FAIL


def experiment_of(study: optuna.Study) -> object:
    storage = storage_of(study)
    return storage.get_study_system_attrs(storage.get_study_id_from_name(study.study_name))[EXPERIMENT]


def states(study: optuna.Study) -> list[Any]:
    return [trial.state for trial in study.get_trials(deepcopy=False)]


def test_the_parameters_are_those_that_optuna_alone_gives(fleet: str) -> None:
    for refused, words in (
        ({"n_jobs": 0}, "n_jobs"),
        ({"process": mqtune.Process(reuse=True)}, "reuse=True needs a class"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            optuna_optimize(optuna.create_study(), objectives.by_run, n_trials=1, backend=fleet, **refused)
    here, there = (
        optuna.create_study(sampler=optuna.samplers.TPESampler(seed=3, n_startup_trials=4)) for _ in range(2)
    )

    optuna_optimize(there, objectives.by_run, n_trials=8, n_jobs=1, backend=fleet)
    here.optimize(objectives.by_run, n_trials=8)

    assert [trial.params for trial in there.trials] == [trial.params for trial in here.trials]
    assert [trial.values for trial in there.trials] == [trial.values for trial in here.trials]
    assert [trial.distributions for trial in there.trials] == [trial.distributions for trial in here.trials]
    assert [trial.user_attrs["seen"] for trial in there.trials] == [trial.user_attrs["seen"] for trial in here.trials]
    pids = {trial.user_attrs["pid"] for trial in there.trials}
    assert len(pids) == 8
    assert os.getpid() not in pids
    assert experiment_of(there) is None


def test_the_studys_pruner_prunes_and_the_experiment_says_so(fleet: str, tmp_path: Path) -> None:
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(f"{tmp_path}/study.log")),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
        sampler=optuna.samplers.RandomSampler(seed=1),
    )

    results = optuna_optimize(study, objectives.curve, n_trials=8, backend=fleet)

    assert set(states(study)) == {COMPLETE, PRUNED}
    for trial in study.get_trials(deepcopy=False):
        steps = sorted(trial.intermediate_values)
        assert steps == [*range(1, len(steps) + 1)]
        assert [trial.intermediate_values[step] - 1 / step for step in steps] == pytest.approx(
            [trial.params["height"]] * len(steps)
        )
        assert trial.state is PRUNED or len(steps) == 9
        assert trial.value == trial.intermediate_values[steps[-1]]
        result = results[trial.system_attrs[MARK].rpartition("/")[2]]
        assert result.status is (TrialStatus.EARLY_STOPPED if trial.state is PRUNED else TrialStatus.COMPLETED)
        assert result.config == trial.params
    assert results.best.metrics["value"] == study.best_value


def test_how_odd_objectives_end(fleet: str) -> None:
    study = optuna.create_study(sampler=optuna.samplers.GridSampler({"what": list(range(7))}))
    seen: list[int] = []

    with pytest.warns(UserWarning, match="could not be cast|not acceptable|did not match"):
        optuna_optimize(
            study,
            objectives.odd,
            catch=KeyError,
            callbacks=[lambda _, trial: seen.append(trial.number)],
            backend=fleet,
        )

    ended = {trial.params["what"]: trial.state for trial in study.trials}
    assert ended == {0: FAIL, 1: FAIL, 2: FAIL, 3: FAIL, 4: COMPLETE, 5: COMPLETE, 6: FAIL}
    assert sorted(seen) == [*range(len(study.trials))]
    study.sampler = optuna.samplers.RandomSampler()
    study.enqueue_trial({"what": 8})
    seen.clear()
    with pytest.raises(LookupError, match="LookupError: not caught") as raised:
        optuna_optimize(
            study,
            objectives.odd,
            n_trials=1,
            callbacks=[lambda _, trial: seen.append(trial.number)],
            backend=fleet,
        )
    assert isinstance(raised.value, TrialFailed)
    assert not seen
    assert study.trials[-1].state is FAIL


def test_a_call_that_was_killed_goes_on_and_counts_right(fleet: str, tmp_path: Path) -> None:
    # Its journal file would stay locked for 30 s.
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(study_name="killed", storage=storage)
    command = [sys.executable, str(HERE / "study_driver.py"), fleet, storage, "6", "600", "0.1"]
    cut_off: dict[int, dict[str, Any]] = {}
    with started(command, {}, tmp_path / "driver.log", cwd=HERE) as drivers:
        for is_time in (lambda: len(study.trials) > 2, lambda: any(map(has_reported, study.trials[3:]))):
            eventually(is_time, deadline_s=60)
            (driver,) = psutil.Process(drivers.pid).children()
            driver.kill()
            driver.wait()
            running = {trial.number: trial.params for trial in study.trials if not trial.state.is_finished()}
            assert running
            cut_off |= running
    name = experiment_of(study)

    results = optuna_optimize(study, objectives.slow, n_trials=6, backend=fleet)

    assert results.name == name
    assert states(study) == [COMPLETE] * 6
    for trial in study.trials:
        assert len(trial.intermediate_values) == 10
        assert trial.value == trial.params["x"] + trial.params["y"]
    for number, params in cut_off.items():
        assert params.items() <= study.trials[number].params.items()
    # They ran meanwhile, and on afterwards.
    assert {len(result.trial.attempts) for result in results} == {1}
    assert experiment_of(study) is None


def has_reported(trial: optuna.trial.FrozenTrial) -> bool:
    return bool(trial.intermediate_values) and not trial.state.is_finished()


def test_a_trial_that_somebody_ends_in_the_study_is_stopped(fleet: str) -> None:
    study = optuna.create_study()

    def end(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        for other in study.get_trials(deepcopy=False):
            if not other.state.is_finished():
                study.tell(other.number, state=FAIL)

    optuna_optimize(study, objectives.stoppable, n_trials=2, callbacks=[end], backend=fleet)

    assert sorted(states(study)) == [COMPLETE, FAIL]
