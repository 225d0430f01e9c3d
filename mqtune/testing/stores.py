"""The tests for checkpoint stores of your own: subclass ``StoreContract``."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mqtune.checkpoints import CheckpointStore
from mqtune.core.errors import CheckpointBroken, CheckpointExists, CheckpointGone, ConfigurationError
from mqtune.core.trial import CheckpointId, checkpoint_id

#: Damages a checkpoint without the store's knowledge. It takes the id, and a function from the content of the largest
#: file to its new content. None deletes the file.
Damage = Callable[[CheckpointId, Callable[[bytes], bytes | None]], None]
#: Files with all kinds of paths: nested, long, hidden, not ASCII, and with special characters.
FILES = {
    "model.bin": bytes(range(256)) * 40,
    "empty": b"",
    "manifest.json": b"the user's own",
    "layers/0/weights": b"w" * 1000,
    "layers/1/weights": b"v" * 1000,
    "größe/日本 語.txt": b"unicode",
    "odd [*?] #%41\n'\"names/a:b\\c": b"odd",
    ".hidden": b"hidden",
    f"{'long' * 30}/{'name' * 50}": b"long",
}


def saved_id(number: int = 1) -> CheckpointId:
    """Return the id of the *number*-th folder checkpoint of a trial."""
    return checkpoint_id("00001", 1, number, in_memory=False)


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    """Create *folder* with these files, given as contents by path, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return folder


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files below *folder*, by path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class StoreContract:
    """The tests that a checkpoint store must pass.

    A subclass overrides the fixture ``store``. It returns an empty store on which ``create`` was called. Tests with
    damaged files need the fixture ``damage``. They are skipped if a subclass does not override it.
    """

    @pytest.fixture
    def store(self) -> CheckpointStore:
        raise NotImplementedError("override the fixture `store` with one that returns an empty store")

    @pytest.fixture
    def damage(self) -> Damage:
        return pytest.skip("the fixture `damage` is not overridden")

    @pytest.fixture(autouse=True)
    def _temporary_files(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        # A staged folder that is never saved stays, because its user should remove it. Keep these inside the test.
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))

    def test_a_saved_checkpoint_is_fetched_unchanged(self, store: CheckpointStore, tmp_path: Path) -> None:
        source = write_files(tmp_path / "source", FILES)
        (source / "nothing" / "in" / "here").mkdir(parents=True)
        counters = {"training_iteration": 3, "time_total_s": 1.5, "stage": "warm-up", "best": float("inf")}

        size = store.save(saved_id(), source, counters)
        back = store.fetch(saved_id(), tmp_path / "new" / "target")

        assert size == sum(map(len, FILES.values()))
        assert back == counters
        assert files_in(tmp_path / "new" / "target") == FILES
        assert (tmp_path / "new" / "target" / "nothing" / "in" / "here").is_dir()
        assert files_in(source) == FILES

    def test_a_large_file_comes_back(self, store: CheckpointStore, tmp_path: Path) -> None:
        # This is more than twice the size at which stores split a file or flush it.
        content = os.urandom(2 * 2**24 + 1)
        source = write_files(tmp_path / "source", {"large": content})

        store.save(saved_id(), source, {})
        store.fetch(saved_id(), tmp_path / "target")

        assert (tmp_path / "target" / "large").read_bytes() == content

    def test_the_permission_to_execute_survives(self, store: CheckpointStore, tmp_path: Path) -> None:
        source = write_files(tmp_path / "source", {"run": b"#!/bin/sh\n", "read": b""})
        (source / "run").chmod(0o755)

        store.save(saved_id(), source, {})
        store.fetch(saved_id(), tmp_path / "target")

        assert os.access(tmp_path / "target" / "run", os.X_OK)
        assert not (tmp_path / "target" / "read").stat().st_mode & 0o111

    def test_a_checkpoint_may_have_no_files(self, store: CheckpointStore, tmp_path: Path) -> None:
        (tmp_path / "source").mkdir()

        assert store.save(saved_id(), tmp_path / "source", {"training_iteration": 1}) == 0

        assert store.exists(saved_id())
        assert store.fetch(saved_id(), tmp_path / "target") == {"training_iteration": 1}
        assert list((tmp_path / "target").iterdir()) == []

    def test_a_missing_checkpoint_is_gone(self, store: CheckpointStore, tmp_path: Path) -> None:
        assert not store.exists(saved_id())
        assert store.ids() == []
        with pytest.raises(CheckpointGone, match=saved_id()):
            store.fetch(saved_id(), tmp_path / "target")
        assert list(tmp_path.iterdir()) == []

    def test_ids_are_those_of_all_checkpoints(self, store: CheckpointStore, tmp_path: Path) -> None:
        source = write_files(tmp_path / "source", {"a": b"1"})

        for number in (3, 1, 2):
            store.save(saved_id(number), source, {})

        assert store.ids() == [saved_id(1), saved_id(2), saved_id(3)]

    def test_deleting_twice_is_deleting(self, store: CheckpointStore, tmp_path: Path) -> None:
        source = write_files(tmp_path / "source", {"a": b"1"})
        store.save(saved_id(1), source, {})
        store.save(saved_id(2), source, {})

        store.delete(saved_id(1))
        store.delete(saved_id(1))

        assert store.ids() == [saved_id(2)]
        with pytest.raises(CheckpointGone):
            store.fetch(saved_id(1), tmp_path / "target")
        store.save(saved_id(1), source, {})
        assert store.exists(saved_id(1))

    def test_saving_the_same_again_does_nothing(self, store: CheckpointStore, tmp_path: Path) -> None:
        source = write_files(tmp_path / "source", FILES)

        first = store.save(saved_id(), source, {"loss": float("nan")})

        assert store.save(saved_id(), source, {"loss": float("nan")}) == first
        assert store.ids() == [saved_id()]

    @pytest.mark.parametrize(
        ("files", "counters"), [({"a": b"2"}, {}), ({"a": b"1", "b": b""}, {}), ({"a": b"1"}, {"n": 1})]
    )
    def test_a_checkpoint_never_changes(
        self, store: CheckpointStore, tmp_path: Path, files: dict[str, bytes], counters: dict[str, int]
    ) -> None:
        store.save(saved_id(), write_files(tmp_path / "first", {"a": b"1"}), {})

        with pytest.raises(CheckpointExists, match=saved_id()):
            store.save(saved_id(), write_files(tmp_path / "second", files), counters)

        assert store.fetch(saved_id(), tmp_path / "target") == {}
        assert files_in(tmp_path / "target") == {"a": b"1"}

    def test_a_copy_outlives_what_it_is_a_copy_of(self, store: CheckpointStore, tmp_path: Path) -> None:
        store.save(saved_id(1), write_files(tmp_path / "source", FILES), {"training_iteration": 4})

        store.copy(saved_id(1), saved_id(2))
        store.delete(saved_id(1))

        assert store.fetch(saved_id(2), tmp_path / "target") == {"training_iteration": 4}
        assert files_in(tmp_path / "target") == FILES

    def test_a_copy_of_nothing_is_refused(self, store: CheckpointStore) -> None:
        with pytest.raises(CheckpointGone):
            store.copy(saved_id(1), saved_id(2))
        assert store.ids() == []

    def test_a_staged_folder_can_be_saved(self, store: CheckpointStore, tmp_path: Path) -> None:
        staged = write_files(store.staging(), FILES)
        (staged / "deep" / "down").mkdir(parents=True)

        store.save(saved_id(), staged, {"training_iteration": 1})
        store.fetch(saved_id(), tmp_path / "target")

        assert files_in(tmp_path / "target") == FILES
        assert (tmp_path / "target" / "deep" / "down").is_dir()

    def test_a_staged_folder_is_no_checkpoint(self, store: CheckpointStore) -> None:
        write_files(store.staging(), FILES)
        write_files(store.staging(), FILES)

        assert store.ids() == []

    def test_a_target_that_is_there_is_refused(self, store: CheckpointStore, tmp_path: Path) -> None:
        store.save(saved_id(), write_files(tmp_path / "source", {"a": b"1"}), {})
        (tmp_path / "target").mkdir()

        with pytest.raises(ConfigurationError, match="already"):
            store.fetch(saved_id(), tmp_path / "target")

        assert list((tmp_path / "target").iterdir()) == []

    @pytest.mark.parametrize(
        "bad", ["", ".", "..", "a/b", "../a", "/a", "a\\b", "a\0b", ".staging", "a b", "ä", "a" * 201, "a*"]
    )
    def test_an_id_that_can_be_no_name_is_refused(self, store: CheckpointStore, tmp_path: Path, bad: str) -> None:
        source = write_files(tmp_path / "source", {"a": b"1"})
        bad_id = CheckpointId(bad)
        store.save(saved_id(), source, {})

        for ask in (
            lambda: store.save(bad_id, source, {}),
            lambda: store.fetch(bad_id, tmp_path / "target"),
            lambda: store.exists(bad_id),
            lambda: store.delete(bad_id),
            lambda: store.copy(saved_id(), bad_id),
            lambda: store.copy(bad_id, saved_id(2)),
        ):
            with pytest.raises(ConfigurationError, match="id of a checkpoint"):
                ask()
        assert store.ids() == [saved_id()]

    def test_a_source_that_is_no_folder_is_refused(self, store: CheckpointStore, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")

        for bad in (tmp_path / "file", tmp_path / "missing"):
            with pytest.raises(ConfigurationError, match=bad.name):
                store.save(saved_id(), bad, {})
        assert store.ids() == []

    def test_a_link_counts_as_the_file_that_it_leads_to(self, store: CheckpointStore, tmp_path: Path) -> None:
        source = write_files(tmp_path / "source", {"steps/100/model": b"weights"})
        (source / "latest").symlink_to("steps/100/model")

        store.save(saved_id(), source, {})
        store.fetch(saved_id(), tmp_path / "target")

        assert files_in(tmp_path / "target") == {"steps/100/model": b"weights", "latest": b"weights"}
        assert not (tmp_path / "target" / "latest").is_symlink()

    def test_a_staged_link_counts_as_the_file_that_it_leads_to(self, store: CheckpointStore, tmp_path: Path) -> None:
        outside = write_files(tmp_path / "outside", {"model": b"weights"}) / "model"
        staged = write_files(store.staging(), {"model": b"weights"})
        (staged / "latest").symlink_to("model")
        (staged / "linked").hardlink_to(outside)

        store.save(saved_id(), staged, {})
        outside.write_bytes(b"changed")
        store.fetch(saved_id(), tmp_path / "target")

        assert files_in(tmp_path / "target") == dict.fromkeys(("model", "latest", "linked"), b"weights")

    @pytest.mark.parametrize(
        ("target", "says"),
        [("/etc/passwd", "outside"), ("../outside", "outside"), ("missing", "nothing"), ("sub", "folder")],
    )
    def test_a_link_that_leads_elsewhere_is_refused(
        self, store: CheckpointStore, tmp_path: Path, target: str, says: str
    ) -> None:
        source = write_files(tmp_path / "source", {"sub/a": b"1"})
        (tmp_path / "outside").write_bytes(b"secret")
        (source / "astray").symlink_to(target)

        with pytest.raises(ConfigurationError, match=f"'astray'.*{says}"):
            store.save(saved_id(), source, {})

        assert store.ids() == []

    def test_a_special_file_is_refused(self, store: CheckpointStore, tmp_path: Path) -> None:
        source = write_files(tmp_path / "source", {"a": b"1"})
        os.mkfifo(source / "queue")

        with pytest.raises(ConfigurationError, match=r"'queue'.*a pipe"):
            store.save(saved_id(), source, {})
        (source / "queue").unlink()
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.path.relpath(source / "queue"))
            with pytest.raises(ConfigurationError, match=r"'queue'.*a socket"):
                store.save(saved_id(), source, {})

        assert store.ids() == []

    def test_a_name_that_is_not_utf_8_is_refused(self, store: CheckpointStore, tmp_path: Path) -> None:
        source = write_files(tmp_path / "source", {"a": b"1"})
        try:
            (source / os.fsdecode(b"\xff")).write_bytes(b"")
        except OSError:
            pytest.skip("this file system takes no such names")

        with pytest.raises(ConfigurationError, match="UTF-8"):
            store.save(saved_id(), source, {})

    @pytest.mark.parametrize("counters", [{"a": [1]}, {"a": None}, {1: 2}, {"a": b"bytes"}, {"a": object()}])
    def test_a_counter_that_is_no_number_is_refused(
        self, store: CheckpointStore, tmp_path: Path, counters: dict[str, object]
    ) -> None:
        with pytest.raises(ConfigurationError, match="counter"):
            store.save(saved_id(), write_files(tmp_path / "source", {"a": b"1"}), counters)
        assert store.ids() == []

    def test_making_a_store_twice_is_making_it(self, store: CheckpointStore, tmp_path: Path) -> None:
        store.save(saved_id(), write_files(tmp_path / "source", {"a": b"1"}), {})
        url = store.url

        store.create()
        store.check()

        assert store.url == url
        assert store.ids() == [saved_id()]

    def test_sweeping_leaves_checkpoints_alone(self, store: CheckpointStore, tmp_path: Path) -> None:
        store.save(saved_id(), write_files(tmp_path / "source", FILES), {"n": 1})

        assert store.sweep(0.0) == 0
        assert store.sweep() == 0

        assert store.fetch(saved_id(), tmp_path / "target") == {"n": 1}
        assert files_in(tmp_path / "target") == FILES

    def test_after_writes_of_one_id_at_the_same_time_one_is_whole(self, store: CheckpointStore, tmp_path: Path) -> None:
        sources = [write_files(tmp_path / str(n), {f"{k}": bytes([n]) * 5000 for k in range(20)}) for n in range(4)]
        start = threading.Barrier(len(sources))
        errors: list[BaseException] = []

        def save(source: Path) -> None:
            start.wait()
            try:
                store.save(saved_id(), source, {})
            except BaseException as error:  # noqa: BLE001 - looked at below
                errors.append(error)

        _all_at_once([partial(save, source) for source in sources])
        store.fetch(saved_id(), tmp_path / "target")

        assert files_in(tmp_path / "target") in [files_in(source) for source in sources]
        assert {type(error) for error in errors} <= {CheckpointExists}

    def test_who_fetches_what_is_deleted_gets_all_or_nothing(self, store: CheckpointStore, tmp_path: Path) -> None:
        source = write_files(tmp_path / "source", {f"{k}": b"x" * 5000 for k in range(40)})
        outcomes: list[str] = []

        def fetch(number: int) -> None:
            target = tmp_path / f"target-{number}"
            try:
                store.fetch(saved_id(), target)
            except CheckpointGone:
                outcomes.append("gone" if not target.exists() else "left something")
            except BaseException as error:  # noqa: BLE001 - looked at below
                outcomes.append(repr(error))
            else:
                outcomes.append("whole" if files_in(target) == files_in(source) else "torn")

        for turn in range(5):
            store.save(saved_id(), source, {})
            fetching = [lambda n=10 * turn + k: fetch(n) for k in range(3)]
            _all_at_once([*fetching, lambda: store.delete(saved_id())])

        assert len(outcomes) == 15
        assert set(outcomes) <= {"gone", "whole"}

    @pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"x" + data[1:]])
    def test_damage_is_found(
        self, store: CheckpointStore, tmp_path: Path, damage: Damage, change: Callable[[bytes], bytes]
    ) -> None:
        store.save(saved_id(), write_files(tmp_path / "source", {"dir/model": b"m" * 1000, "small": b""}), {})
        damage(saved_id(), change)

        with pytest.raises(CheckpointBroken, match=r"dir/model.*instead of"):
            store.fetch(saved_id(), tmp_path / "target")
        with pytest.raises(CheckpointBroken):
            store.copy(saved_id(), saved_id(2))

        assert [path.name for path in tmp_path.iterdir() if "target" in path.name] == []
        assert store.ids() == [saved_id()]
        store.delete(saved_id())
        assert not store.exists(saved_id())

    def test_a_lost_file_is_found(self, store: CheckpointStore, tmp_path: Path, damage: Damage) -> None:
        store.save(saved_id(), write_files(tmp_path / "source", {"dir/model": b"m" * 1000, "small": b""}), {})
        damage(saved_id(), lambda _: None)

        with pytest.raises(CheckpointBroken, match="dir/model"):
            store.fetch(saved_id(), tmp_path / "target")


def _all_at_once(actions: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
