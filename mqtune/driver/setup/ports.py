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

#: Checks all resources that trials may ask for against the session of a backend, or against one worker on this machine
#: (None), before anything starts. An error of mqtune's ends the start.
CheckDeployment = Callable[[Sequence[Resources], BackendSession | None], None]


class ProgramFiles(Protocol):
    """The files of a program that a driver brings to its workers, as the kernel sees them."""

    @property
    def needs_key(self) -> str:
        """The setting of the user for which a key is needed, for people."""

    @property
    def has_all(self) -> bool:
        """Whether all files of a folder are brought, so that trials can run in it."""

    @property
    def root(self) -> str:
        """The path of the code root in the bundle."""

    @property
    def written(self) -> Mapping[Path, bytes]:
        """The content of the files that are not on the disk, by their paths."""

    @property
    def script(self) -> Path | None:
        """The script whose names the written module uses."""

    def pack(self, sources: Mapping[str, bytes]) -> Bundle:
        """Return the bundle of its files as they are now.

        Args:
            sources: the trainable's file and its imported files, by their paths from its folder.

        Raises:
            ConfigurationError: they can't be packed, or the trainable's file is not among them.
        """

    def changed_since(self, before: Bundle) -> list[str]:
        """Return the names of the trials' files that changed since an earlier bundle."""


class MakeProject(Protocol):
    """Makes the project of an experiment, before there is a driver."""

    def __call__(
        self,
        folder: str | Path | None,
        spec: TrainableSpec,
        code_root: Path,
        outside: Iterable[str | Path] = (),
        cell: Cell | None = None,
    ) -> ProgramFiles:
        """Return the project.

        Args:
            folder: the folder of the user; None where only the trainable and its imports are brought.
            spec: the trainable.
            code_root: the folder below which the trainable was found.
            outside: folders whose files are no code, such as a checkpoint store.
            cell: the trainable's written module; None where it has a file.

        Raises:
            ConfigurationError: the folder does not exist, or the trainable is not in it.
        """
