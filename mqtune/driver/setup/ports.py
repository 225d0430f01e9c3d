"""The port between the set-up of an experiment and its services, before there is a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mqtune.backends.base import BackendSession
from mqtune.core.resources import Resources
from mqtune.trainable.bundle import Bundle
from mqtune.trainable.cells import Cell
from mqtune.trainable.spec import TrainableSpec

#: Checks before the start that the place can run trials with these resources, and raises an ``MqtuneError`` if not. The
#: place is a backend's session. None stands for a single local worker.
CheckDeployment = Callable[[Sequence[Resources], BackendSession | None], None]


class ProgramFiles(Protocol):
    """The files of a program that a driver sends to its workers."""

    @property
    def needs_key(self) -> str:
        """The setting that makes the key necessary, such as ``Process(bundle=…)``, for messages."""

    @property
    def has_all(self) -> bool:
        """Whether the bundle has all files of a folder, so that trials can run in that folder."""

    @property
    def root(self) -> str:
        """The path of the code root in the bundle."""

    @property
    def written(self) -> Mapping[Path, bytes]:
        """The content of generated files that are not on the disk, by path."""

    @property
    def script(self) -> Path | None:
        """The script whose names the generated module uses. None without a generated module."""

    def pack(self, sources: Mapping[str, bytes]) -> Bundle:
        """Return a bundle of the files as they are now.

        Args:
            sources: the content of the trainable's file and of its imported files, by path relative to its folder.

        Raises:
            ConfigurationError: the files can't be packed, or the trainable's file is not among them.
        """

    def changed_since(self, before: Bundle) -> list[str]:
        """Return the names of the trials' files that have changed since an earlier bundle."""


class MakeProject(Protocol):
    """Makes the ``ProgramFiles`` of an experiment, before there is a driver."""

    def __call__(
        self,
        folder: str | Path | None,
        spec: TrainableSpec,
        code_root: Path,
        outside: Iterable[str | Path] = (),
        cell: Cell | None = None,
    ) -> ProgramFiles:
        """Return the files of the program.

        Args:
            folder: the user's folder to send. None: only the trainable's file and its imports are sent.
            spec: the trainable.
            code_root: the folder below which the trainable was found.
            outside: folders that are left out because their files are no code, such as a checkpoint store.
            cell: the generated module of a trainable without a file, as in a notebook. None if it has a file.

        Raises:
            ConfigurationError: the folder does not exist, or the trainable is not in it.
        """
