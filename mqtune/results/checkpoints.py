"""Checkpoints for users: choose one, fetch it to this machine, or import one from here."""

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
from mqtune.core.machine import DICTS
from mqtune.core.trial import (
    CheckpointId,
    SavedCheckpoint,
    Trial,
    TrialId,
    checkpoint_id,
    is_in_memory,
    is_number,
    trial_of,
)

Which = Literal["newest", "best"]
#: "newest", "best", the id of a checkpoint of the experiment, or a local folder.
Origin = str | os.PathLike[str] | Checkpoint

_ID: Final = re.compile(r"[pm]-.+-\d+-\d+(\.\w+)?")


def fetch_checkpoint(
    trial: Trial,
    name: CheckpointId,
    *,
    store: str,
    folder: Path,
    target: str | Path | None = None,
    read: Callable[[CheckpointId], bytes | None] = lambda _: None,
) -> Checkpoint:
    """Return a trial's checkpoint. If it is a folder, copy it to this machine.

    Args:
        name: the checkpoint's id, or empty if the trial has none.
        store: URL of the experiment's store, or empty.
        folder: the experiment's folder.
        target: the new folder for the copy. The default is a folder in *folder*, which each call replaces.
        read: returns the data of a checkpoint in Redis, or None if it is gone.

    Raises:
        ConfigurationError: the trial has no checkpoint.
        CheckpointGone: the checkpoint was deleted, or was in a Redis that is gone.
        CheckpointBroken: its content has changed.
        StoreUnavailable: the store can't be read from this machine.
    """
    if not name:
        raise ConfigurationError(
            f"trial {trial.id} has no checkpoint; save one with mqtune.report(metrics, checkpoint=…)"
        )
    saved = trial.checkpoints.get(name)
    metrics = {} if saved is None else saved.metrics
    if is_in_memory(name):
        file = folder / DICTS / name
        data = file.read_bytes() if file.is_file() else read(name)
        if data is None:
            raise CheckpointGone(
                f"checkpoint {name} is gone: it was a dict in Redis, which stores dicts only for trials that may "
                "continue and for the best trial"
            )
        values, counters = decode_dict(data)
        return Checkpoint(id=name, data=values, counters=counters, metrics=metrics)
    place = Path(target) if target is not None else folder / "fetched" / name
    if target is None:
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
    counters = open_store(store).fetch(name, place)
    return Checkpoint(id=name, path=place, counters=counters, metrics=metrics)


def checkpoint_of(experiment: Experiment, trial: Trial, which: Which) -> CheckpointId:
    """Return the id of a trial's newest or best checkpoint, or an empty id without checkpoints.

    Deleted checkpoints don't count. The best one has the best value of the metric; of equal ones it is the first.
    Checkpoints that violate an outcome constraint are chosen only if there are no others. If no checkpoint has a value,
    the newest is returned.

    Raises:
        ConfigurationError: *which* is neither "newest" nor "best", or the experiment has several metrics.
    """
    if which == "newest":
        return trial.checkpoint
    if which != "best":
        raise ConfigurationError(f"which={which!r} is neither 'newest' nor 'best'")
    if not experiment.objective.is_single:
        raise ConfigurationError(
            f"which='best': the experiment optimises {experiment.objective}, and no checkpoint is the best by all; "
            "give 'newest'"
        )
    scored = [saved for saved in trial.checkpoints.values() if _has_value(saved, experiment.metric)]
    feasible = [saved for saved in scored if experiment.objective.is_feasible(saved.metrics)]
    best, best_value = trial.checkpoint, math.nan
    for saved in feasible or scored:
        value = saved.metrics[experiment.metric]
        if experiment.is_better(value, best_value):
            best, best_value = saved.id, value
    return best


def _has_value(saved: SavedCheckpoint, metric: str) -> bool:
    value = saved.metrics.get(metric)
    return is_number(value) and not math.isnan(value)


def choose_checkpoint(
    experiment: Experiment, source: TrialId | None, origin: object
) -> CheckpointId | Path | Checkpoint:
    """Return the requested checkpoint: an id of the experiment, a local folder, or a checkpoint.

    Args:
        source: the trial to which the checkpoint must belong, or None for any.
        origin: "newest", "best", a checkpoint's id, the path of a folder, or a checkpoint from ``get_checkpoint``.

    Raises:
        ConfigurationError: *origin* is invalid or missing, or belongs to another trial.
    """
    if not isinstance(origin, str | os.PathLike | Checkpoint):
        raise ConfigurationError(
            f"checkpoint={origin!r} is {type(origin).__name__}; give 'newest', 'best', an id, or the path of a folder"
        )
    if source is None and origin in ("newest", "best") and not experiment.objective.is_single:
        raise ConfigurationError(
            f"checkpoint={origin!r}: the experiment optimises {experiment.objective}, and no trial is the best by all; "
            "give the trial as source="
        )
    if origin in ("newest", "best"):
        trial = experiment.best if source is None else experiment.trials[source]
        if trial is None or not (name := checkpoint_of(experiment, trial, "best" if origin == "best" else "newest")):
            whose = "no trial" if trial is None else f"trial {trial.id}"
            raise ConfigurationError(
                f"{whose} has {'a' if trial is None else 'no'} checkpoint to start from; "
                "save one with mqtune.report(metrics, checkpoint=…), or start the config from scratch"
            )
        return name
    if isinstance(origin, str) and _ID.fullmatch(origin) and not os.path.isdir(origin):
        return _checked_id(experiment, source, CheckpointId(origin))
    if source is not None:
        raise ConfigurationError(f"checkpoint={origin!r} belongs to no trial: leave out source={source!r}")
    if isinstance(origin, Checkpoint):
        if origin.is_dict:
            raise ConfigurationError(
                f"checkpoint={origin!r} is a dict, and only a folder can be imported; write the dict to a file in a "
                "folder"
            )
        return origin
    if not os.path.isdir(origin):
        raise ConfigurationError(
            f"checkpoint={os.fspath(origin)!r} is neither a folder on this machine, nor 'newest', 'best' or the id of "
            "a checkpoint"
        )
    return Path(origin)


def _checked_id(experiment: Experiment, source: TrialId | None, name: CheckpointId) -> CheckpointId:
    owner = experiment.trials.get(trial_of(name))
    if source is not None and trial_of(name) != source:
        raise ConfigurationError(f"checkpoint {name} belongs to trial {trial_of(name)}, not to trial {source}")
    if owner is None or name not in owner.checkpoints:
        others = "" if owner is None else f"; trial {owner.id} has {', '.join(owner.checkpoints) or 'none'}"
        raise ConfigurationError(f"checkpoint {name!r} does not exist, or was deleted{others}")
    return name


def import_checkpoint(trial: TrialId, origin: Path | Checkpoint, store: str) -> CheckpointId:
    """Copy a local folder into the experiment's store as a trial's checkpoint. Return its id.

    A checkpoint from another experiment's store keeps its counters.

    Raises:
        ConfigurationError: the experiment has no store, or the folder has content that can't be saved.
        CheckpointBroken: the folder is another store's checkpoint whose content has changed.
        StoreUnavailable: the store can't be reached or written.
    """
    if not store:
        raise ConfigurationError(
            f"checkpoint={origin!r} is a folder, and the experiment has no store through which its workers could read "
            "it; give the tuner one: Checkpoints('/shared/checkpoints')"
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
