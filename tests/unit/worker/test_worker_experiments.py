"""The experiments that a worker remembers."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest.mock import Mock

import pytest

from mqtune.checkpoints import open_store
from mqtune.core.codec import encode_value
from mqtune.core.errors import StoreUnavailable
from mqtune.trainable import TrainableSpec, fingerprints, read_code
from mqtune.worker import ExperimentHere, Experiments

THREADS = 8


def a_journal(name: str) -> Any:
    """A journal whose definition differs each time that it is read."""
    journal = Mock(experiment=name)
    journal.definition.side_effect = [encode_value({"read": reads}) for reads in (1, 2)]
    return journal


def test_an_experiment_has_one_journal_and_its_definition_is_read_once_for_a_digest() -> None:
    experiments = Experiments(a_journal)
    one = experiments.of("e", "d1")
    again, other = experiments.of("e", "d1"), experiments.of("e", "d2")

    assert again is one
    assert (one.definition["read"], other.definition["read"]) == (1, 2)
    assert other.journal is one.journal is experiments.journal("e")
    assert other.mark != one.mark


def test_slots_that_ask_at_once_get_the_same_list_of_the_experiments_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(config):\n    pass\n")
    train, ready = TrainableSpec("train", module="train"), Barrier(THREADS)
    definition = {"trainable": train.encode(), "code_files": fingerprints(train, read_code(train, tmp_path))}

    def ask(here: ExperimentHere) -> Path | None:
        ready.wait(10)
        return here.import_key(tmp_path, None, tmp_path / "logs").program.manifest

    with ThreadPoolExecutor(THREADS) as slots:
        for number in range(50):
            (found,) = set(slots.map(ask, [ExperimentHere(a_journal(f"e{number}"), definition)] * THREADS))
            assert found is not None


def test_a_store_is_checked_until_that_succeeds(tmp_path: Path) -> None:
    store = tmp_path / "store"
    here = ExperimentHere(a_journal("e"), {"store": str(store)})
    with pytest.raises(StoreUnavailable):
        here.check_store()
    open_store(str(store)).create()
    here.check_store()
    shutil.rmtree(store)

    here.check_store()
