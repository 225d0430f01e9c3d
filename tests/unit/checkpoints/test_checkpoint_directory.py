from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from waiting import DEADLINE_S

from mqtune.checkpoints import CheckpointStore, Tenant, open_store
from mqtune.core.errors import (
    CheckpointBroken,
    CheckpointExists,
    CheckpointGone,
    CheckpointVersionError,
    ConfigurationError,
    StoreUnavailable,
)
from mqtune.testing.stores import files_in, saved_id, write_files

FILES = {"model": b"m" * 100, "layers/0": b"0", "layers/1": b"", "run": b"#!/bin/sh"}
#: Calls that change a folder, or open or flush something.
STEPS = ("open", "write", "readv", "fsync", "close", "mkdir", "rename", "unlink", "rmdir", "scandir")


class Killed(BaseException):
    pass


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = open_store(f"{tmp_path}/store")
    store.create()
    return store


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_files(tmp_path / "source", FILES)


@contextmanager
def failing_at(step: int, failure: Callable[[], BaseException], *, is_death: bool) -> Iterator[list[str]]:
    """Have the *step*-th call of the system fail, and after a death each later one."""
    calls: list[str] = []
    patch = pytest.MonkeyPatch()

    def failing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) == step or (is_death and len(calls) > step):
                if name == "close":
                    # As the system does, also when it reports an error. shutil may then close it again.
                    with suppress(OSError):
                        real(*arguments, **options)
                raise failure()
            return real(*arguments, **options)

        return call

    for name in STEPS:
        patch.setattr(os, name, failing(name, getattr(os, name)))
    try:
        yield calls
    finally:
        patch.undo()


def steps_of(save: Callable[[], object]) -> int:
    with failing_at(0, Killed, is_death=False) as calls:
        save()
    return len(calls)


def left_in_staging(store: CheckpointStore) -> list[str]:
    return os.listdir(Path(store.describe()) / ".staging")


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_dead_save_leaves_all_or_none(
    store: CheckpointStore, source: Path, tmp_path: Path, *, is_queued: bool
) -> None:
    def given() -> Path:
        return write_files(store.staging(), FILES) if is_queued else source

    first = given()
    steps = steps_of(lambda: store.save(saved_id(1000), first, {"n": 1}))
    shown = 0

    for step in range(1, steps + 1):
        id_, folder, target = saved_id(step), given(), tmp_path / f"target-{step}"
        with pytest.raises(Killed), failing_at(step, Killed, is_death=True):
            store.save(id_, folder, {"n": 1})
        if store.exists(id_):
            shown += 1
            assert store.fetch(id_, target) == {"n": 1}
            assert files_in(target) == FILES
        else:
            with pytest.raises(CheckpointGone):
                store.fetch(id_, target)

    # It is shown by a rename near the end, and not last: the folder that this changed is flushed.
    assert 0 < shown < steps / 2
    store.sweep(0.0)
    assert left_in_staging(store) == []
    assert len(store.ids()) == 1 + shown


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize("is_full", [True, False])
def test_a_full_disk_or_a_stop_at_any_step_leaves_nothing(store: CheckpointStore, source: Path, is_full: bool) -> None:
    steps = steps_of(lambda: store.save(saved_id(1000), source, {}))
    opened = open_files()
    said = 0

    for step in range(1, steps + 1):
        failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if is_full else Killed()
        with (
            pytest.raises((StoreUnavailable, ConfigurationError) if is_full else Killed) as caught,
            failing_at(step, lambda failure=failure: failure, is_death=False),  # type: ignore[misc]
        ):
            store.save(saved_id(), source, {})
        if is_full:
            # Where it was the source that couldn't be read, that is named.
            assert "No space left" in str(caught.value)
            is_said = isinstance(caught.value, StoreUnavailable) and "free space" in str(caught.value)
            assert (store.describe() if is_said else os.fspath(source)) in str(caught.value)
            said += is_said
        assert store.ids() == [saved_id(1000)]
        assert left_in_staging(store) == []
        # Files that another test has left open may be closed meanwhile.
        assert open_files() <= opened

    assert said > steps / 2 or not is_full
    store.save(saved_id(), source, {})
    assert files_in(source) == FILES


