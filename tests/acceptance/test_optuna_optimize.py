"""Optuna's own studies over workers: objectives as their users write them, unmodified."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import objectives
import optuna
import psutil
import pytest
from cells import run_cells
from optuna.storages import InMemoryStorage, JournalStorage
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


def test_an_objective_of_a_cell_runs_with_what_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    main = run_cells(monkeypatch, "TIMES = 2", "def objective(trial): return TIMES * trial.suggest_float('x', 0, 1)")
    study = optuna.create_study()

    optuna_optimize(study, main.objective, n_trials=2, backend=mqtune.Local(slots=1))

    assert [trial.value for trial in study.trials] == [2 * trial.params["x"] for trial in study.trials]


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


def test_several_objectives_and_the_end_by_study_stop(fleet: str) -> None:
    study = optuna.create_study(directions=["minimize", "minimize"])

    optuna_optimize(study, objectives.two, backend=fleet)

    assert len(study.best_trials) >= 1
    assert {len(trial.values) for trial in study.trials} == {2}
    assert 4 <= len(study.trials) <= 6
    assert set(states(study)) == {COMPLETE}


def test_callbacks_have_the_callers_study_and_what_they_do_to_it_counts(fleet: str) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    later = optuna.samplers.TPESampler(seed=1)
    given: list[optuna.Study] = []

    def act(own: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        given.append(own)
        if trial.number == 0:
            study.enqueue_trial({"x": 0.125})
            own.sampler = later
        elif trial.params["x"] == 0.125:
            study.stop()

    optuna_optimize(study, objectives.marked, 30, None, 1, (), [act], True, False, backend=fleet)

    assert all(own is study for own in given)
    assert len(given) == len(study.trials) == 2
    assert (study.trials[1].state, study.trials[1].params) == (COMPLETE, {"x": 0.125})
    assert study.sampler is later


def test_an_objective_has_a_process_for_each_trial() -> None:
    study = optuna.create_study()

    with pytest.raises(ConfigurationError, match="reuse=True is for a class"):
        optuna_optimize(study, objectives.by_run, n_trials=1, process=mqtune.Process(reuse=True))

    assert study.trials == []


def test_n_jobs_minus_one_is_as_many_as_there_are_slots(fleet: str) -> None:
    study = optuna.create_study()

    for n_jobs in (0, -2):
        with pytest.raises(ConfigurationError, match="n_jobs"):
            optuna_optimize(study, objectives.by_run, n_trials=3, n_jobs=n_jobs, backend=fleet)
    optuna_optimize(study, objectives.by_run, n_trials=3, n_jobs=-1, backend=fleet)

    assert states(study) == [COMPLETE] * 3


def test_a_call_that_was_killed_goes_on_and_counts_right(fleet: str, tmp_path: Path) -> None:
    """Twice: when nothing was written yet of what its trials had said, and in the middle of them."""
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


#: Is killed when the study, and nothing else, has been told how its trial has ended.
KILLED: Final = """
import os, signal, sys
import objectives, optuna
from mqtune.integrations.optuna_optimize import optuna_optimize

name, storage, broker = sys.argv[1:]
kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
study = optuna.load_study(study_name=name, storage=storage)
optuna_optimize(study, objectives.marked, n_trials=1, callbacks=[kill], backend=broker)
"""


@pytest.mark.parametrize(
    ("name", "state", "status"),
    [("complete", COMPLETE, TrialStatus.COMPLETED), ("pruned", PRUNED, TrialStatus.EARLY_STOPPED)],
)
def test_a_trial_whose_end_the_study_was_told_before_a_kill_has_that_end_in_the_experiment_too(
    fleet: str, tmp_path: Path, name: str, state: Any, status: TrialStatus
) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(study_name=name, storage=storage)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, name, storage, fleet], cwd=HERE, capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert states(study) == [state]

    results = optuna_optimize(study, objectives.marked, n_trials=1, backend=fleet)

    assert states(study) == [state]
    # What it has said last is no late report either, so that what it has come to counts.
    assert [(result.status, result.trial.last_metrics["call"]) for result in results] == [(status, "end")]


def has_reported(trial: optuna.trial.FrozenTrial) -> bool:
    return bool(trial.intermediate_values) and not trial.state.is_finished()


def test_what_an_experiment_has_lost_is_no_longer_running(fleet: str) -> None:
    """The Redis that a call was cut off on is gone, with its journal; and no trial begins when the time is over."""
    storage = InMemoryStorage()
    study = optuna.create_study(storage=storage)
    storage.set_study_system_attr(storage.get_study_id_from_name(study.study_name), EXPERIMENT, "lost-with-its-redis")
    for number in range(2):
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING, system_attrs={MARK: f"lost-with-its-redis/000{number + 1}"}
            )
        )

    optuna_optimize(study, objectives.by_run, timeout=0, backend=fleet)

    assert states(study) == [FAIL, FAIL]


def test_a_trial_that_somebody_ends_in_the_study_is_stopped(fleet: str) -> None:
    study = optuna.create_study()

    def end(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        for other in study.get_trials(deepcopy=False):
            if not other.state.is_finished():
                study.tell(other.number, state=FAIL)

    study.enqueue_trial({"x": 0.5}, user_attrs={"mine": 1})
    optuna_optimize(study, objectives.stoppable, n_trials=2, callbacks=[end], backend=fleet)

    assert sorted(states(study)) == [COMPLETE, FAIL]
    assert (study.trials[0].params["x"], study.trials[0].user_attrs["mine"]) == (0.5, 1)


def test_what_can_not_be_run_is_refused_before_anything_begins(fleet: str) -> None:
    study = optuna.create_study()
    for objective, why in ((lambda trial: 0.0, "MQTUNE_CODE_KEY"), (object(), "object"), (len, "len")):
        with pytest.raises(ConfigurationError, match=why):
            optuna_optimize(study, objective, n_trials=1, backend=fleet)
    assert study.user_attrs == {}
