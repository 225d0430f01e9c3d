"""The checkpoint store at a URL of fsspec: object stores, SFTP, HDFS and others."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from mqtune.checkpoints.checkpoint import Counters
from mqtune.checkpoints.dicts import plain_counters
from mqtune.checkpoints.files import DISK_FULL, SourceFile, hash_file, open_source, read_file, scan, status_of, token
from mqtune.checkpoints.manifest import Arrival, Manifest, StoredFile, arriving
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
    without_secrets,
)
from mqtune.core.errors import CheckpointBroken, ConfigurationError, MqtuneError, StoreUnavailable
from mqtune.core.trial import CheckpointId

#: The folder of manifests, by id. A checkpoint exists if its manifest does, which is written last and atomically.
_MANIFESTS: Final = "manifests"
#: The folder of files, by id and by save. So the files of two saves never mix.
_CONTENT: Final = "content"
_TENANTS: Final = "tenants"
_STAGING: Final = "staging"
#: Characters that fsspec may read as a pattern.
_PATTERN: Final = re.compile(r"[*?\[\]]")
#: Characters that an object's name replaces by underscores.
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
#: How many characters of a file's name an object's name has, for people who inspect the store.
_NAME_CHARS: Final = 80
#: Smaller files are sent in one request.
_WHOLE_BYTES: Final = 2**24


def protocols() -> frozenset[str]:
    """Return the URL schemes that fsspec knows, even those without an installed driver."""
    try:
        import fsspec  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        return frozenset()
    return frozenset({*fsspec.available_protocols(), *fsspec.registry})


class FsspecStore(CheckpointStore):
    """Stores checkpoints below a URL that fsspec opens.

    It needs the extra ``mqtune[fsspec]`` and the protocol's driver. Object stores can't rename folders, so each save
    writes its files below ``content/<id>/<save>/``, under names that every store accepts. Then it writes the manifest
    aside and moves it to ``manifests/<id>.json``. The move is atomic in every object store and file system. If two
    processes save under the same new id at the same time, one of the saves remains, complete and without an error.

    Args:
        url: a folder or prefix, such as ``s3://bucket/folder``. ``create`` makes it.
        name: the name in the mark that identifies the store; empty for any store.

    Raises:
        ConfigurationError: fsspec can't read the URL.
        StoreUnavailable: fsspec, or the protocol's driver, is not installed here.
    """

    def __init__(self, url: str, *, name: str = "") -> None:
        self._url = url.rstrip("/") if not url.endswith("://") else url
        self._name = name
        if _PATTERN.search(url):
            raise ConfigurationError(
                f"the place for checkpoints is {self.describe()!r}; it must not contain any of * ? [ ]"
            )
        try:
            import fsspec  # noqa: PLC0415 - an extra, and slow to import
        except ImportError:
            raise StoreUnavailable(
                f"{myself()} can't open the checkpoint store {self.describe()}: fsspec is not installed; install "
                "mqtune[fsspec] there, or a package with a store for such URLs, or use a folder that all machines share"
            ) from None
        try:
            self._files, self._root = fsspec.url_to_fs(self._url)
        except ImportError as error:
            raise StoreUnavailable(
                f"{myself()} can't open the checkpoint store {self.describe()}: {error}; install that package there"
            ) from None
        except ValueError as error:
            raise ConfigurationError(
                f"the place for checkpoints is {self.describe()!r}, which fsspec can't open: {error}; name a folder, "
                "or a URL such as s3://bucket/folder"
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

    def save(self, id: CheckpointId, source: Path, counters: Counters) -> int:  # noqa: A002
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
                stored = self._get(place)
                if stored is None:
                    self._put(place, manifest.encode())
        except BaseException:
            self._undo_save(id, folder, content)
            raise
        if stored is not None:
            self._remove(folder)
            manifest.check_equals(Manifest.decode(stored, id, place), self.describe())
        return manifest.size

    def _send(self, index: int, file: SourceFile, folder: str) -> StoredFile:
        place = posixpath.join(folder, _object_name(index, file.path))
        before = status_of(file)
        with open_source(file) as read:
            if file.size <= _WHOLE_BYTES:
                data, xxh3 = read_file(read, file.size)
                with self._storing("write to"):
                    self._files.pipe_file(place, data)
                return StoredFile(file.path, len(data), xxh3, file.executable)
            size, xxh3 = hash_file(read, file.size)
        with self._storing("write to"):
            # The protocol's driver chooses the best number of requests.
            self._files.put_file(file.place, place)
        if status_of(file) != before:
            raise ConfigurationError(
                f"checkpoint: {file.place!r} changed while it was saved; don't change a checkpoint's folder until "
                "report() returns"
            )
        return StoredFile(file.path, size, xxh3, file.executable)

    def _undo_save(self, id: CheckpointId, folder: str, content: str) -> None:  # noqa: A002
        """Undo a save that was interrupted, even if the checkpoint is already visible."""
        with suppress(MqtuneError):
            if self.exists(id) and self._manifest(id).content == content:
                self.delete(id)
        self._remove(folder)

    def fetch(self, id: CheckpointId, target: Path) -> Counters:  # noqa: A002
        manifest = self._manifest(id)
        with arriving(manifest, target) as arrival:
            for index, file in enumerate(manifest.files):
                self._fetch_file(index, file, manifest, arrival)
        return dict(manifest.counters)

    def _fetch_file(self, index: int, file: StoredFile, manifest: Manifest, arrival: Arrival) -> None:
        place = self._at(_CONTENT, manifest.id, manifest.content, _object_name(index, file.path))
        try:
            # The protocol's driver chooses the best number of requests.
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
        arrival.take(file)

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
            now = self._now()
            named = {id_: self._content_of(id_) for id_ in self.ids()}
            left = self._list(self._at(_STAGING))
            for folder in self._list(self._at(_CONTENT)):
                saves = self._list(folder)
                keep = named.get(CheckpointId(posixpath.basename(folder)), "")
                left += [save for save in saves if posixpath.basename(save) != keep] if saves else [folder]
            for path in left:
                # If the store has no times of change, the difference is NaN, and everything stays.
                if now - self._newest_change(path) >= older_than_s:
                    self._remove(path)
                    swept += 1
        return swept

    def claim(self, tenant: Tenant) -> None:
        with self._storing("write to"):
            self._files.makedirs(self._at(_TENANTS), exist_ok=True)
            self._put(self._tenant_at(tenant), tenant.encode())

    def release(self, tenant: Tenant) -> None:
        with self._storing("delete from"), suppress(FileNotFoundError):
            self._files.rm_file(self._tenant_at(tenant))

    def tenants(self) -> list[Tenant]:
        with self._storing("read"):
            marks = map(self._get, sorted(self._list(self._at(_TENANTS))))
            return [Tenant.decode(mark) for mark in marks if mark is not None]

    def _tenant_at(self, tenant: Tenant) -> str:
        return self._at(_TENANTS, tenant.file_name)

    def folders(self) -> list[str]:
        with self._storing("look into"):
            return sorted(map(posixpath.basename, self._list(self._root)))

    def idle_s(self) -> float:
        with self._storing("look into"):
            # If the store has no times of change, this is the difference of two infinities, NaN, and the result is 0.
            return max(0.0, -(self._newest_change(self._root) - self._now()))

    def remove(self) -> None:
        super().remove()
        for name in (_TENANTS, _MANIFESTS, _CONTENT, _STAGING, MARK):
            self._remove(self._at(name))
        with suppress(Exception):
            self._files.rmdir(self._root)

    def _now(self) -> float:
        """Return the time of the store's clock, or infinity if the store has no times of change."""
        probe = self._at(_STAGING, token())
        self._files.pipe_file(probe, b"")
        now = self._newest_change(probe)
        self._files.rm_file(probe)
        return now

    def _content_of(self, id: CheckpointId) -> str:  # noqa: A002
        data = self._get(self._manifest_at(id))
        return Manifest.decode(data, id, self._manifest_at(id)).content if data is not None else ""

    def _at(self, *names: str) -> str:
        return posixpath.join(self._root, *names)

    def _manifest_at(self, id: str) -> str:  # noqa: A002
        return self._at(_MANIFESTS, f"{id}.json")

    def _get(self, place: str) -> bytes | None:
        try:
            data: bytes = self._files.cat_file(place)
        except FileNotFoundError:
            return None
        return data

    def _put(self, place: str, data: bytes) -> None:
        """Write an object atomically: write it aside, and then move it to its place."""
        aside = self._at(_STAGING, token())
        try:
            self._files.pipe_file(aside, data)
            self._files.invalidate_cache()
            self._files.mv(aside, place)
        except BaseException:
            self._remove(aside)
            raise

    def _list(self, folder: str) -> list[str]:
        """Return the paths of the objects in a folder. A missing folder counts as empty."""
        self._files.invalidate_cache()
        try:
            listed = self._files.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        paths = (path.rstrip("/") for path in listed)
        # Some stores list a folder as an entry of itself.
        return [path for path in paths if posixpath.basename(path) != posixpath.basename(folder)]

    def _newest_change(self, path: str) -> float:
        """Return the store's time of the last change at or below *path*. Infinity if it is unknown."""
        self._files.invalidate_cache()
        try:
            return max(float(self._files.modified(entry).timestamp()) for entry in self._files.find(path) or [path])
        # Some of fsspec's stores have no times of change.
        except (FileNotFoundError, NotImplementedError):
            return math.inf

    def _remove(self, path: str) -> None:
        """Remove everything at or below *path*. Ignore errors: a later ``sweep`` removes the rest."""
        with suppress(Exception):
            self._files.invalidate_cache()
            self._files.rm(path, recursive=True)

    @contextmanager
    def _storing(self, action: str) -> Iterator[None]:
        """Turn any error in the block into StoreUnavailable. fsspec's drivers raise many kinds."""
        try:
            yield
        except MqtuneError:
            raise
        except Exception as error:
            raise self._unavailable(action, error) from error

    def _unavailable(self, action: str, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"{myself()} can't {action} the checkpoint store {self.describe()}: {type(error).__name__}: {error}; check "
            "whether this machine reaches it, with credentials that may read and write"
        )


def _object_name(index: int, path: str) -> str:
    """Return the name of a file's object: its unique number, and the end of the file's name."""
    return f"{index}-{_UNSAFE.sub('_', posixpath.basename(path))[-_NAME_CHARS:]}"
