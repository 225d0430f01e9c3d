"""Operations on local files and folders: list, hash, copy, flush and remove."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import xxhash

from mqtune.core.errors import ConfigurationError
from mqtune.core.machine import open_regular

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_TOKEN_BYTES: Final = 8
#: How many files are flushed at the same time. File systems then need a third of the time.
_AT_ONCE: Final = 8
#: Some file systems can't flush a folder, and need not.
_NOTHING_TO_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP})
#: The bytes of one read. They stay in a core's cache until they are hashed and written.
_CHUNK_BYTES: Final = 2**18
#: After each of these parts of a copy, the disk begins to write it, so that the final flush is short.
_FLUSHED_BYTES: Final = 2**24

T = TypeVar("T")
R = TypeVar("R")


def token() -> str:
    """Return a unique name."""
    return os.urandom(_TOKEN_BYTES).hex()


@contextmanager
def creating(path: str, *, executable: bool = False) -> Iterator[int]:
    """Create a new file, and yield its descriptor for writing and reading."""
    mode = 0o777 if executable else 0o666
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        yield descriptor
    finally:
        # A network file system may report a full disk only now.
        os.close(descriptor)


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of *data*, in as many calls as needed."""
    while data:
        data = data[os.write(descriptor, data) :]


def begin_to_flush(descriptor: int, begin: int, size: int) -> None:
    """Let the disk begin to write a part of a file. Don't wait. Do nothing if it is unsupported."""
    if hasattr(os, "posix_fadvise"):
        # Linux begins to write dirty pages, and drops the rest from its cache.
        os.posix_fadvise(descriptor, begin, size, os.POSIX_FADV_DONTNEED)


def write_file(path: str, data: bytes) -> None:
    """Create a new file with *data* as its content."""
    with creating(path) as descriptor:
        write_all(descriptor, memoryview(data))


def sync(path: str) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOTHING_TO_SYNC or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def sync_all(paths: Sequence[str]) -> None:
    """Flush files and folders to disk."""
    if len(paths) > _AT_ONCE:
        in_threads(_AT_ONCE, sync, paths)
        return
    for path in paths:
        sync(path)


