"""Checkpoints anywhere that fsspec reaches: object stores, SFTP, HDFS and others."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from mqtune.checkpoints.dicts import plain_counters
from mqtune.checkpoints.files import DISK_FULL, SourceFile, copy_hashed, open_source, scan, token
from mqtune.checkpoints.manifest import Arrival, Manifest, StoredFile, arriving
from mqtune.checkpoints.store import (
    MARK,
    SWEEP_AFTER_S,
    CheckpointStore,
    check_id,
    checked_name,
    gone,
    is_id,
    myself,
    new_mark,
    with_name,
    without_secrets,
)
from mqtune.core.errors import CheckpointBroken, CheckpointExists, ConfigurationError, MqtuneError, StoreUnavailable
from mqtune.core.trial import CheckpointId

__all__ = ["FsspecStore", "protocols"]

#: Where manifests lie, by id; the manifest, written last and whole, is what makes a checkpoint exist.
_MANIFESTS: Final = "manifests"
#: Where files lie, by id and by the save that wrote them, so that no two saves ever mix.
_CONTENT: Final = "content"
#: Where objects are written that are then moved to their place.
_STAGING: Final = "staging"
#: What some part of fsspec takes for a pattern.
_PATTERN: Final = re.compile(r"[*?\[\]]")
#: What an object's name keeps of its file's, for people who look into the store.
_PLAIN: Final = re.compile(r"[^A-Za-z0-9._-]+")
_PLAIN_CHARS: Final = 80


def protocols() -> frozenset[str]:
    """Return the URL schemes that fsspec knows, whether or not their drivers are installed; none without fsspec."""
    try:
        import fsspec  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        return frozenset()
    return frozenset({*fsspec.available_protocols(), *fsspec.registry})


class FsspecStore(CheckpointStore):
    """Checkpoints below a URL that fsspec opens; it needs the extra ``mqtune[fsspec]`` and the protocol's driver.

    Object stores have no folders and no renames of folders. The files of a save go below ``content/<id>/<save>/``, under
    names that no store minds; then the manifest is written aside and moved to ``manifests/<id>.json``, in one step
    wherever a move or a copy of one small object is one, as it is in every object store and file system. What two
    processes save at the same moment under the same new id is whole, but only one of both is kept, without an error.

    Args:
        url: a folder or prefix, such as ``s3://bucket/folder``; it is made by ``create``.
        name: what the store that is meant says of itself; empty for any.

    Raises:
        ConfigurationError: fsspec doesn't know such a URL.
        StoreUnavailable: fsspec, or the driver of that protocol, is not installed here.
    """

    def __init__(self, url: str, *, name: str = "") -> None:
        self._url = url.rstrip("/") if not url.endswith("://") else url
        self._name = name
        if _PATTERN.search(url):
            raise ConfigurationError(
                f"the place for checkpoints is {self.describe()!r}; it may not have any of * ? [ ]"
            )
        try:
            import fsspec  # noqa: PLC0415 - an extra, and slow to import
        except ImportError:
            raise StoreUnavailable(
                f"{myself()} can't open the checkpoint store {self.describe()}: fsspec is not installed; install "
                "mqtune[fsspec] there, or the package that brings a store for such URLs, or use a folder that all machines share"
            ) from None
        try:
            self._files, self._root = fsspec.url_to_fs(self._url)
        except ImportError as error:
            raise StoreUnavailable(
                f"{myself()} can't open the checkpoint store {self.describe()}: {error}; install that package there"
            ) from None
        except ValueError as error:
            raise ConfigurationError(
                f"the place for checkpoints is {self.describe()!r}, which fsspec can't open: {error}; name a folder, or a "
                "URL such as s3://bucket/folder"
            ) from None
        except Exception as error:
            raise self._unavailable("open", error) from error

    @property
    def url(self) -> str:
        return with_name(self._url, self._name)

    def describe(self) -> str:
        return without_secrets(self._url)

    def create(self) -> None:
        if not self._name:
            with self._storing("make"):
                for folder in (_MANIFESTS, _CONTENT, _STAGING):
                    self._files.makedirs(self._at(folder), exist_ok=True)
                if self._get(self._at(MARK)) is None:
                    self._put(self._at(MARK), new_mark())
        self.check()

    def check(self) -> None:
        with self._storing("read"):
            mark = self._get(self._at(MARK))
        self._name = checked_name(mark, self._name, self.describe())
        probe = self._at(_STAGING, token())
        with self._storing("write to"):
            self._files.pipe_file(probe, b"written")
            self._files.rm_file(probe)

    def save(self, id: CheckpointId, source: Path, counters: Mapping[str, Any]) -> int:  # noqa: A002
        check_id(id)
        plain = plain_counters(counters)
        listing = scan(source)
        content = token()
        folder = self._at(_CONTENT, id, content)
        place = self._manifest_at(id)
        try:
            with self._storing("write to"):
                self._files.makedirs(folder, exist_ok=True)
            files = tuple(self._send(index, file, folder) for index, file in enumerate(listing.files))
            manifest = Manifest(
                id=id, content=content, files=files, directories=tuple(listing.directories), counters=plain
            )
            with self._storing("write to"):
                there = self._get(place)
                if there is None:
                    self._put(place, manifest.encode())
        except BaseException:
            self._withdraw(id, folder, content)
            raise
        if there is not None:
            self._remove(folder)
            if not Manifest.decode(there, id, place).has_same_content(manifest):
                raise CheckpointExists(
                    f"checkpoint {id} is in {self.describe()} with another content; checkpoints never change: save it under "
                    "a new id"
                )
        return manifest.size

    def _send(self, index: int, file: SourceFile, folder: str) -> StoredFile:
        with open_source(file) as read, self._storing("write to"):
            sink = self._files.open(posixpath.join(folder, _object_name(index, file.path)), "wb")
            try:
                size, sha256 = copy_hashed(file.size, read, lambda data: sink.write(bytes(data)))
            except BaseException:
                # What was sent so far may appear now, but nothing names it, and it is removed.
                with suppress(Exception):
                    sink.close()
                raise
            sink.close()
        return StoredFile(file.path, size, sha256, file.executable)

    def _withdraw(self, id: CheckpointId, folder: str, content: str) -> None:  # noqa: A002
        """Take a save back that didn't come to its end; an order to stop may come when it is already seen."""
        with suppress(MqtuneError):
            if self.exists(id) and self._manifest(id).content == content:
                self.delete(id)
        self._remove(folder)

    def fetch(self, id: CheckpointId, target: Path) -> dict[str, Any]:  # noqa: A002
        manifest = self._manifest(id)
        with arriving(manifest, target) as arrival:
            for index, file in enumerate(manifest.files):
                self._fetch_file(index, file, manifest, arrival)
        return dict(manifest.counters)

    def _fetch_file(self, index: int, file: StoredFile, manifest: Manifest, arrival: Arrival) -> None:
        place = self._at(_CONTENT, manifest.id, manifest.content, _object_name(index, file.path))
        try:
            # As one stream: reading it piece by piece would be a request for each.
            with self._storing("read"):
                self._files.get_file(place, arrival.place(file))
        except StoreUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, FileNotFoundError):
                if not self.exists(manifest.id):
                    raise gone(manifest.id, self.describe()) from None
                raise CheckpointBroken(
                    f"checkpoint {manifest.id} is broken: its file {file.path!r}, {place}, is missing"
                ) from None
            if isinstance(cause, OSError) and cause.errno in DISK_FULL:
                with arrival.writing():
                    raise cause from None
            raise
        arrival.check_written(file)

    def _manifest(self, id: CheckpointId) -> Manifest:  # noqa: A002
        check_id(id)
        place = self._manifest_at(id)
        with self._storing("read"):
            data = self._get(place)
        if data is None:
            raise gone(id, self.describe())
        return Manifest.decode(data, id, place)

    def exists(self, id: CheckpointId) -> bool:  # noqa: A002
        check_id(id)
        with self._storing("read"):
            self._files.invalidate_cache()
            return bool(self._files.exists(self._manifest_at(id)))

    def ids(self) -> list[CheckpointId]:
        names = (posixpath.basename(path).removesuffix(".json") for path in self._list(self._at(_MANIFESTS)))
        return sorted(CheckpointId(name) for name in names if is_id(name))

    def delete(self, id: CheckpointId) -> None:  # noqa: A002
        check_id(id)
        with self._storing("delete from"):
            with suppress(FileNotFoundError):
                self._files.rm_file(self._manifest_at(id))
            self._remove(self._at(_CONTENT, id))

    def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        swept = 0
        with self._storing("sweep"):
            probe = self._at(_STAGING, token())
            self._files.pipe_file(probe, b"")
            now = self._newest_change(probe)
            self._files.rm_file(probe)
            named = {id_: self._content_of(id_) for id_ in self.ids()}
            left = self._list(self._at(_STAGING))
            for folder in self._list(self._at(_CONTENT)):
                saves = self._list(folder)
                keep = named.get(CheckpointId(posixpath.basename(folder)), "")
                left += [save for save in saves if posixpath.basename(save) != keep] if saves else [folder]
            for path in left:
                if self._newest_change(path) <= now - older_than_s:
                    self._remove(path)
                    swept += 1
        return swept

    def _content_of(self, id: CheckpointId) -> str:  # noqa: A002
        """Return which save a checkpoint's manifest names; empty when it is gone meanwhile."""
        data = self._get(self._manifest_at(id))
        return Manifest.decode(data, id, self._manifest_at(id)).content if data is not None else ""

    def _at(self, *names: str) -> str:
        return posixpath.join(self._root, *names)

    def _manifest_at(self, id: str) -> str:  # noqa: A002
        return self._at(_MANIFESTS, f"{id}.json")

    def _get(self, place: str) -> bytes | None:
        """Return what an object has, or None when there is none."""
        try:
            data: bytes = self._files.cat_file(place)
        except FileNotFoundError:
            return None
        return data

    def _put(self, place: str, data: bytes) -> None:
        """Make an object that is there as a whole or not at all, also where writing one is not one step."""
        aside = self._at(_STAGING, token())
        try:
            self._files.pipe_file(aside, data)
            self._files.invalidate_cache()
            self._files.mv(aside, place)
        except BaseException:
            self._remove(aside)
            raise

    def _list(self, folder: str) -> list[str]:
        """Return the paths of what is in a folder; nothing when there is no such folder, as empty ones may not exist."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        paths = (path.rstrip("/") for path in found)
        # Some stores list a folder as a part of itself.
        return [path for path in paths if posixpath.basename(path) != posixpath.basename(folder)]

    def _newest_change(self, path: str) -> float:
        """Return when something at or below *path* changed last, by the store's clock; infinity when it doesn't say."""
        self._files.invalidate_cache()
        try:
            return max(float(self._files.modified(each).timestamp()) for each in self._files.find(path) or [path])
        except (FileNotFoundError, NotImplementedError):
            return math.inf

    def _remove(self, path: str) -> None:
        """Remove what is at or below *path*, as far as that is possible; what is left is swept another time."""
        with suppress(Exception):
            self._files.invalidate_cache()
            self._files.rm(path, recursive=True)

    @contextmanager
    def _storing(self, what: str) -> Iterator[None]:
        """Have an error within said as what it is: that the store can't be used. Drivers raise whatever they like."""
        try:
            yield
        except MqtuneError:
            raise
        except Exception as error:
            raise self._unavailable(what, error) from error

    def _unavailable(self, what: str, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"{myself()} can't {what} the checkpoint store {self.describe()}: {type(error).__name__}: {error}; see whether "
            "this machine reaches it, with credentials that may read and write"
        )


def _object_name(index: int, path: str) -> str:
    """Return what a file is called in the store: unique by its number, and known by the end of its path."""
    return f"{index}-{_PLAIN.sub('_', posixpath.basename(path))[-_PLAIN_CHARS:]}"
