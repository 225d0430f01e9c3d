"""Getting a trial's checkpoint back, on the driver's machine."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from mqtune.checkpoints import Checkpoint, decode_dict, open_store
from mqtune.errors import CheckpointGone, ConfigurationError
from mqtune.experiment import Experiment
from mqtune.trial import CheckpointId, Trial, is_in_memory, is_number

__all__ = ["DICTS", "Which", "fetch_checkpoint", "named"]

Which = Literal["newest", "best"]

#: The folder, below an experiment's, of the best trial's checkpoint if that is a dict: Redis may be gone by then.
DICTS: Final = "dict-checkpoints"


def fetch_checkpoint(
    trial: Trial,
    name: CheckpointId,
    *,
    store: str,
    folder: Path,
    target: Path | None = None,
    read: Callable[[CheckpointId], bytes | None] = lambda _: None,
) -> Checkpoint:
    """Return a trial's checkpoint; one that is a folder is copied to this machine.

    Args:
        trial: whose.
        name: which; empty if it has none.
        store: URL of the experiment's store, or empty.
        folder: the experiment's.
        target: the new folder to copy to; by default one below *folder*, which is made anew by each call.
        read: returns what Redis holds of a checkpoint.

    Raises:
        ConfigurationError: the trial has none.
        CheckpointGone: it has been deleted, or was a dict in a Redis that is gone.
        CheckpointBroken: it is not what was saved.
        StoreUnavailable: the store can't be read from here.
    """
    if not name:
        raise ConfigurationError(
            f"trial {trial.id} has no checkpoint; save one with mqtune.report(metrics, checkpoint=…)"
        )
    if is_in_memory(name):
        file = folder / DICTS / name
        data = file.read_bytes() if file.is_file() else read(name)
        if data is None:
            raise CheckpointGone(
                f"checkpoint {name} was a dict in Redis, kept while its trial might go on, and for the best trial; it is gone"
            )
        values, counters = decode_dict(data)
        return Checkpoint(id=name, data=values, counters=counters)
    place = target if target is not None else folder / "fetched" / name
    if target is None:
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
    counters = open_store(store).fetch(name, place)
    return Checkpoint(id=name, path=place, counters=counters)


def named(experiment: Experiment, trial: Trial, which: Which) -> CheckpointId:
    """Return the id of a trial's newest checkpoint, or of that with the best value of the metric; empty if there is none.

    Of those that are kept: without a value, and of equal ones, the newest.

    Raises:
        ConfigurationError: *which* is neither.
    """
    if which == "newest":
        return trial.checkpoint
    if which != "best":
        raise ConfigurationError(f"which={which!r} is neither 'newest' nor 'best'")
    best, best_value = trial.checkpoint, math.nan
    for saved in reversed(trial.checkpoints.values()):
        value = saved.metrics.get(experiment.metric)
        if is_number(value) and not math.isnan(value) and experiment.is_better(value, best_value):
            best, best_value = saved.id, value
    return best
