"""The manifest of a stored checkpoint, and the check of a fetched copy."""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from mqtune.checkpoints.checkpoint import Counters
from mqtune.checkpoints.files import hash_file, reading, remove_tree, token
from mqtune.checkpoints.store import myself
from mqtune.core.codec import is_version
from mqtune.core.errors import (
    CheckpointBroken,
    CheckpointExists,
    CheckpointVersionError,
    ConfigurationError,
    StoreUnavailable,
)
from mqtune.core.trial import CheckpointId
from mqtune.core.version import __version__

MANIFEST: Final = "manifest.json"
_VERSION: Final = 1
#: The end of each message about a broken manifest.
_WAY_OUT: Final = "start from another checkpoint"


class StoredFile(NamedTuple):
    """A file of a checkpoint: relative path with slashes, size in bytes, 128-bit XXH3 in hex."""

    path: str
    size: int
    xxh3: str
    executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files, folders and counters of a checkpoint. The encoded form has a hash of itself.

    ``directories`` are the paths of all folders in the checkpoint, parents first. ``content`` is the name of the folder
    with the files in the store.
    """

    id: CheckpointId
    content: str
    files: tuple[StoredFile, ...]
    directories: tuple[str, ...]
    counters: Counters

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def check_equals(self, stored: Manifest, store: str) -> None:
        """Check that the stored checkpoint has the same content. NaN equals NaN.

        Raises:
            CheckpointExists: the stored one has other files, bytes or counters.
        """
        mine, theirs = (_seal([m.files, m.directories, dict(m.counters)]) for m in (self, stored))
        if mine != theirs:
            raise CheckpointExists(
                f"checkpoint {self.id} is already in {store} with another content; checkpoints never change: save it "
                "under a new id"
            )

    def encode(self) -> bytes:
        """Encode the manifest as readable JSON."""
        body = {
            "id": self.id,
            "mqtune": __version__,
            "content": self.content,
            "counters": dict(self.counters),
            "directories": self.directories,
            "files": [file._asdict() for file in self.files],
        }
        return json.dumps({"version": _VERSION, "sha256": _seal(body), "checkpoint": body}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, id: CheckpointId, where: str) -> Manifest:  # noqa: A002  - the usual name
        """Decode the manifest of checkpoint *id*. Errors name *where*, the place where it was read.

        Raises:
            CheckpointBroken: the manifest is malformed, was changed, belongs to another checkpoint, or has a path that
                leads outside.
            CheckpointVersionError: a later version of mqtune wrote the manifest.
        """
        broken = f"checkpoint {id} is broken: its manifest {where}"
        try:
            stored = json.loads(data)
            if not is_version(stored["version"], _VERSION):
                raise CheckpointVersionError(
                    f"checkpoint {id} has a manifest of version {reprlib.repr(stored['version'])} ({where}); this "
                    f"mqtune, {__version__}, reads version {_VERSION}: upgrade it"
                )
            body, expected = stored["checkpoint"], stored["sha256"]
            if (seal := _seal(body)) != expected:
                raise CheckpointBroken(
                    f"{broken} was changed: its SHA-256 should be {expected}, and is {seal}; {_WAY_OUT}"
                )
            manifest = cls(
                id=body["id"],
                content=body["content"],
                files=tuple(StoredFile(**file) for file in body["files"]),
                directories=tuple(body["directories"]),
                counters=body["counters"],
            )
            paths = [manifest.content, *manifest.directories, *(file.path for file in manifest.files)]
            astray = next((path for path in paths if not _leads_inside(path)), None)
            if not isinstance(manifest.counters, dict) or any(not _is_described(file) for file in manifest.files):
                raise TypeError("a file's size or hash, or the counters, are malformed")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CheckpointBroken(
                f"{broken}, of {len(data):,} bytes, can't be decoded ({type(error).__name__}: {error}); {_WAY_OUT}"
            ) from None
        if manifest.id != id:
            raise CheckpointBroken(f"{broken} belongs to checkpoint {manifest.id}; {_WAY_OUT}")
        if astray is not None:
            raise CheckpointBroken(
                f"{broken} has the path {astray!r}, which leads outside of the checkpoint; {_WAY_OUT}"
            )
        return manifest


def _seal(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _is_described(file: StoredFile) -> bool:
    has_size = type(file.size) is int and file.size >= 0
    return has_size and type(file.xxh3) is str and type(file.executable) is bool


def _leads_inside(path: str) -> bool:
    parts = path.split("/")
    return "\0" not in path and not {"", ".", ".."}.intersection(parts)


class Arrival:
    """The temporary folder into which a checkpoint is fetched. It is beside the target."""

    def __init__(self, manifest: Manifest, folder: str, target: str) -> None:
        self._manifest = manifest
        self._folder = folder
        self._target = target

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an OSError in the block into StoreUnavailable, because the folder can't be written."""
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"checkpoint {self._manifest.id} can't be copied to {self._target!r} by {myself()}: {error.strerror}; "
                "free space there and let this user write there, or keep the trials' folders elsewhere"
            ) from error

    def take(self, file: StoredFile) -> None:
        """Check a fetched file against the manifest, and set its permission to execute.

        Raises:
            CheckpointBroken: the size or hash of the file differs.
        """
        place = self.place(file)
        with reading(place, self.writing) as read:
            self.check(file, *hash_file(read, file.size))
        if file.executable:
            with self.writing():
                # Everybody who may read it may execute it.
                mode = stat.S_IMODE(os.stat(place).st_mode)
                os.chmod(place, mode | (mode & 0o444) >> 2)

    def check(self, file: StoredFile, size: int, xxh3: str) -> None:
        """Check the size and hash of a fetched file against the manifest.

        Raises:
            CheckpointBroken: one of them differs.
        """
        if size != file.size:
            problem = f"has {size:,} bytes instead of {file.size:,}"
        elif xxh3 != file.xxh3:
            problem = f"has the hash {xxh3} instead of {file.xxh3}"
        else:
            return
        raise CheckpointBroken(f"checkpoint {self._manifest.id} is broken: its file {file.path!r} {problem}")

    def place(self, file: StoredFile) -> str:
        return os.path.join(self._folder, file.path)


@contextmanager
def arriving(manifest: Manifest, target: Path) -> Iterator[Arrival]:
    """Yield a temporary folder to fetch into. Rename it to *target* at the end of the block.

    After an error it is removed, and *target* does not exist.

    Raises:
        ConfigurationError: *target* already exists.
    """
    if os.path.lexists(target):
        raise ConfigurationError(
            f"checkpoint {manifest.id} can't be copied to {os.fspath(target)!r}, which already exists: name a new "
            "folder"
        )
    parent, name = os.path.split(os.path.abspath(target))
    aside = os.path.join(parent, f".{name}.{token()}")
    arrival = Arrival(manifest, aside, os.fspath(target))
    try:
        with arrival.writing():
            os.makedirs(aside)
            for path in manifest.directories:
                os.mkdir(os.path.join(aside, path))
        yield arrival
        with arrival.writing():
            os.rename(aside, target)
    except BaseException:
        remove_tree(aside)
        raise
