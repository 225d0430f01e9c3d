"""The list of an experiment's files that a worker writes for its zygotes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

from mqtune.trainable.experiment_code import fingerprints, read_code
from mqtune.trainable.spec import TrainableSpec
from mqtune.worker.experiments import ExperimentHere

TRAIN = TrainableSpec("train", module="train")
SLOTS, EXPERIMENTS = 8, 50


def test_slots_that_ask_at_once_get_the_same_manifest(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(config):\n    pass\n")
    definition = {"trainable": TRAIN.encode(), "code_files": fingerprints(TRAIN, read_code(TRAIN, tmp_path))}
    ready = Barrier(SLOTS)

    def ask(here: ExperimentHere) -> Path | None:
        ready.wait(10)
        return here.import_key(tmp_path, None, tmp_path / "logs").manifest

    with ThreadPoolExecutor(SLOTS) as slots:
        for number in range(EXPERIMENTS):
            journal: Any = SimpleNamespace(experiment=f"e{number}")
            found = set(slots.map(ask, [ExperimentHere(journal, definition)] * SLOTS))
            assert len(found) == 1
            assert None not in found
