"""Working folders of attempts, in which relative reads find the program's files.

A working folder mirrors the program's folder with real folders and links to files, so new files of different attempts
never conflict. Beside it are links to the neighbours of the program's folder, so ``../shared/x.csv`` can be read. Some
folders are one link to the original and stay shared: hidden folders, environments, packages, caches, disks, and large
folders. A linked file that a program opens for writing is first replaced by the attempt's own copy (``own_copies``).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

#: Maximum number of mirrored entries below the top level, which is always mirrored in full. Making and removing a link
#: takes about 10 µs each, and several times as much on a busy disk.
MOST_LINKS: Final = 2_000
#: Maximum number of linked neighbours. With more, the parent is a folder such as /tmp or /home, and none is linked: a
#: part of them would make the result of ``../x`` random.
MOST_NEIGHBOURS: Final = 500
#: Maximum number of entries read to find suitable folders, per link: 20,000 take about 10 ms.
READ_FOR_LINK: Final = 10
#: Maximum depth of mirrored folders, to limit recursion and open files.
DEEPEST: Final = 32
#: Folder for files that an attempt has written to ``..``, among the kept files.
PARENT_FOLDER: Final = "parent-folder"

#: Folder beside the places, with one link to each original. Links in working folders are hard links to these.
KEPT_LINKS: Final = ".links"
#: File in an attempt's place that names the program's folder.
RECORD: Final = ".mqtune-source"
#: The working folder's name if the program's folder is "/".
_ROOT_NAME: Final = "root"
#: Folders linked whole, beside hidden ones: programs hardly ever write results there.
_WHOLE: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
#: Entries that mark further such folders: virtual and conda environments, and Python packages.
_WHOLE_MARKS: Final = frozenset({"pyvenv.cfg", "conda-meta", "__init__.py"})
#: Errors for a rejected name or a path that became too long. The entry is left out.
_NAME_ERRORS: Final = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EEXIST})

_Entries = list[os.DirEntry[str]]


class _Folder(NamedTuple):
    """A folder to mirror: its path, the path of its mirror, and its entries."""

    path: str
    mirror: str
    entries: _Entries


def make(
    source: Path,
    place: Path,
    *,
    skip: Collection[Path] = (),
    most_links: int = MOST_LINKS,
    most_neighbours: int = MOST_NEIGHBOURS,
) -> Path:
    """Fill the new folder *place* for one attempt, and return the working directory in it.

    Args:
        source: the folder in which the program would run without mqtune.
        place: the attempt's place. It is created if it does not exist. Its parent folder counts as skipped.
        skip: folders that are empty in the attempt: folders with working folders or links to them. Otherwise a program
            that follows links, such as ``glob.glob("**", recursive=True)``, would find its own folder in itself,
            without end.
        most_links: maximum number of mirrored entries below the top level.
        most_neighbours: maximum number of linked neighbours.

    Raises:
        OSError: *place* can't be written. :func:`discard` deletes a partial place.
    """
    root = os.path.realpath(source)
    working = working_path(source, place)
    place.mkdir(exist_ok=True)
    own = os.path.realpath(place)
    closed = {own, os.path.dirname(own)}
    for path in skip:  # A skipped path may itself be a link.
        closed |= {os.path.realpath(path), _join(os.path.realpath(path.parent), path.name)}
    mirror = _Mirror(closed, own, most_links)
    mirror.fill(root, str(working))
    if root != os.sep:
        parent, name = os.path.split(root)
        neighbours = [entry for entry in _entries(parent, most_neighbours + 2) or () if entry.name != name]
        if len(neighbours) <= most_neighbours:
            mirror.link_all(parent, str(place), neighbours)
    # Written last: its time is the attempt's earliest start.
    (place / RECORD).write_bytes(os.fsencode(root))
    return working


def settle(place: Path, working: Path, target: Path) -> bool:
    """Move the new files of an ended attempt to *target*, and delete the rest of its place.

    Returns whether anything was new. All processes of the attempt must have ended. Links made by :func:`make` and empty
    folders are removed. Files, and links made by the program, stay. Files written to ``..`` are moved to the folder
    *parent-folder* of the target. Nothing outside *place* and *target* is changed. If the target can't be written, the
    new files stay in *place*, and the log says so.

    Args:
        place: the attempt's place, on the same file system as *target*.
        working: the working directory, as :func:`make` returned it.
        target: folder for the new files: a missing path, an empty folder, or a link, which is replaced.
    """
    if not os.path.lexists(place):
        return False
    try:
        return _settle(place, working, target)
    except OSError as error:
        logger.warning("Some files of an ended attempt stay in %s: %s.", place, error)
        return True


def discard(place: Path) -> None:
    """Delete a place that no attempt has used. Links are removed and never followed."""
    shutil.rmtree(place, ignore_errors=True)


class _Mirror:
    """Makes the links of one attempt.

    ``closed`` are folders that stay empty, ``own`` is the attempt's place, and ``most_links`` limits the links.
    """

    def __init__(self, closed: Collection[str], own: str, most_links: int) -> None:
        self._closed = closed
        self._most_links = most_links
        self._links = os.path.join(os.path.dirname(own), KEPT_LINKS)
        with contextlib.suppress(OSError):
            os.mkdir(self._links)
        #: Folders around the attempt's place: a link to one would lead a program into its own folder.
        self._around = {own, *map(str, Path(own).parents)}

    def link_all(self, path: str, mirror: str, entries: _Entries) -> None:
        """Make a link to each of a folder's entries."""
        for entry in entries:
            self._link(_join(path, entry.name), _join(mirror, entry.name))

    def fill(self, source: str, working: str) -> None:
        """Mirror a folder level by level, smaller folders first.

        A folder that exceeds the rest of the limit becomes one link.
        """
        os.mkdir(working)
        to_read, to_mirror = READ_FOR_LINK * self._most_links, self._most_links
        level = [_Folder(source, working, _entries(source, None) or [])]
        device = _device(source)
        for depth in range(DEEPEST):
            candidates: list[_Folder] = []
            for folder in level:
                whole: _Entries = []
                for entry in folder.entries:
                    entries = None
                    if depth + 1 < DEEPEST and to_read > 0 and self._may_enter(folder.path, entry, device):
                        # One entry above the limit shows that the folder is too large.
                        entries = _entries(_join(folder.path, entry.name), to_mirror + 1)
                        to_read -= len(entries or ())
                    if entries is None or any(below.name in _WHOLE_MARKS for below in entries):
                        whole.append(entry)
                    else:
                        path, mirror = _join(folder.path, entry.name), _join(folder.mirror, entry.name)
                        candidates.append(_Folder(path, mirror, entries))
                self.link_all(folder.path, folder.mirror, whole)
            level = []
            for folder in sorted(candidates, key=lambda candidate: len(candidate.entries)):
                if len(folder.entries) > to_mirror:
                    self._link(folder.path, folder.mirror)
                elif _try_name(os.mkdir, folder.mirror):
                    to_mirror -= len(folder.entries)
                    level.append(folder)

    def _link(self, original: str, mirror: str) -> None:
        if original in self._closed or original in self._around:
            _try_name(os.mkdir, mirror)
        else:
            _try_name(self._make_link, original, mirror)

    def _make_link(self, original: str, mirror: str) -> None:
        """Make a link as a hard link to an earlier attempt's link: ten times as fast as a new link."""
        kept = _join(self._links, hashlib.sha256(os.fsencode(original)).hexdigest())
        try:
            os.link(kept, mirror, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError:
            # It is the first of its kind, or the file system has no hard links to links, or no more of them.
            os.symlink(original, mirror)
            with contextlib.suppress(OSError):
                os.link(mirror, kept, follow_symlinks=False)

    def _may_enter(self, path: str, entry: os.DirEntry[str], device: int) -> bool:
        """Whether an entry is a folder to mirror if it is small enough."""
        try:
            return (
                entry.is_dir(follow_symlinks=False)
                and not _is_whole(entry.name)
                and _join(path, entry.name) not in self._closed
                # A mounted disk is data, or a tree such as /proc.
                and entry.stat(follow_symlinks=False).st_dev == device
            )
        except OSError:
            return False


def _settle(place: Path, working: Path, target: Path) -> bool:
    try:
        source: str | None = _read_record(place)
    except OSError:
        source = None  # Deleted by the program. No link is known as one of make's, so all are kept.
    with _opened(os.fspath(place)) as folder:
        inside = _clean_below(folder, working.name, source, 1)
        others = {RECORD} if inside is None else {RECORD, working.name}
        outside = _clean(folder, source and os.path.dirname(source), 1, others)
    kept = working
    if outside:
        if inside is None:  # The program has deleted or replaced its working directory.
            kept = _new_folder(place, "kept")
        beside = _new_folder(kept, PARENT_FOLDER)
        for name in outside:
            os.rename(place / name, beside / name)
    if target.is_symlink():
        target.unlink()
    if inside or outside:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(kept, target)
    elif inside is not None:
        os.rmdir(working)
    # Only empty folders are removed here, so an overlooked file can't be lost.
    (place / RECORD).unlink(missing_ok=True)
    os.rmdir(place)
    return bool(inside or outside)


def _clean(folder: int, original: str | None, depth: int, others: Collection[str] = ()) -> list[str]:
    """Remove make's links and empty folders from an open folder, except *others*.

    Returns the names of the remaining entries.
    """
    with os.scandir(folder) as listing:
        entries = [entry for entry in listing if entry.name not in others]
    return [
        entry.name for entry in entries if not _remove(entry, folder, original and _join(original, entry.name), depth)
    ]


def _clean_below(folder: int, name: str, original: str | None, depth: int) -> list[str] | None:
    try:
        with _opened(name, folder) as below:
            return _clean(below, original, depth)
    except OSError:
        return None


def _remove(entry: os.DirEntry[str], folder: int, original: str | None, depth: int) -> bool:
    try:
        if entry.is_symlink():
            if os.readlink(entry.name, dir_fd=folder) != original:
                return False
            os.unlink(entry.name, dir_fd=folder)
            return True
        is_mirror = depth < DEEPEST and entry.is_dir(follow_symlinks=False)
        if is_mirror and _clean_below(folder, entry.name, original, depth + 1) == []:
            os.rmdir(entry.name, dir_fd=folder)
            return True
    except OSError:
        pass  # It stays, and is kept with the new files.
    return False


@contextlib.contextmanager
def _opened(path: str, folder: int | None = None) -> Iterator[int]:
    """Open a folder. Links are refused, so cleaning stays in the attempt's place."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = stat.S_IMODE(os.fstat(opened).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            # Entries of a folder that the program has made read-only can't be removed.
            with contextlib.suppress(OSError):
                os.fchmod(opened, mode | stat.S_IRWXU)
        yield opened
    finally:
        os.close(opened)


def _read_record(place: Path) -> str:
    return os.fsdecode((place / RECORD).read_bytes())


def _entries(path: str, most: int | None) -> _Entries | None:
    try:
        with os.scandir(path) as listing:
            return list(islice(listing, most))
    except OSError:
        return None


def _device(path: str) -> int:
    try:
        return os.stat(path).st_dev
    except OSError:
        return -1


def _is_whole(name: str) -> bool:
    return name.startswith(".") or name in _WHOLE


def _new_folder(parent: Path, name: str) -> Path:
    path, number = parent / name, 1
    while True:
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1
            path = parent / f"{name}-{number}"


def _join(path: str, name: str) -> str:
    return path + name if path == os.sep else f"{path}/{name}"


def _try_name(create: Callable[..., None], *paths: str) -> bool:
    """Create a link or folder. Return False if the file system rejects the name."""
    try:
        create(*paths)
    except OSError as error:
        if error.errno not in _NAME_ERRORS:
            raise
        return False
    return True


def working_path(source: Path, place: Path) -> Path:
    """Return the path of the working directory that :func:`make` makes in a place."""
    return place / (os.path.basename(os.path.realpath(source)) or _ROOT_NAME)
