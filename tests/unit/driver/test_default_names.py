"""Default names of experiments, as a tuner and processes on one machine take them."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mqtune
from mqtune.checkpoints import Tenant
from mqtune.core.errors import ConfigurationError
from mqtune.driver import take_name


def train(config: dict[str, Any]) -> None:
    mqtune.report({"loss": config["lr"]})


def simulated_tuner(**options: Any) -> mqtune.Tuner:
    space = {"lr": mqtune.uniform(0, 1)}
    return mqtune.Tuner(train, space, metric="loss", mode="min", backend=mqtune.Simulated(train), **options)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/code/digits.py", "digits-1"),
        ("/code/my search.py", "my-search-1"),
        ("/code/_trial.py", "trial-1"),
        ("/code/package/__main__.py", "package-1"),
        (f"/code/{'x' * 80}.py", f"{'x' * 60}-1"),
        ("/code/--.py", "experiment-1"),
        # The command line, and a notebook, have no script of the user.
        ("/bin/mqtune", "train-1"),
        (None, "train-1"),
    ],
)
def test_a_default_name_has_script_and_number(file: str | None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ModuleType("__main__")
    if file is not None:
        program.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", program)

    tuner = simulated_tuner()

    assert tuner.name == tuner.name == name
    tuner.close()


def test_a_script_without_a_program_gives_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    (tmp_path / "learn.py").touch()
    script, space = mqtune.Script([str(tmp_path / "learn.py"), "--lr={lr}"]), {"lr": mqtune.uniform(0, 1)}
    tuner = mqtune.Tuner(script, space, metric="loss", mode="min", backend=mqtune.Simulated(train))

    assert tuner.name == "learn-1"
    tuner.close()


def test_each_run_without_a_name_is_a_new_experiment(mqtune_home: Path) -> None:
    names = [simulated_tuner().run().name for _ in range(2)]

    stem = names[0].removesuffix("-1")
    assert names == [f"{stem}-1", f"{stem}-2"]
    assert all((mqtune_home / name).is_dir() for name in names)


def test_a_tuner_takes_no_name_before_it_needs_one(mqtune_home: Path) -> None:
    simulated_tuner().close()
    with pytest.raises(ConfigurationError, match="mode"):
        mqtune.Tuner(train, {"lr": mqtune.uniform(0, 1)}, metric="loss")

    assert not mqtune_home.exists()


def test_a_tuner_that_begins_nothing_leaves_no_folder(mqtune_home: Path) -> None:
    tuner = simulated_tuner()
    name = tuner.name
    assert (mqtune_home / name).is_dir()

    tuner.close()

    assert not (mqtune_home / name).exists()


def test_the_number_of_a_deleted_experiment_is_not_reused(mqtune_home: Path) -> None:
    assert take_name("digits") == "digits-1"
    shutil.rmtree(mqtune_home / "digits-1")

    assert take_name("digits") == "digits-2"
    assert take_name("other") == "other-1"


def test_a_name_with_a_folder_or_a_store_is_skipped(mqtune_home: Path, tmp_path: Path) -> None:
    (mqtune_home / "digits-1").mkdir(parents=True)
    store = mqtune.checkpoints.open_store(mqtune.checkpoints.experiment_url(tmp_path, "digits-2"))
    store.create()
    store.claim(Tenant("another broker", "digits-2"))

    assert take_name("digits", store=tmp_path) == "digits-3"


def test_drivers_that_begin_at_the_same_time_get_different_names(mqtune_home: Path) -> None:
    with ThreadPoolExecutor(8) as drivers:
        names = list(drivers.map(lambda _: take_name("digits"), range(40)))

    assert sorted(names) == sorted(f"digits-{number}" for number in range(1, 41))


def test_a_home_that_is_no_folder_is_refused(mqtune_home: Path) -> None:
    mqtune_home.write_text("")

    with pytest.raises(ConfigurationError, match="set MQTUNE_HOME"):
        take_name("digits")
