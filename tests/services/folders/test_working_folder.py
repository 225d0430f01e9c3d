"""Working folders of attempts: reads work, new files are kept, originals stay."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from mqtune.services.folders.working_folder import discard, make, settle

#: A name that is no UTF-8 and has a newline.
ODD: Final = os.fsdecode(b"odd\n\xff")
#: The folder of the files that were written to ``..``, among the kept ones.
PARENT_FOLDER: Final = "parent-folder"


def build(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files below a folder. A path that ends with a slash is an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    return folder


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time and content (or link text) of a folder and all its entries."""
    paths = [str(folder)]
    for parent, folders, files in os.walk(folder):
        paths += (os.path.join(parent, name) for name in (*folders, *files))
    return {os.path.relpath(path, folder): state_of(path) for path in paths}


def state_of(path: str) -> tuple[int, int, bytes]:
    status = os.lstat(path)
    content = b""
    if stat.S_ISLNK(status.st_mode):
        content = os.fsencode(os.readlink(path))
    elif stat.S_ISREG(status.st_mode):
        content = Path(path).read_bytes()
    return status.st_mode, status.st_mtime_ns, content


def names(folder: Path) -> set[str]:
    """Return the paths below a folder of all entries but folders."""
    return {name for name, (mode, _, _) in tree(folder).items() if not stat.S_ISDIR(mode)} if folder.exists() else set()


class Attempt:
    """An attempt in a working folder of its own."""

    def __init__(self, source: Path, root: Path, number: int = 1, *skip: Path, **bounds: Any) -> None:
        self.place = root / "places" / str(number)
        self.place.parent.mkdir(parents=True, exist_ok=True)
        self.target = root / f"target{number}"
        self.folder = make(source, self.place, skip=skip, **bounds)

    def settle(self) -> bool:
        """End the attempt."""
        return settle(self.place, self.folder, self.target)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with data, earlier results and a neighbour."""
    build(tmp_path / "work/shared", {"x.csv": "shared"})
    files = {"train.py": "", "data.csv": "1,2", "data/train.csv": "3,4", "outputs/old.txt": "old", ".git/HEAD": "ref"}
    return build(tmp_path / "work/project", {**files, "lightning_logs/version_0/metrics.csv": "loss"})


@pytest.fixture
def attempt(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """An attempt of the project. The test runs in its working folder."""
    attempt = Attempt(project, tmp_path)
    monkeypatch.chdir(attempt.folder)
    return attempt


@pytest.mark.parametrize("is_new", [True, False])
def test_a_target_that_is_a_link_to_the_working_folder_is_replaced(attempt: Attempt, is_new: bool):
    attempt.target.symlink_to(attempt.folder)
    if is_new:
        Path("new").touch()

    assert attempt.settle() == is_new
    assert not attempt.target.is_symlink()
    assert attempt.target.exists() == is_new
    assert not attempt.place.exists()
    assert not attempt.settle(), "nothing is left"


def test_files_written_to_the_parent_are_kept_in_a_folder_of_that_name(attempt: Attempt, project: Path):
    Path("../up.txt").write_text("up", encoding="utf-8")
    Path(PARENT_FOLDER).mkdir()
    Path(PARENT_FOLDER, "own.txt").touch()

    assert attempt.settle()
    assert names(attempt.target) == {f"{PARENT_FOLDER}/own.txt", f"{PARENT_FOLDER}-2/up.txt"}
    assert set(os.listdir(project.parent)) == {"shared", "project"}


@pytest.mark.parametrize("replacement", ["nothing", "file", "link"])
def test_a_program_may_delete_its_working_folder(attempt: Attempt, project: Path, replacement: str):
    before = tree(project.parent)
    shutil.rmtree(attempt.folder)
    if replacement == "file":
        attempt.folder.write_text("a file", encoding="utf-8")
    elif replacement == "link":
        attempt.folder.symlink_to(project / "data")

    assert attempt.settle() == (replacement != "nothing")
    assert names(attempt.target) == ({f"{PARENT_FOLDER}/project"} if replacement != "nothing" else set())
    assert tree(project.parent) == before


def test_folders_beyond_the_limit_are_one_link_the_largest_first(project: Path, tmp_path: Path):
    build(project / "images", {f"{number}.png": "" for number in range(12)})
    build(project / "runs/old", {f"{number}.txt": "" for number in range(8)})

    attempt = Attempt(project, tmp_path, most_links=10)

    folders = {path for path in attempt.folder.rglob("*") if path.is_dir()}
    linked, mirrored = (
        {str(path.relative_to(attempt.folder)) for path in folders if path.is_symlink() == is_link}
        for is_link in (True, False)
    )
    assert linked == {".git", "images", "runs/old"}
    assert mirrored == {"data", "lightning_logs", "lightning_logs/version_0", "outputs", "runs"}


def test_a_full_disk_is_an_error_and_the_place_can_be_discarded(project: Path, tmp_path: Path):
    before = tree(project.parent)
    no_space = patch.object(os, "symlink", side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with no_space, pytest.raises(OSError, match="No space"):
        Attempt(project, tmp_path)
    places = [tmp_path / "places/1", Attempt(project, tmp_path, 2).place]

    for place in [*places, *places]:
        discard(place)

    assert not any(place.exists() for place in places)
    assert tree(project.parent) == before


def test_folders_that_cannot_be_read_are_one_link(project: Path, tmp_path: Path):
    scandir, closed = os.scandir, {str(project / "data"), str(project.parent)}

    def refuse(path: str | int) -> object:
        if path in closed:
            raise PermissionError(path)
        return scandir(path)

    with patch.object(os, "scandir", refuse):
        attempt = Attempt(project, tmp_path)

    assert os.readlink(attempt.folder / "data") == str(project / "data")
    assert set(os.listdir(attempt.place)) == {"project", ".mqtune-source"}


def test_a_folder_that_the_program_has_made_read_only_is_cleaned_all_the_same(attempt: Attempt):
    Path("outputs/new").touch()
    os.chmod("outputs", 0o500)
    os.chmod(".", 0o500)

    assert attempt.settle()
    assert names(attempt.target) == {"outputs/new"}


NAMES: Final = st.sampled_from(["a", "b", ".h", "__pycache__", ODD])
PATHS: Final = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TREES: Final = st.dictionaries(PATHS, st.sampled_from(["file", "folder", "link", "dangling"]), max_size=8)
RELATIVE: Final = st.one_of(PATHS, PATHS.map("../".__add__), PATHS.map("../neighbour/".__add__))
KINDS: Final = st.sampled_from(["write", "append", "replace", "unlink", "rmtree", "mkdir", "link", "rename"])
OPERATIONS: Final = st.lists(st.tuples(KINDS, RELATIVE, RELATIVE), max_size=12)


def grow(folder: Path, kinds: Mapping[str, str]) -> None:
    """Make a tree; an entry below a file is left out."""
    folder.mkdir()
    for name, kind in kinds.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "file":
                path.write_text(name, encoding="utf-8", errors="surrogateescape")
            elif kind == "folder":
                path.mkdir()
            else:
                path.symlink_to(folder if kind == "link" else "nowhere")
        except OSError:
            continue


def operate(working: Path, operation: str, first: str, second: str) -> None:
    """Do what a program does by relative paths; errors are the program's own."""
    path = working / first
    match operation:
        case "write" | "append":
            with path.open(operation[0], encoding="utf-8") as file:
                file.write("new")
        case "replace":
            temporary = working / "temporary"
            temporary.write_text("replaced", encoding="utf-8")
            os.replace(temporary, path)
        case "rmtree":
            shutil.rmtree(path)
        case "mkdir":
            path.mkdir(parents=True)
        case "link":
            path.symlink_to(second)
        case "rename":
            path.rename(working / second)
        case _:
            path.unlink()


