"""A worker knows the files and the store of an experiment."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

from mqtune.checkpoints import open_store
from mqtune.core.errors import StoreUnavailable
from mqtune.trainable import TrainableSpec, fingerprints, read_code
from mqtune.worker import ExperimentHere


def here(experiment: str, definition: dict[str, Any]) -> ExperimentHere:
    return ExperimentHere(SimpleNamespace(experiment=experiment), definition)  # type: ignore[arg-type]


def test_slots_that_ask_at_once_get_the_same_list_of_the_experiments_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(config):\n    pass\n")
    train, ready = TrainableSpec("train", module="train"), Barrier(8)
    definition = {"trainable": train.encode(), "code_files": fingerprints(train, read_code(train, tmp_path))}

    def ask(known: ExperimentHere) -> Path | None:
        ready.wait(10)
        return known.import_key(tmp_path, None, tmp_path / "logs").program.manifest

    with ThreadPoolExecutor(8) as slots:
        for number in range(50):
            (found,) = set(slots.map(ask, [here(f"e{number}", definition)] * 8))
            assert found is not None


def test_a_store_is_checked_until_that_succeeds(tmp_path: Path) -> None:
    store = tmp_path / "store"
    known = here("e", {"store": str(store)})
    with pytest.raises(StoreUnavailable):
        known.check_store()
    open_store(str(store)).create()
    known.check_store()
    shutil.rmtree(store)

    known.check_store()
