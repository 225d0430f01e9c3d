from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest

from mqtune.checkpoints import CheckpointStore, experiment_url, is_same_store, open_store, store_beside
from mqtune.core.errors import CheckpointExists, CheckpointVersionError, ConfigurationError, StoreUnavailable
from mqtune.testing.stores import files_in, saved_id, write_files


@pytest.fixture
def memory_url() -> Iterator[str]:
    url = f"memory://{uuid.uuid4().hex}/store"
    yield url
    files = fsspec.filesystem("memory")
    if files.exists(url):
        files.rm(url, recursive=True)


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("/a/b", "/a/b"),
        ("/a#b?c%41/d", "/a#b?c%41/d"),
        ("file:///a/b", "/a/b"),
        ("file://localhost/a%20b%23c", "/a b#c"),
        ("FILE:///a", "/a"),
        ("local:///a/b/", "/a/b"),
        ("~/a", f"{Path.home()}/a"),
        ("/with:colon/a", "/with:colon/a"),
    ],
)
def test_a_path_or_file_url_is_a_folder(url: str, folder: str) -> None:
    store = open_store(url)

    assert (type(store).__name__, store.describe()) == ("DirectoryStore", folder)
    assert open_store(store.url).describe() == folder


@pytest.mark.parametrize("url", ["", "  ", "file://", "file://host/a", "nosuch://a/b", "memory://a*", "memory://[a]"])
def test_a_place_that_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="place for checkpoints is"):
        open_store(url)


@pytest.mark.parametrize(
    ("place", "url"),
    [
        ("/data/a b", "file:///data/a%20b/x"),
        ("file:///data/", "file:///data/x"),
        ("s3://bucket/folder/", "s3://bucket/folder/x"),
        ("s3://bucket", "s3://bucket/x"),
        ("memory://", "memory://x"),
    ],
)
def test_each_experiment_has_a_store_of_its_own_below_a_place(place: str, url: str) -> None:
    assert experiment_url(place, "x") == url


def test_a_relative_path_is_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert open_store("checkpoints").describe() == f"{tmp_path}/checkpoints"
    assert experiment_url("checkpoints", "x") == f"file://{tmp_path}/checkpoints/x"
    for place, experiment in (("", "x"), ("/data", "../x"), ("/data", "")):
        with pytest.raises(ConfigurationError):
            experiment_url(place, experiment)


def test_a_store_whose_mark_can_not_be_read_is_refused(tmp_path: Path) -> None:
    store = open_store(os.fspath(tmp_path))
    store.create()

    for mark in ("", "[]", "{}"):
        (tmp_path / ".store" / "store.json").write_text(mark)
        with pytest.raises(StoreUnavailable, match=r"can't read store\.json"):
            store.check()
    (tmp_path / ".store" / "store.json").write_text('{"version": 2, "name": "a"}')
    with pytest.raises(CheckpointVersionError, match=r"version 2.*upgrade"):
        store.check()


