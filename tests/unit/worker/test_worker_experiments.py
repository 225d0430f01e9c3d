"""The experiments that a worker remembers."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from unittest.mock import Mock

import pytest

from mqtune.checkpoints import open_store
from mqtune.core.errors import StoreUnavailable
from mqtune.trainable import TrainableSpec, fingerprints, read_code
from mqtune.worker import ExperimentHere

THREADS = 8


def test_slots_that_ask_at_once_get_the_same_list_of_the_experiments_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(config):\n    pass\n")
    train, ready = TrainableSpec("train", module="train"), Barrier(THREADS)
    definition = {"trainable": train.encode(), "code_files": fingerprints(train, read_code(train, tmp_path))}

    def ask(here: ExperimentHere) -> Path | None:
        ready.wait(10)
        return here.import_key(tmp_path, None, tmp_path / "logs").program.manifest

    with ThreadPoolExecutor(THREADS) as slots:
        for number in range(50):
            (found,) = set(slots.map(ask, [ExperimentHere(Mock(experiment=f"e{number}"), definition)] * THREADS))
            assert found is not None


def test_a_store_is_checked_until_that_succeeds(tmp_path: Path) -> None:
    store = tmp_path / "store"
    here = ExperimentHere(Mock(experiment="e"), {"store": str(store)})
    with pytest.raises(StoreUnavailable):
        here.check_store()
    open_store(str(store)).create()
    here.check_store()
    shutil.rmtree(store)

    here.check_store()
