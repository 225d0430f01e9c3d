"""Saves the checkpoints of a trial, and fetches its initial one."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqtune.core.errors import CheckpointGone, ConfigurationError, MqtuneError, StoreMissing, StoreUnavailable
from mqtune.core.trial import CheckpointId, checkpoint_id, is_in_memory
from mqtune.trainable.process.protocol import StartMessage

if TYPE_CHECKING:
    # Most trials save nothing, and their processes should not wait for the import.
    from mqtune.checkpoints import Checkpoint, CheckpointStore
    from mqtune.checkpoints.checkpoint import State

    #: The kinds of checkpoint to save: a dict, the path of a folder, or a fetched checkpoint.
    Savable = State | str | os.PathLike[str] | Checkpoint

#: Subfolder of the attempt's folder, for a local copy of its initial checkpoint.
_FETCHED: Final = "checkpoint"


class Saver:
    """Saves an attempt's checkpoints and fetches its initial one. Thread-safe."""

    def __init__(self, message: StartMessage) -> None:
        self._url = message["store"]
        #: The further seats of a gang save nothing.
        self._is_first = message["seat"] == 0
        self._start, self._data = CheckpointId(message["checkpoint"]), message["checkpoint_data"]
        self._message = message
        self._numbers = itertools.count(1)
        self._numbers_of_drafts = itertools.count(1)
        self._drafts: set[Path] = set()
        self._fetching = threading.Lock()
        self._fetched: Checkpoint | None = None
        self._store: CheckpointStore | None = None

    @property
    def _folder(self) -> Path:
        # Only when it is needed: in a trial without files, making the path would take longer than a report.
        return Path(self._message["folder"])

    def ensure_folder(self) -> Path:
        """Return the attempt's folder, and make it if it is missing."""
        return make_folder(self._folder)

    def draft(self) -> Path:
        """Return a new empty folder for a checkpoint, in the store itself if that saves a copy."""
        from mqtune.checkpoints import CheckpointStore  # noqa: PLC0415

        store = self._opened_store() if self._url and self._is_first else None
        # The temporary folder of a store without staging of its own would stay if the trial is killed.
        if store is None or type(store).staging is CheckpointStore.staging:
            draft = make_folder(self._folder / f"draft-{next(self._numbers_of_drafts)}")
        else:
            draft = store.staging()
        self._drafts.add(draft)
        return draft

    def save(self, source: Savable, counters: Mapping[str, object]) -> tuple[CheckpointId, bytes | None]:
        """Save a checkpoint, and return its id and, for a dict, its bytes.

        On return, a folder is complete and visible in the store. The bytes are still to be written, by the worker. In a
        further seat of a gang the checkpoint is only checked.
        """
        content = check_savable(source)
        number = next(self._numbers)
        if isinstance(content, dict):
            from mqtune.checkpoints import encode_dict  # noqa: PLC0415

            return self._new_id(number, in_memory=True), encode_dict(content, counters)
        name = self._new_id(number, in_memory=False)
        if self._is_first:
            self._opened_store().save(name, content, counters)
        if content in self._drafts:
            # The store has a copy, and nothing else uses the draft.
            self._drafts.discard(content)
            remove_folder(content)
        return name, None

    def _new_id(self, number: int, *, in_memory: bool) -> CheckpointId:
        message = self._message
        return checkpoint_id(message["trial"], message["attempt"], number, in_memory=in_memory, claim=message["claim"])

    def fetch(self) -> Checkpoint | None:
        """Return a verified local copy of the attempt's initial checkpoint, or None without one."""
        with self._fetching:
            if self._start and self._fetched is None:
                self._fetched = self._fetch()
            return self._fetched

    def _fetch(self) -> Checkpoint:
        from mqtune.checkpoints import Checkpoint, decode_dict  # noqa: PLC0415

        if is_in_memory(self._start):
            if self._data is None:
                raise CheckpointGone(
                    f"checkpoint {self._start} was held in Redis and is gone; restart the trial from another one"
                )
            try:
                data, counters = decode_dict(self._data)
            except MqtuneError as error:
                raise type(error)(f"checkpoint {self._start} can't be used: {error}") from None
            return Checkpoint(id=self._start, counters=counters, data=data)
        target = self.ensure_folder() / _FETCHED
        # An interrupted fetch may have left files.
        remove_folder(target)
        counters = self._opened_store().fetch(self._start, target)
        return Checkpoint(id=self._start, counters=counters, path=target)

    def _opened_store(self) -> CheckpointStore:
        if not self._url:
            raise StoreMissing(
                "a checkpoint that is a directory needs a store that all workers reach; name one with "
                "checkpoints=mqtune.Checkpoints('/shared/checkpoints'), or give a dict of at most 1 MB instead"
            )
        if self._store is None:
            from mqtune.checkpoints import open_store  # noqa: PLC0415

            self._store = open_store(self._url)
        return self._store


def check_savable(source: Savable) -> State | Path:
    """Return the dict, or the path of the folder, of a checkpoint to save.

    Raises:
        ConfigurationError: the path is not a folder.
        TypeError: the checkpoint is of another type.
    """
    if isinstance(source, dict):
        return source
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.is_dir():
            raise ConfigurationError(
                f"checkpoint={os.fspath(source)!r} is {'not a directory' if path.exists() else 'not there'}; "
                "write the checkpoint's files into a directory first, and give that"
            )
        return path
    from mqtune.checkpoints import Checkpoint  # noqa: PLC0415

    if isinstance(source, Checkpoint):
        return source.data if source.is_dict else source.path
    raise TypeError(f"checkpoint={source!r} is {type(source).__name__}; give a dict, or the path of a directory")


def make_folder(folder: Path) -> Path:
    """Make an attempt's folder if it is missing, and return its path."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            f"the attempt's folder can't be made: {error}; free space there, or give the worker another log root "
            "(--log-root)"
        ) from error
    return folder


def remove_folder(folder: Path) -> None:
    """Delete a folder with its content. Undeletable files stay, without an error."""
    if folder.exists():
        # Imported only here: it loads archives and compressors, which would make each trial's process larger.
        import shutil  # noqa: PLC0415

        shutil.rmtree(folder, ignore_errors=True)