STORE = """
from urllib.parse import urlsplit

import mqtune
from mqtune.checkpoints import CheckpointStore, open_store


class Shelf(CheckpointStore):
    url = None

    def __init__(self, url):
        self.url, self.inner = url, open_store(urlsplit(url).path)

    def describe(self):
        return self.url


for _name in ("create", "check", "save", "fetch", "exists", "ids", "delete", "sweep"):
    setattr(Shelf, _name, lambda self, *args, _name=_name: getattr(self.inner, _name)(*args))
Shelf.__abstractmethods__ = frozenset()


def fails(url):
    raise OSError("the shelf has fallen down")


def gives_text(url):
    return url
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a package that names a store in its metadata."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "shelves_for_tests.py").write_text(STORE)
    monkeypatch.syspath_prepend(site)

    def make(scheme: str, factory: str, package: str = "mqtune-shelves") -> None:
        info = site / f"{package.replace('-', '_')}-1.2.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        entry = f"[mqtune.checkpoint_stores]\n{scheme} = shelves_for_tests:{factory}\n"
        (info / "entry_points.txt").write_text(entry)

    return make


def test_a_package_brings_a_store_that_its_url_names(tmp_path: Path, install: Callable[..., None]) -> None:
    install("shelf", "Shelf")
    url = experiment_url(f"SHELF://{tmp_path}/books?colour=red", "x")

    store = open_store(url)

    assert type(store).__name__ == "Shelf"
    assert store.url == url == f"SHELF://{tmp_path}/books/x?colour=red"
    install("s3", "Shelf")
    assert type(open_store(f"s3://{tmp_path}/books")).__name__ == "Shelf", "it comes before fsspec's"
    install("file", "gives_text")
    # No package takes over a machine's folders.
    assert type(open_store(f"file://{tmp_path}")).__name__ == "DirectoryStore"


def test_an_unknown_scheme_is_refused_with_the_known_ones(install: Callable[..., None]) -> None:
    install("shelf", "Shelf")

    with pytest.raises(ConfigurationError) as caught:
        open_store("shlef://user:secret@library/books")

    said = str(caught.value)
    assert "shlef://…@library/books" in said
    assert {"file,", "memory,", "s3,", "shelf,"} <= set(said.split())
    assert "entry point 'shlef' in the group 'mqtune.checkpoint_stores'" in said


@pytest.mark.parametrize(
    ("factory", "error", "words"),
    [
        ("fails", StoreUnavailable, r"shelf://…@a with mqtune-shelves 1\.2 .*OSError: the shelf has fallen down"),
        ("absent", StoreUnavailable, r"mqtune-shelves 1\.2 \(shelves_for_tests:absent\): AttributeError"),
        ("gives_text", ConfigurationError, r"mqtune-shelves 1\.2 .* opened shelf://…@a as str"),
    ],
)
def test_a_packages_store_that_can_not_be_opened_names_the_package(
    factory: str, error: type[Exception], words: str, install: Callable[..., None]
) -> None:
    install("shelf", factory)

    with pytest.raises(error, match=words):
        open_store("shelf://user:secret@a")


def test_two_packages_for_one_scheme_are_refused_with_both_names(install: Callable[..., None]) -> None:
    install("shelf", "Shelf")
    install("shelf", "fails", "other-shelves")

    with pytest.raises(ConfigurationError, match=r"more than one .*mqtune-shelves .*other-shelves .*uninstall"):
        open_store("shelf://a")


def test_without_fsspec_or_a_driver_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(StoreUnavailable, match=r"memory://a.*install mqtune\[fsspec\]"):
        open_store("memory://a")
    monkeypatch.undo()

    def lacks_driver(url: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "url_to_fs", lacks_driver)
    with pytest.raises(StoreUnavailable, match=r"s3://bucket.*Install s3fs"):
        open_store("s3://bucket/folder")


def test_a_password_in_a_url_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec, "url_to_fs", lambda url: (fsspec.filesystem("memory"), "x"))

    store = open_store("sftp://user:secret@host/folder")

    assert store.describe() == "sftp://…@host/folder"
    with pytest.raises(StoreUnavailable) as caught:
        store.check()
    assert "secret" not in str(caught.value)
    assert open_store(store.url).url == store.url


@dataclass
class FailingFiles:
    """A file system that fails at one of its calls."""

    files: Any
    step: int
    failure: BaseException
    calls: int = 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self.step:
                raise self.failure
            return getattr(self.files, name)(*arguments, **options)

        return call


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (OSError("no route to host"), StoreUnavailable),
        (RuntimeError("denied"), StoreUnavailable),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_remote_save_that_fails_at_any_step_leaves_nothing(
    memory_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, raised: Any
) -> None:
    source = write_files(tmp_path / "source", {"a": b"1", "dir/b": b"22"})
    store = open_store(memory_url)
    store.create()
    real, root = fsspec.url_to_fs(memory_url)

    def failing_at(step: int) -> tuple[CheckpointStore, FailingFiles]:
        files = FailingFiles(real, step, failure)
        with monkeypatch.context() as patched:
            patched.setattr(fsspec, "url_to_fs", lambda url: (files, root))
            return open_store(store.url), files

    counted, counting = failing_at(0)
    counted.save(saved_id(1000), source, {})
    failed = 0

    for step in range(1, counting.calls + 1):
        try:
            failing_at(step)[0].save(saved_id(), source, {})
        except raised as error:
            failed += 1
            said = str(error)
            assert said == str(failure) or memory_url in said
            assert store.ids() == [saved_id(1000)]
            assert real.find(f"{memory_url}/staging") == []
            assert not [path for path in real.find(f"{memory_url}/content") if saved_id() + "/" in path]
        else:
            # Dropping what is cached may fail, and so may removing what was moved.
            store.delete(saved_id())

    assert failed > counting.calls / 2


def test_a_store_without_times_of_change_sweeps_nothing(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def modified(*_: object) -> None:
        raise NotImplementedError

    store = open_store(memory_url)
    store.create()
    fsspec.filesystem("memory").pipe_file(f"{memory_url}/content/{saved_id()}/cafe/0-a", b"a save under way")
    monkeypatch.setattr(fsspec.filesystem("memory"), "modified", modified)

    assert store.sweep() == store.sweep(0.0) == 0
    assert fsspec.filesystem("memory").find(f"{memory_url}/content")


def test_what_a_killed_remote_save_left_is_swept(memory_url: str, tmp_path: Path) -> None:
    source = write_files(tmp_path / "source", {"a": b"1"})
    files = fsspec.filesystem("memory")
    store = open_store(memory_url)
    store.create()
    store.save(saved_id(1), source, {})
    files.pipe_file(f"{memory_url}/content/{saved_id(1)}/cafe/0-a", b"1")
    files.pipe_file(f"{memory_url}/content/{saved_id(2)}/cafe/0-a", b"1")
    files.pipe_file(f"{memory_url}/staging/cafe", b"half a mani")

    assert store.ids() == [saved_id(1)]
    assert store.sweep() == 0
    assert store.sweep(0.0) == 3
    assert store.sweep(0.0) == 0

    store.fetch(saved_id(1), tmp_path / "target")
    assert files_in(tmp_path / "target") == {"a": b"1"}
    # A save that lost a race leaves nothing.
    with pytest.raises(CheckpointExists):
        store.save(saved_id(1), write_files(tmp_path / "second", {"a": b"2"}), {})
    store.save(saved_id(1), source, {})
    assert len(files.find(f"{memory_url}/content")) == 1


def test_a_store_that_has_moved_with_its_experiment_is_known_by_its_mark(tmp_path: Path) -> None:
    old, new = tmp_path / "old" / "mine", tmp_path / "new" / "mine"
    store = open_store(f"{old}/checkpoints")
    store.create()
    url = store.url
    assert store_beside(url, old) == url

    new.parent.mkdir()
    old.rename(new)

    moved = store_beside(url, new)
    open_store(moved).check()
    assert is_same_store(url, moved)
    assert not old.exists()


def test_another_store_beside_an_experiment_is_not_taken_for_its_own(tmp_path: Path) -> None:
    store, other = open_store(f"{tmp_path}/shared"), open_store(f"{tmp_path}/mine/checkpoints")
    store.create()
    other.create()

    assert store_beside(store.url, tmp_path / "mine") == store.url
    assert store_beside(store.url, tmp_path / "empty") == store.url
    assert store_beside("memory://bucket/mine#mqtune-store=12ab", tmp_path / "mine").startswith("memory:")
    assert store_beside("", tmp_path / "mine") == ""
    assert not is_same_store(store.url, other.url)
    assert not is_same_store("/data/a", "/data/b")
