"""How a fetched checkpoint arrives: aside first, checked file by file, and then as a whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mqtune.checkpoints.content import copy_hashed
from mqtune.checkpoints.files import create_file, remove_tree, token, write_all
from mqtune.checkpoints.manifest import Manifest, StoredFile
from mqtune.checkpoints.store import myself
from mqtune.core.errors import CheckpointBroken, ConfigurationError, StoreUnavailable

__all__ = ["Arrival", "arriving"]


class Arrival:
    """The folder in which a checkpoint arrives."""

    def __init__(self, manifest: Manifest, folder: str, target: str) -> None:
        self._manifest = manifest
        self._folder = folder
        self._target = target

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Have an OSError within said as what it is: that the folder can't be written.

        Raises:
            StoreUnavailable: there was one.
        """
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"checkpoint {self._manifest.id} can't be copied to {self._target!r} by {myself()}: {error.strerror}; make "
                "room there and let this user write there, or keep the trials' folders elsewhere"
            ) from error

    def make_folders(self) -> None:
        """Make all folders of the checkpoint."""
        with self.writing():
            for path in self._manifest.directories:
                os.mkdir(os.path.join(self._folder, path))

    @contextmanager
    def create(self, file: StoredFile) -> Iterator[Callable[[memoryview], None]]:
        """Make one file, and yield what writes to it."""
        with self.writing():
            descriptor = create_file(self.place(file), executable=file.executable)

        def write(data: memoryview) -> None:
            with self.writing():
                write_all(descriptor, data)

        try:
            yield write
        finally:
            with self.writing():
                os.close(descriptor)

    def check_written(self, file: StoredFile) -> None:
        """Raise unless a file that something else wrote at its ``place`` is what was saved, and make it as executable.

        Raises:
            CheckpointBroken: it is not.
        """
        with self.writing():
            descriptor = os.open(self.place(file), os.O_RDONLY)
            try:
                size, sha256 = copy_hashed(file.size, lambda buffer: os.readv(descriptor, [buffer]))
                if file.executable:
                    # Whoever may read it may execute it.
                    mode = os.fstat(descriptor).st_mode
                    os.fchmod(descriptor, stat.S_IMODE(mode) | (mode & 0o444) >> 2)
            finally:
                os.close(descriptor)
        self.check(file, size, sha256)

    def check(self, file: StoredFile, size: int, sha256: str) -> None:
        """Raise unless what was read of a file is what was saved.

        Raises:
            CheckpointBroken: it is not.
        """
        if size != file.size:
            found = f"has {size:,} bytes instead of {file.size:,}"
        elif sha256 != file.sha256:
            found = f"has the SHA-256 {sha256} instead of {file.sha256}"
        else:
            return
        raise CheckpointBroken(f"checkpoint {self._manifest.id} is broken: its file {file.path!r} {found}")

    def place(self, file: StoredFile) -> str:
        """Return where a file arrives."""
        return os.path.join(self._folder, file.path)


@contextmanager
def arriving(manifest: Manifest, target: Path) -> Iterator[Arrival]:
    """Yield where the checkpoint of *manifest* can be written, and make that *target* at the end; nothing, after an error.

    Raises:
        ConfigurationError: *target* is there already.
    """
    if os.path.lexists(target):
        raise ConfigurationError(
            f"checkpoint {manifest.id} is to be copied to {os.fspath(target)!r}, which is there already: name a new folder"
        )
    parent, name = os.path.split(os.path.abspath(target))
    aside = os.path.join(parent, f".{name}.{token()}")
    arrival = Arrival(manifest, aside, os.fspath(target))
    try:
        with arrival.writing():
            os.makedirs(aside)
        arrival.make_folders()
        yield arrival
        with arrival.writing():
            os.rename(aside, target)
    except BaseException:
        remove_tree(aside)
        raise
