"""Which checkpoint is meant; and getting one back to the driver's machine, or bringing one from there."""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from mqtune.checkpoints import Checkpoint, decode_dict, open_store
from mqtune.checkpoints.manifest import MANIFEST
from mqtune.core.errors import CheckpointGone, ConfigurationError
from mqtune.core.experiment import Experiment
from mqtune.core.trial import CheckpointId, Trial, TrialId, checkpoint_id, is_in_memory, is_number, trial_of

__all__ = ["DICTS", "Origin", "Which", "bring_checkpoint", "chosen", "fetch_checkpoint", "named"]

Which = Literal["newest", "best"]
#: What a trial may be told to start from: "newest", "best" or the id of a checkpoint of the experiment, or a folder of this
#: machine.
Origin = str | os.PathLike[str] | Checkpoint

_ID: Final = re.compile(r"[pm]-.+-\d+-\d+")

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


def chosen(experiment: Experiment, source: TrialId | None, origin: Origin) -> CheckpointId | Path | Checkpoint:
    """Return which checkpoint of the experiment is meant, or the folder of this machine.

    Args:
        experiment: whose checkpoints may be named.
        source: the trial whose checkpoint it is to be, if that is known.
        origin: "newest", "best", an id, a folder, or a checkpoint that ``get_checkpoint`` gave.

    Raises:
        ConfigurationError: there is no such checkpoint or folder, or it is another trial's.
    """
    if not isinstance(origin, str | os.PathLike | Checkpoint):
        raise ConfigurationError(
            f"checkpoint={origin!r} is {type(origin).__name__}; give 'newest', 'best', an id, or the path of a folder"
        )
    if origin in ("newest", "best"):
        trial = experiment.best if source is None else experiment.trials[source]
        if trial is None or not (name := named(experiment, trial, "best" if origin == "best" else "newest")):
            whose = "no trial" if trial is None else f"trial {trial.id}"
            raise ConfigurationError(
                f"{whose} has {'a' if trial is None else 'no'} checkpoint to start from; "
                "save one with mqtune.report(metrics, checkpoint=…), or start the config from scratch"
            )
        return name
    if isinstance(origin, str) and _ID.fullmatch(origin) and not os.path.isdir(origin):
        return _known(experiment, source, CheckpointId(origin))
    if source is not None:
        raise ConfigurationError(f"checkpoint={origin!r} is no trial's: leave out source={source!r}")
    if isinstance(origin, Checkpoint):
        if origin.is_dict:
            raise ConfigurationError(
                f"checkpoint={origin!r} is a dict, and only a folder can be brought; write it to a file in one"
            )
        return origin
    if not os.path.isdir(origin):
        raise ConfigurationError(
            f"checkpoint={os.fspath(origin)!r} is no folder on this machine, nor 'newest', 'best' or the id of a checkpoint"
        )
    return Path(origin)


def _known(experiment: Experiment, source: TrialId | None, name: CheckpointId) -> CheckpointId:
    owner = experiment.trials.get(trial_of(name))
    if source is not None and trial_of(name) != source:
        raise ConfigurationError(f"checkpoint {name} is trial {trial_of(name)}'s and not trial {source}'s")
    if owner is None or name not in owner.checkpoints:
        kept = "" if owner is None else f"; trial {owner.id} has {', '.join(owner.checkpoints) or 'none'}"
        raise ConfigurationError(f"there is no checkpoint {name!r}, or it was deleted{kept}")
    return name


def bring_checkpoint(trial: TrialId, origin: Path | Checkpoint, store: str) -> CheckpointId:
    """Copy a folder of this machine into the experiment's store, for a trial to start from, and return its id there.

    A checkpoint that lies in another experiment's store, or was fetched from one, keeps its counters.

    Raises:
        ConfigurationError: the experiment has no store, or the folder holds what can't be saved.
        CheckpointBroken: it is a checkpoint of a store, and not what was saved.
        StoreUnavailable: the store can't be reached or written.
    """
    if not store:
        raise ConfigurationError(
            f"checkpoint={origin!r} is a folder, and the experiment has no store to bring it to its workers; name one with "
            "Tuner(checkpoints='/shared/checkpoints')"
        )
    name = checkpoint_id(trial, 0, secrets.randbits(32), in_memory=False)
    if isinstance(origin, Checkpoint):
        open_store(store).save(name, origin.path, origin.counters)
    elif _ID.fullmatch(origin.name) and (origin / MANIFEST).is_file():
        with tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
            copy = Path(folder, "checkpoint")
            counters = open_store(str(origin.absolute().parent)).fetch(CheckpointId(origin.name), copy)
            open_store(store).save(name, copy, counters)
    else:
        open_store(store).save(name, origin, {})
    return name