def test_a_fetch_that_fails_at_any_step_leaves_nothing(store: CheckpointStore, source: Path, tmp_path: Path) -> None:
    store.save(saved_id(), source, {})
    steps = steps_of(lambda: store.fetch(saved_id(), tmp_path / "first"))
    here = set(tmp_path.iterdir())
    of_target = 0

    for step in range(1, steps + 1):
        broken = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with (
            failing_at(step, lambda broken=broken: broken, is_death=False),  # type: ignore[misc]
            pytest.raises((StoreUnavailable, CheckpointBroken), match="No space left") as caught,
        ):
            store.fetch(saved_id(), tmp_path / "target")
        of_target += "target" in str(caught.value) and "free space there" in str(caught.value)
        assert set(tmp_path.iterdir()) == here

    assert of_target > 0


def test_sweeping_goes_by_the_newest_file_that_is_left(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = write_files(store.staging(), {"a/b/c": b"1"})

    # Copied files keep their old times, which say nothing about when they came here.
    os.utime(staged / "a/b/c", (0, 0))

    assert store.sweep() == store.sweep(3600.0) == 0
    assert files_in(staged) == {"a/b/c": b"1"}
    assert store.sweep(0.0) == 1


@pytest.mark.parametrize("by", ["itself", "another object of the store"])
def test_what_is_staged_is_moved(store: CheckpointStore, by: str, tmp_path: Path) -> None:
    staged = write_files((store if by == "itself" else open_store(f"{tmp_path}/store")).staging(), FILES)
    inode = (staged / "model").stat().st_ino

    store.save(saved_id(), staged, {})

    assert not staged.exists()
    assert (Path(store.describe()) / saved_id() / "files" / "model").stat().st_ino == inode
    # The same again, and with a link, which is copied.
    store.save(saved_id(), write_files(store.staging(), FILES), {})
    linked = write_files(store.staging(), FILES)
    (linked / "latest").symlink_to("model")
    store.save(saved_id(2), linked, {})
    assert left_in_staging(store) == []
    with pytest.raises(CheckpointExists):
        store.save(saved_id(), write_files(store.staging(), {}), {})


def test_a_folder_of_the_same_name_on_a_machine_that_does_not_share_it_is_refused(tmp_path: Path) -> None:
    driver, worker = open_store(f"{tmp_path}/driver"), open_store(f"{tmp_path}/worker")
    driver.create()
    worker.create()
    (tmp_path / "worker").rename(tmp_path / "aside")
    shutil.move(tmp_path / "driver", tmp_path / "worker")

    assert open_store(f"{tmp_path}/worker").check() is None  # type: ignore[func-returns-value]
    with pytest.raises(StoreUnavailable, match=r"finds another checkpoint store.*mount"):
        worker.check()


def test_every_method_says_that_its_store_is_gone(store: CheckpointStore, source: Path, tmp_path: Path) -> None:
    (tmp_path / "store").rename(tmp_path / "unmounted")

    for ask in (
        store.check,
        store.create,
        store.ids,
        store.staging,
        store.sweep,
        lambda: store.exists(saved_id()),
        lambda: store.delete(saved_id()),
        lambda: store.save(saved_id(), source, {}),
        lambda: store.fetch(saved_id(), tmp_path / "target"),
    ):
        with pytest.raises(StoreUnavailable, match=r"on \S+ (can't .*|finds no checkpoint store .*)mount"):
            ask()
    with pytest.raises(StoreUnavailable, match="finds no checkpoint store"):
        open_store(f"{tmp_path}/store").check()
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("number", "way_out"), [(errno.EROFS, "mount"), (errno.EACCES, "let this user")])
def test_a_store_that_can_not_be_written_is_refused(
    store: CheckpointStore, source: Path, monkeypatch: pytest.MonkeyPatch, number: int, way_out: str
) -> None:
    store.save(saved_id(), source, {})

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(os, "rename", refuse)
    for ask in (
        store.check,
        store.staging,
        lambda: store.save(saved_id(2), source, {}),
        lambda: store.delete(saved_id()),
    ):
        with pytest.raises(StoreUnavailable, match=f"{os.strerror(number)}.*{way_out}"):
            ask()
    monkeypatch.undo()

    assert store.ids() == [saved_id()]


