"""Deletes an earlier experiment of the same name, for ``RunOptions(overwrite=True)``."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from mqtune.checkpoints import CheckpointStore
from mqtune.core.entries import driver_events
from mqtune.core.events import TrialStaged
from mqtune.journal.base import Journal
from mqtune.journal.files.reading import readable_entries


def delete_earlier(journal: Journal, folder: Path, store: CheckpointStore | None, stays: Sequence[str] = ()) -> None:
    """Delete an experiment from its server, its folder and its store.

    This process must have its lock.

    Args:
        journal: the experiment's journal.
        folder: the experiment's folder.
        store: the store whose checkpoints are deleted, or None.
        stays: names in the folder that are not deleted, such as a running server's folder.
    """
    written = [event for events in driver_events(readable_entries(journal)).values() for event in events]
    journal.erase(list(dict.fromkeys(event.trial for event in written if isinstance(event, TrialStaged))))
    for path in folder.iterdir():
        if path.name in stays:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if store is not None:
        for checkpoint in store.ids():
            store.delete(checkpoint)
