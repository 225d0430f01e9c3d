"""The best report of a trial, and its best checkpoint: of equal values both are the first."""

from __future__ import annotations

from pathlib import Path

from mqtune.checkpoints import open_store
from mqtune.core.experiment import Experiment
from mqtune.core.trial import CheckpointId, SavedCheckpoint, Trial, TrialId
from mqtune.results import checkpoint_of

#: An accuracy that saturates, by epoch.
ACCURACIES = [0.5, 1.0, 1.0, 1.0]


def trained(store: Path) -> Trial:
    """Return a trial that has saved a checkpoint with each epoch."""
    opened, trial = open_store(str(store)), Trial(TrialId("0001"), {})
    opened.create()
    for epoch, accuracy in enumerate(ACCURACIES, 1):
        folder = store.parent / f"epoch-{epoch}"
        folder.mkdir()
        (folder / "epoch").write_text(str(epoch))
        id_ = CheckpointId(f"p-0001-1-{epoch}")
        opened.save(id_, folder, {"training_iteration": epoch})
        trial.checkpoints[id_] = SavedCheckpoint(id_, float(epoch), {"accuracy": accuracy, "epoch": epoch})
        trial.checkpoint = id_
    return trial


def test_of_equal_checkpoints_the_first_is_the_best_as_of_equal_reports(tmp_path: Path) -> None:
    trial, experiment = trained(tmp_path / "store"), Experiment("mine", metric="accuracy", mode="max")

    assert checkpoint_of(experiment, trial, "best") == "p-0001-1-2"
    del trial.checkpoints[CheckpointId("p-0001-1-2")]
    assert checkpoint_of(experiment, trial, "best") == "p-0001-1-3"