def manifest_of(store: CheckpointStore) -> Path:
    return Path(store.describe()) / saved_id() / "manifest.json"


@pytest.mark.parametrize(
    "spoil",
    [
        *(lambda _, text=text: text for text in (b"", b"[1, 2]", b'"text"', b'{"version": 1}')),
        lambda data: data[:-10],
        lambda data: b"\xff\xfe" + data,
        lambda data: b'{"version": 1, "sha256": "", "checkpoint": {}}',
        lambda data: data.replace(b'"n": 1', b'"n": 2'),
        lambda data: data.replace(b'"model"', b'"modem"'),
        lambda data: b"[" * 100_000,
    ],
)
def test_a_spoilt_manifest(
    store: CheckpointStore, source: Path, tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    store.save(saved_id(), source, {"n": 1})
    data = manifest_of(store).read_bytes()
    manifest_of(store).write_bytes(spoil(data))

    with pytest.raises(CheckpointBroken, match=r"manifest.*manifest\.json"):
        store.fetch(saved_id(), tmp_path / "target")

    store.delete(saved_id())
    assert store.ids() == []


def test_a_foreign_later_or_missing_manifest_is_named(store: CheckpointStore, source: Path, tmp_path: Path) -> None:
    store.save(saved_id(2), source, {})
    (tmp_path / "store" / saved_id(2)).rename(tmp_path / "store" / saved_id())
    with pytest.raises(CheckpointBroken, match=f"belongs to checkpoint {saved_id(2)}"):
        store.fetch(saved_id(), tmp_path / "target")
    manifest = json.loads(manifest_of(store).read_bytes())
    manifest_of(store).write_text(json.dumps({"version": 3, "new": manifest}))
    with pytest.raises(CheckpointVersionError, match=r"version 3.*upgrade"):
        store.fetch(saved_id(), tmp_path / "target")
    manifest_of(store).unlink()
    assert store.ids() == []
    with pytest.raises(CheckpointGone):
        store.fetch(saved_id(), tmp_path / "target")


@pytest.mark.parametrize(
    ("path", "method", "error"),
    [
        (f"{saved_id()}/manifest.json", "fetch", CheckpointBroken),
        (f"{saved_id()}/files/model", "fetch", CheckpointBroken),
        (".store/store.json", "check", StoreUnavailable),
        (".tenants/1a.json", "tenants", StoreUnavailable),
    ],
)
def test_a_pipe_in_place_of_a_file_is_an_error_and_nothing_waits_for_it(
    store: CheckpointStore, source: Path, tmp_path: Path, path: str, method: str, error: type[Exception]
) -> None:
    store.save(saved_id(), source, {})
    store.claim(Tenant("1a", "digits"))
    place = tmp_path / "store" / path
    place.unlink()
    os.mkfifo(place)
    arguments = (saved_id(), tmp_path / "read") if method == "fetch" else ()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(getattr(store, method), *arguments)
        try:
            with pytest.raises(error, match="it is not a regular file"):
                reading.result(DEADLINE_S)
        finally:
            # A reader that waits for a writer finds one.
            os.close(os.open(place, os.O_RDWR | os.O_NONBLOCK))


def test_a_changing_folder_is_saved_as_read(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_files(tmp_path / "source", {"a": b"1", "b": b"2"})
    real = os.readv

    def grow(descriptor: int, buffers: list[memoryview]) -> int:
        (source / "a").write_bytes(b"grown" * 1000)
        (source / "b").unlink(missing_ok=True)
        return real(descriptor, buffers)

    monkeypatch.setattr(os, "readv", grow)
    with pytest.raises(ConfigurationError, match=r"source/b.*don't change .* until"):
        store.save(saved_id(), source, {})
    write_files(source, {"b": b"2"})
    (source / "b").unlink()
    store.save(saved_id(), source, {})
    monkeypatch.undo()
    store.fetch(saved_id(), tmp_path / "target")

    assert files_in(tmp_path / "target") == {"a": b"grown" * 1000}
