"""The checkpoint object of trainables and results."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import CheckpointId

State = dict[str, Any]
Counters = Mapping[str, Any]

_NO_COUNTERS: Final[Counters] = MappingProxyType({})
_NO_METRICS: Final[Mapping[str, object]] = MappingProxyType({})


class Checkpoint:
    """A complete state of a trial, to start from or to report: a folder of files, or a dict.

    A trainable gets one from ``mqtune.get_checkpoint()``, and may pass one to ``mqtune.report(…, checkpoint=…)``. The
    folder is a copy for this trial. It may be changed, and is deleted when the attempt ends.

    Args:
        id: its permanent name; empty until it is saved.
        path: an existing folder with its files. Give either this or *data*.
        data: the dict.
        counters: training_iteration, time_total_s and others, as of the save.
        metrics: the metrics of its report. Only checkpoints in results have them.
    """

    __slots__ = ("_data", "_path", "counters", "id", "metrics")

    def __init__(
        self,
        *,
        id: str = "",  # noqa: A002  - the usual name
        path: Path | None = None,
        data: State | None = None,
        counters: Counters = _NO_COUNTERS,
        metrics: Mapping[str, object] = _NO_METRICS,
    ) -> None:
        if (path is None) is (data is None):
            raise ConfigurationError("a checkpoint is a folder or a dict: give Checkpoint either path= or data=")
        self.id = CheckpointId(id)
        self.counters = counters
        self.metrics = metrics
        self._path = path
        self._data = data

    @classmethod
    def from_dict(cls, data: State) -> Checkpoint:
        """Make a checkpoint from a dict. It is not saved yet.

        Raises:
            ConfigurationError: *data* is not a dict.
        """
        if not isinstance(data, dict):
            raise ConfigurationError(f"a checkpoint's data is a dict such as {{'epoch': 3}}, not {type(data).__name__}")
        return cls(data=data)

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Make a checkpoint from a folder. It is not saved yet.

        Raises:
            ConfigurationError: the folder does not exist.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise ConfigurationError(f"a checkpoint's folder must exist, but {os.fspath(path)!r} is not a folder")
        return cls(path=folder)

    @property
    def is_dict(self) -> bool:
        """Whether the checkpoint is a dict, in ``data``. Otherwise it is a folder, in ``path``."""
        return self._data is not None

    @property
    def path(self) -> Path:
        """The local folder with the checkpoint's files.

        Raises:
            ConfigurationError: the checkpoint is a dict.
        """
        if self._path is None:
            raise ConfigurationError(f"checkpoint {self.id or '(unsaved)'} is a dict and has no folder: use its .data")
        return self._path

    @contextmanager
    def as_directory(self) -> Iterator[Path]:
        """Yield ``path``, like Ray's checkpoints. The folder stays after the block."""
        yield self.path

    @property
    def data(self) -> State:
        """The checkpoint's dict. Tuples have become lists.

        Raises:
            ConfigurationError: the checkpoint is a folder.
        """
        if self._data is None:
            raise ConfigurationError(f"checkpoint {self.id or '(unsaved)'} is a folder and not a dict: use its .path")
        return self._data

    def __repr__(self) -> str:
        content = f"{len(self._data)} keys" if self._data is not None else f"path={os.fspath(self.path)!r}"
        return f"<Checkpoint {self.id or '(unsaved)'}: {content}>"