def in_threads(threads: int, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call *function* for each item in threads. Return the results in order.

    Stop after an error.
    """
    # Few trials need it, and it is slow to import.
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(threads, "mqtune-files") as pool:
        try:
            return list(pool.map(function, items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def newest_change(path: str) -> float:
    """Return the file system's time of the last change at or below *path*. 0 if it is missing."""
    try:
        newest = os.stat(path, follow_symlinks=False).st_ctime
        with os.scandir(path) as entries:
            for entry in entries:
                newest = max(newest, newest_change(entry.path))
    except NotADirectoryError:
        return newest
    except FileNotFoundError:
        return 0.0
    return newest


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Remove a folder with its content. Ignore errors: a later ``sweep`` removes the rest."""
    # Few trials need it, and it is slow to import.
    import shutil  # noqa: PLC0415

    shutil.rmtree(folder, ignore_errors=True)


class SourceFile(NamedTuple):
    """A file to save. ``path`` is relative, with slashes, and ``place`` is where to read it."""

    path: str
    place: str
    size: int
    executable: bool


class Listing(NamedTuple):
    """The content of a folder, sorted. Folders come before their content.

    ``shared`` says whether some files have links, so that they may be changed under other names.
    """

    files: list[SourceFile]
    directories: list[str]
    shared: bool


def scan(source: Path) -> Listing:
    """List the content of the folder *source*.

    A link to a file inside of the folder counts as that file.

    Raises:
        ConfigurationError: *source* is not a folder, can't be read, or has invalid content: a socket, a pipe, a device,
            a link to a folder, to nothing or to the outside, or a name that is not UTF-8.
    """
    files: list[SourceFile] = []
    directories: list[str] = []
    shared = False
    root = os.path.realpath(source)
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with _from_source(os.path.join(root, folder)), os.scandir(os.path.join(root, folder)) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            _refuse_bad_name(path, source)
            if entry.is_dir(follow_symlinks=False):
                directories.append(path)
                waiting.append(path)
                continue
            place = _link_target(entry.path, path, root, source) if entry.is_symlink() else entry.path
            with _from_source(place):
                status = os.stat(place, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigurationError(
                    f"checkpoint: {path!r} in {os.fspath(source)!r} is {_kind(status.st_mode)}; a checkpoint may only "
                    "have files and folders: remove it"
                )
            shared = shared or entry.is_symlink() or status.st_nlink > 1
            files.append(SourceFile(path, place, status.st_size, bool(status.st_mode & stat.S_IXUSR)))
    return Listing(sorted(files), sorted(directories), shared)


def _link_target(place: str, path: str, root: str, source: Path) -> str:
    target = os.path.realpath(place)
    inside = target.startswith(f"{root}{os.sep}")
    if inside and os.path.isfile(target):
        return target
    kind = "a folder" if inside and os.path.isdir(target) else "something outside of it" if not inside else "nothing"
    raise ConfigurationError(
        f"checkpoint: {path!r} in {os.fspath(source)!r} is a link to {kind} ({os.readlink(place)!r}); only links to "
        "files inside of the folder are followed: put a copy in its place"
    )


def _refuse_bad_name(path: str, source: Path) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"checkpoint: the name {os.fsencode(path)!r} in {os.fspath(source)!r} is not UTF-8; rename it"
        ) from None


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(mode), "not a file")


class Reader:
    """An open file. A call reads into a buffer and returns the number of bytes; 0 at the end.

    ``translating`` returns a context that turns errors of the operating system into mqtune's.
    """

    def __init__(self, descriptor: int, translating: Callable[[], AbstractContextManager[None]]) -> None:
        self.descriptor = descriptor
        self.translating = translating

    def __call__(self, buffer: memoryview) -> int:
        with self.translating():
            return os.readv(self.descriptor, [buffer])


@contextmanager
def reading(place: str, translating: Callable[[], AbstractContextManager[None]]) -> Iterator[Reader]:
    """Open a file for reading. See ``Reader`` for *translating*."""
    with translating():
        descriptor = open_regular(place)
    try:
        if hasattr(os, "posix_fadvise"):
            # This doubles the disk's readahead.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        yield Reader(descriptor, translating)
    finally:
        with translating():
            os.close(descriptor)


def open_source(file: SourceFile) -> AbstractContextManager[Reader]:
    """Open a file from ``scan`` for reading.

    Raises:
        ConfigurationError: the file can't be read.
    """
    return reading(file.place, lambda: _from_source(file.place))


def status_of(file: SourceFile) -> tuple[int, ...]:
    """Return values that change when a file is written or replaced."""
    with _from_source(file.place):
        status = os.stat(file.place, follow_symlinks=False)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@contextmanager
def _from_source(place: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigurationError(
            f"checkpoint: {place!r} does not exist, or is not a folder ({error.strerror}); complete a checkpoint's "
            "folder before you report it, and don't change it until report() returns"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"checkpoint: {place!r} can't be read: {error.strerror}") from None


def hash_file(read: Reader, size: int, *, flush: bool = False) -> tuple[int, str]:
    """Read a file of about *size* bytes to its end. Return its actual size and its hash.

    Args:
        flush: whether the disk should begin to write it.
    """
    begin_to_write = partial(begin_to_flush, read.descriptor) if flush else None
    return _read_to_end(read, size, None, begin_to_write)


def copy_file(read: Reader, size: int, descriptor: int, *, flush: bool = False) -> tuple[int, str]:
    """Copy a file of about *size* bytes to its end.

    Return the number of copied bytes and their hash. Each byte is read only once, so the hash belongs to the written
    bytes.

    Args:
        descriptor: the file to write. The operating system's errors about it are raised unchanged.
        flush: whether the disk should begin to write before the end.
    """
    begin_to_write = partial(begin_to_flush, descriptor) if flush else None
    return _read_to_end(read, size, partial(write_all, descriptor), begin_to_write)


def read_file(read: Reader, size: int) -> tuple[bytes, str]:
    """Read a file of about *size* bytes to its end. Return its content and its hash."""
    chunks: list[bytes] = []
    _, digest = _read_to_end(read, size, lambda data: chunks.append(bytes(data)), None)
    return b"".join(chunks), digest


def _read_to_end(
    read: Reader,
    expected: int,
    write: Callable[[memoryview], None] | None,
    begin_to_write: Callable[[int, int], None] | None,
) -> tuple[int, str]:
    """Read to the end, and pass the bytes to *write*, if any.

    Return the actual size and the hash.
    """
    # XXH3 (Collet, https://github.com/Cyan4973/xxHash) takes a fiftieth of a copy's time. It detects damage. A
    # cryptographic hash would not protect more, because an attacker with write access could replace the manifest, too.
    digest = xxhash.xxh3_128()
    # One byte more than expected, so that a small file needs one read.
    buffer = memoryview(bytearray(min(expected + 1, _CHUNK_BYTES)))
    size = begun = 0
    while count := read(buffer):
        digest.update(buffer[:count])
        if write is not None:
            write(buffer[:count])
        size += count
        if begin_to_write is not None and size - begun >= _FLUSHED_BYTES:
            begin_to_write(begun, size - begun)
            begun = size
    return size, digest.hexdigest()