def is_in(path: Path, folder: Path) -> bool:
    """Whether the entry itself, not what it links to, is in a folder."""
    return Path(os.path.realpath(path.parent)).is_relative_to(folder)


@given(TREES, TREES, OPERATIONS, st.sampled_from([0, 2, 2_000]))
def test_settle_keeps_each_new_file_and_changes_no_original(
    kinds: dict[str, str], neighbours: dict[str, str], operations: list[tuple[str, str, str]], most: int
):
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary).resolve()
        originals = root / "work"
        originals.mkdir()
        grow(originals / "source", kinds)
        grow(originals / "neighbour", neighbours)
        before = tree(originals)
        attempt = Attempt(originals / "source", root, most_links=most)
        written = set()
        for operation, first, second in operations:
            paths = [attempt.folder / first, attempt.folder / second]
            # Within folders that are linked whole a program works on the originals, as documented.
            if any(not is_in(path, attempt.place) for path in paths):
                continue
            if operation in {"write", "append"}:
                written.add(os.path.relpath(os.path.realpath(paths[0]), originals))
                written.add(os.path.dirname(os.path.relpath(os.path.realpath(paths[0]), originals)) or ".")
            try:
                operate(attempt.folder, operation, first, second)
            except OSError:
                continue
        ended = tree(originals)
        assert {name for name in ended.keys() | before.keys() if ended.get(name) != before.get(name)} <= written
        expected = sorted(
            content
            for name, (mode, _, content) in tree(attempt.place).items()
            if name != ".mqtune-source" and stat.S_ISREG(mode)
        )

        has_new = attempt.settle()

        assert tree(originals) == ended
        kept = tree(attempt.target) if attempt.target.exists() else {}
        assert sorted(content for mode, _, content in kept.values() if stat.S_ISREG(mode)) == expected
        assert has_new == attempt.target.exists() >= bool(expected)
        assert not attempt.place.exists()
