"""A worker knows the files and the store of an experiment."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqtune.checkpoints import open_store
from mqtune.core.errors import StoreUnavailable
from mqtune.trainable import TrainableSpec, fingerprints, read_code
from mqtune.worker import ExperimentHere


def here(experiment: str, definition: dict[str, Any]) -> ExperimentHere:
    return ExperimentHere(SimpleNamespace(experiment=experiment), definition)  # type: ignore[arg-type]


def test_an_experiments_program_has_the_files_of_its_code(tmp_path: Path) -> None:
    train = TrainableSpec("train", module="train")
    (tmp_path / "train.py").write_text("def train(config):\n    pass\n")
    files = fingerprints(train, read_code(train, tmp_path))
    (tmp_path / "train.py").unlink()
    known = here("e", {"trainable": train.encode(), "code_files": files})
    assert known.import_key(tmp_path, None, tmp_path / "logs").program.code == ()

    # The next attempt asks anew.
    (tmp_path / "train.py").touch()
    program = known.import_key(tmp_path, None, tmp_path / "logs").program
    assert program.code == ((str(tmp_path / "train.py"), files["train.py"]),)


def test_a_store_is_checked_until_that_succeeds(tmp_path: Path) -> None:
    store = tmp_path / "store"
    known = here("e", {"store": str(store)})
    with pytest.raises(StoreUnavailable):
        known.check_store()
    open_store(str(store)).create()
    known.check_store()
    shutil.rmtree(store)

    known.check_store()
