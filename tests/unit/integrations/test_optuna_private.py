"""That this version of Optuna has what mqtune uses and Optuna keeps to itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import optuna
import pytest
from optuna.storages import InMemoryStorage, RDBStorage, get_storage
from partners import check_has

from mqtune.integrations import close_databases

#: Objects of Optuna, made in a folder, and the member of each.
OWNERS: Final[list[tuple[str, Callable[[Path], object]]]] = [
    ("_storage", lambda _: optuna.create_study()),
    ("_thread_local.in_optimize_loop", lambda _: optuna.create_study()),
    ("_stop_flag", lambda _: optuna.create_study()),
    ("_backend.engine", lambda _: get_storage("sqlite://")),
    # Public, and replaced while writes are joined.
    ("scoped_session", lambda _: RDBStorage("sqlite://")),
    ("_search_space", lambda _: optuna.samplers.GridSampler({"x": [1]})),
    ("_fixed_params", lambda _: optuna.samplers.PartialFixedSampler({}, optuna.samplers.RandomSampler())),
    ("_base_sampler", lambda _: optuna.samplers.PartialFixedSampler({}, optuna.samplers.RandomSampler())),
    ("_sample", lambda _: optuna.samplers.TPESampler()),
    ("_build_parzen_estimator", lambda _: optuna.samplers.TPESampler()),
    ("_compute_acquisition_func", lambda _: optuna.samplers.TPESampler()),
    ("_compare", lambda _: optuna.samplers.TPESampler()),
    ("_gamma", lambda _: optuna.samplers.TPESampler()),
    ("_n_ei_candidates", lambda _: optuna.samplers.TPESampler()),
    ("_rng.rng", lambda _: optuna.samplers.TPESampler()),
    ("_split_trials", lambda _: optuna.samplers._tpe.sampler),
    ("_set_trial", lambda _: InMemoryStorage()),
    ("_trial_id", lambda _: optuna.create_study().ask()),
]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(("member", "make"), OWNERS, ids=[member for member, _ in OWNERS])
def test_optuna_has_the_member_that_it_keeps_to_itself(member: str, make: Callable[[Path], object], tmp_path: Path):
    check_has("optuna", make(tmp_path), member, "optuna_private.py")


def test_a_database_in_memory_keeps_its_study_when_databases_are_closed(tmp_path: Path) -> None:
    in_memory, in_file = (
        optuna.create_study(storage=RDBStorage(url)) for url in ("sqlite:///:memory:", f"sqlite:///{tmp_path}/study.db")
    )

    close_databases()

    for study in (in_memory, in_file):
        study.add_trial(optuna.trial.create_trial(value=1.0))
        assert study.best_value == 1.0
