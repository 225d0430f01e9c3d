"""The checkpoint store in a folder, on this machine or mounted on all machines."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

from mqtune.checkpoints.checkpoint import Counters
from mqtune.checkpoints.dicts import plain_counters
from mqtune.checkpoints.files import (
    DISK_FULL,
    Listing,
    SourceFile,
    copy_file,
    creating,
    hash_file,
    newest_change,
    open_source,
    reading,
    remove_tree,
    scan,
    sync,
    sync_all,
    token,
    write_file,
)
from mqtune.checkpoints.manifest import MANIFEST, Manifest, StoredFile, arriving
from mqtune.checkpoints.store import (
    MARK,
    SWEEP_AFTER_S,
    CheckpointStore,
    Tenant,
    check_id,
    checked_name,
    gone,
    is_id,
    myself,
    new_mark,
    with_name,
)
from mqtune.core.errors import CheckpointBroken, MqtuneError, StoreUnavailable
from mqtune.core.machine import open_regular
from mqtune.core.trial import CheckpointId

#: The folder for unfinished and deleted checkpoints. It is inside the store, so that a rename moves them atomically.
_STAGING: Final = ".staging"
#: The folder with the store's mark. It is a folder, because renaming a file to its name would replace another mark.
_MARK_FOLDER: Final = ".store"
_TENANTS: Final = ".tenants"
_FILES: Final = "files"
_TAKEN: Final = frozenset({errno.EEXIST, errno.ENOTEMPTY})
_FULL: Final = "free space there, keep fewer checkpoints, or use another store"
_GONE: Final = "check whether it is mounted on this machine, or was removed"
_WAYS_OUT: Final = {
    **dict.fromkeys(DISK_FULL, _FULL),
    errno.EROFS: "mount it so that it can be written to, or use another store",
    errno.EACCES: "let this user read and write there, or use another store",
    errno.EPERM: "let this user read and write there, or use another store",
    errno.ENOENT: _GONE,
    errno.ENOTDIR: _GONE,
    errno.ESTALE: _GONE,
}


class DirectoryStore(CheckpointStore):
    """Stores checkpoints in a folder, on any file system that all machines mount, such as NFS.

    Each checkpoint is a folder named by its id, with ``manifest.json`` and ``files/``. It is written in ``.staging``,
    flushed to disk, and then renamed to its place.

    Args:
        folder: the store's folder. ``create`` makes it.
        name: the name in the mark that identifies the store; empty for any store.
    """

    def __init__(self, folder: str | os.PathLike[str], *, name: str = "") -> None:
        self._root = os.path.abspath(os.path.expanduser(os.fspath(folder)))
        self._name = name

    @property
    def url(self) -> str:
        return with_name(f"file://{quote(self._root)}", self._name)

    def describe(self) -> str:
        return self._root

    def create(self) -> None:
        if not self._name:
            with self._storing("make the checkpoint store"):
                os.makedirs(os.path.join(self._root, _STAGING), exist_ok=True)
                if not os.path.lexists(os.path.join(self._root, _MARK_FOLDER)):
                    self._write_mark()
        self.check()

    def _write_mark(self) -> None:
        work = self._new_workspace()
        try:
            write_file(os.path.join(work, MARK), new_mark())
            sync_all([os.path.join(work, MARK), work])
            # Another driver may have made the store just now. Its mark counts.
            self._publish(work, _MARK_FOLDER)
        finally:
            remove_tree(work)

    def is_there(self) -> bool:
        """Whether the folder exists and has this store's mark. Nothing is written."""
        try:
            checked_name(self._read_mark(), self._name, self._root)
        except MqtuneError:
            return False
        return True

    def _read_mark(self) -> bytes | None:
        with self._storing("read the checkpoint store"):
            try:
                os.scandir(self._root).close()
                return _content_of(os.path.join(self._root, _MARK_FOLDER, MARK))
            except FileNotFoundError:
                return None

    def check(self) -> None:
        mark = self._read_mark()
        self._name = checked_name(mark, self._name, self._root)
        with self._storing("write to the checkpoint store"):
            self._try_to_write()

    def _try_to_write(self) -> None:
        work = self._new_workspace()
        moved = f"{work}-moved"
        try:
            write_file(os.path.join(work, _FILES), b"written")
            sync(os.path.join(work, _FILES))
            os.rename(work, moved)
        finally:
            remove_tree(moved)
            remove_tree(work)

    def staging(self) -> Path:
        with self._storing("write a checkpoint"):
            folder = os.path.join(self._new_workspace(), _FILES)
            os.mkdir(folder)
        return Path(folder)

    def save(self, id: CheckpointId, source: Path, counters: Counters) -> int:  # noqa: A002
        check_id(id)
        plain = plain_counters(counters)
        listing = scan(source)
        own = self._workspace_of(source)
        # A file with further links may be changed through them, so it must be copied and not moved.
        staged = None if listing.shared else own
        with self._storing("save a checkpoint"):
            work = staged or self._new_workspace()
            try:
                files = _hash_files(listing, None if staged else os.path.join(work, _FILES))
                manifest = Manifest(
                    id=id, content=_FILES, files=files, directories=tuple(listing.directories), counters=plain
                )
                self._complete(work, manifest)
                is_new = self._publish(work, id)
            except BaseException:
                # A stop may be raised at any time, even between the rename and here.
                if not os.path.lexists(work):
                    with suppress(StoreUnavailable):
                        self.delete(id)
                elif staged:
                    # The caller owns the files, and may try again.
                    with suppress(OSError):
                        os.unlink(os.path.join(work, MANIFEST))
                else:
                    remove_tree(work)
                raise
        if not is_new:
            remove_tree(work)
            manifest.check_equals(self._manifest(id), self._root)
        if own is not None:
            remove_tree(own)
        return manifest.size

    def _complete(self, work: str, manifest: Manifest) -> None:
        """Write the manifest, and flush a workspace to disk."""
        write_file(os.path.join(work, MANIFEST), manifest.encode())
        folder = os.path.join(work, _FILES)
        paths = [*(file.path for file in manifest.files), *reversed(manifest.directories)]
        sync_all([*(os.path.join(folder, path) for path in paths), folder, os.path.join(work, MANIFEST), work])

    def _publish(self, work: str, name: str) -> bool:
        """Rename a workspace to *name* in the store. Return False if *name* already exists."""
        try:
            os.rename(work, os.path.join(self._root, name))
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
        sync(self._root)
        return True

    def fetch(self, id: CheckpointId, target: Path) -> Counters:  # noqa: A002
        manifest = self._manifest(id)
        with arriving(manifest, target) as arrival:
            for file in manifest.files:
                place = os.path.join(self._root, manifest.id, manifest.content, file.path)
                with (
                    reading(place, partial(self._reading, id, place)) as read,
                    arrival.writing(),
                    creating(arrival.place(file), executable=file.executable) as copy,
                ):
                    copied = copy_file(read, file.size, copy)
                arrival.check(file, *copied)
        return dict(manifest.counters)

    def exists(self, id: CheckpointId) -> bool:  # noqa: A002
        check_id(id)
        with self._storing("look into the checkpoint store"):
            if self._has_manifest(id):
                return True
            # This raises if the folder is not mounted.
            os.stat(os.path.join(self._root, _STAGING))
        return False

    def ids(self) -> list[CheckpointId]:
        with self._storing("look into the checkpoint store"):
            return [
                CheckpointId(name)
                for name in sorted(os.listdir(self._root))
                if is_id(name) and self._has_manifest(name)
            ]

    def _has_manifest(self, name: str) -> bool:
        try:
            os.stat(os.path.join(self._root, name, MANIFEST), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def delete(self, id: CheckpointId) -> None:  # noqa: A002
        check_id(id)
        aside = self._at_staging(token())
        with self._storing("delete a checkpoint"):
            try:
                os.rename(os.path.join(self._root, id), aside)
            except FileNotFoundError:
                os.stat(os.path.join(self._root, _STAGING))
                return
        remove_tree(aside)

    def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        swept = 0
        with self._storing("sweep the checkpoint store"):
            probe = self._new_workspace()
            try:
                now = newest_change(probe)
                for name in os.listdir(os.path.join(self._root, _STAGING)):
                    left = self._at_staging(name)
                    if left != probe and 0 < newest_change(left) <= now - older_than_s:
                        remove_tree(left)
                        swept += not os.path.lexists(left)
            finally:
                os.rmdir(probe)
        return swept

    def claim(self, tenant: Tenant) -> None:
        with self._storing("write to the checkpoint store"):
            os.makedirs(os.path.join(self._root, _TENANTS), exist_ok=True)
            work = self._new_workspace()
            try:
                write_file(os.path.join(work, MARK), tenant.encode())
                os.replace(os.path.join(work, MARK), self._tenant_at(tenant))
            finally:
                remove_tree(work)

    def release(self, tenant: Tenant) -> None:
        with self._storing("write to the checkpoint store"), suppress(FileNotFoundError):
            os.unlink(self._tenant_at(tenant))

    def tenants(self) -> list[Tenant]:
        with self._storing("read the checkpoint store"):
            folder = Path(self._root, _TENANTS)
            names = sorted(os.listdir(folder)) if folder.is_dir() else []
            return [Tenant.decode(_content_of(os.path.join(folder, name))) for name in names]

    def _tenant_at(self, tenant: Tenant) -> str:
        return os.path.join(self._root, _TENANTS, tenant.file_name)

    def folders(self) -> list[str]:
        with self._storing("look into the checkpoint store"):
            return sorted(os.listdir(self._root))

    def idle_s(self) -> float:
        with self._storing("look into the checkpoint store"):
            probe = self._new_workspace()
            try:
                now = newest_change(probe)
            finally:
                os.rmdir(probe)
            # The probe has changed .staging itself, so only its content counts.
            inside = [entry.path for entry in os.scandir(self._root) if entry.name != _STAGING]
            inside += [entry.path for entry in os.scandir(os.path.join(self._root, _STAGING))]
            return max(0.0, now - max(map(newest_change, inside), default=now))

    def remove(self) -> None:
        super().remove()
        for name in (_TENANTS, _STAGING, _MARK_FOLDER):
            remove_tree(os.path.join(self._root, name))
        # The folder may have other files.
        with suppress(OSError):
            os.rmdir(self._root)

    def sizes(self, id: CheckpointId) -> dict[str, int]:  # noqa: A002
        """Return the size of each file of a checkpoint in bytes, by its path. The files are not read.

        Raises:
            as ``fetch``.
        """
        return {file.path: file.size for file in self._manifest(id).files}

    def _manifest(self, id: CheckpointId) -> Manifest:  # noqa: A002
        check_id(id)
        place = os.path.join(self._root, id, MANIFEST)
        with self._reading(id, place):
            data = _content_of(place)
        return Manifest.decode(data, id, place)

    def _at_staging(self, name: str) -> str:
        return os.path.join(self._root, _STAGING, name)

    def _new_workspace(self) -> str:
        work = self._at_staging(token())
        os.mkdir(work)
        return work

    def _workspace_of(self, source: Path) -> str | None:
        """Return the workspace that contains *source* if ``staging`` made it, else None."""
        work, name = os.path.split(os.path.abspath(source))
        is_staged = name == _FILES and os.path.dirname(work) == os.path.join(self._root, _STAGING)
        return work if is_staged and not os.path.islink(source) else None

    @contextmanager
    def _reading(self, id: CheckpointId, place: str) -> Iterator[None]:  # noqa: A002
        """Turn an OSError in the block into an error about the checkpoint *id*."""
        try:
            yield
        except PermissionError as error:
            raise self._unavailable("read the checkpoint store", error) from error
        except OSError as error:
            if not self.exists(id):
                raise gone(id, self._root) from None
            raise CheckpointBroken(f"checkpoint {id} is broken: {place} can't be read: {error.strerror}") from error

    @contextmanager
    def _storing(self, action: str) -> Iterator[None]:
        """Turn an OSError in the block into StoreUnavailable. *action* completes "can't …"."""
        try:
            yield
        except OSError as error:
            raise self._unavailable(action, error) from error

    def _unavailable(self, action: str, error: OSError) -> StoreUnavailable:
        way_out = _WAYS_OUT.get(error.errno or 0, "check the file system of that folder, or use another store")
        return StoreUnavailable(f"{myself()} can't {action} in {self._root}: {error.strerror}; {way_out}")


def _hash_files(listing: Listing, folder: str | None) -> tuple[StoredFile, ...]:
    """Return the files with their hashes.

    If *folder* is given, make it and copy the files into it.
    """
    if folder is not None:
        os.mkdir(folder)
        for path in listing.directories:
            os.mkdir(os.path.join(folder, path))
    return tuple(_hash_one(file, folder) for file in listing.files)


def _hash_one(file: SourceFile, folder: str | None) -> StoredFile:
    with open_source(file) as read:
        if folder is None:
            size, xxh3 = hash_file(read, file.size, flush=True)
        else:
            with creating(os.path.join(folder, file.path), executable=file.executable) as copy:
                size, xxh3 = copy_file(read, file.size, copy, flush=True)
    return StoredFile(file.path, size, xxh3, file.executable)


def _content_of(path: str) -> bytes:
    """Read one of the store's own files. Refuse a link, because trials may write to the folder."""
    with open(open_regular(path), "rb") as file:
        return file.read()
