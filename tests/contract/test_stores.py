from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from mqtune.checkpoints import CheckpointStore, open_store
from mqtune.checkpoints.directory import DirectoryStore
from mqtune.checkpoints.remote import FsspecStore
from mqtune.checkpoints.store import Tenant, split_name
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import CheckpointId
from mqtune.testing.stores import Damage, StoreContract, files_in, saved_id, write_files

#: More than a store reads at once.
LARGE_BYTES = 2**24 + 1


def damage_largest(folder: Path, change: Callable[[bytes], bytes | None]) -> None:
    victim = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    changed = change(victim.read_bytes())
    victim.unlink()
    if changed is not None:
        victim.write_bytes(changed)


class OwnedContract(StoreContract):
    """What ``mqtune gc`` asks of a store, which one of a package's may leave out."""

    def test_who_has_checkpoints_in_it_is_known_until_that_is_over(self, store: CheckpointStore) -> None:
        one, other = Tenant("1a", "digits"), Tenant("2b", "digits")
        assert store.tenants() == []

        for each in (one, other, one):
            store.claim(each)

        assert store.tenants() == [one, other]
        assert store.ids() == []
        assert store.sweep(0.0) == 0
        store.release(one)
        store.release(one)
        assert store.tenants() == [other]

    def test_a_broker_and_its_copy_at_another_address_have_marks_of_their_own(self, store: CheckpointStore) -> None:
        one = Tenant("1a", "digits", "run", "head:6379/0 10.0.0.1")
        copy = Tenant("1a", "digits", "another", "spare:6379/0 10.0.0.2")
        store.claim(one)
        store.claim(copy)
        assert sorted(store.tenants()) == [copy, one]

        store.release(copy)

        assert store.tenants() == [one]

    def test_it_is_known_how_long_it_was_left_alone(self, store: CheckpointStore, tmp_path: Path) -> None:
        store.claim(Tenant("1a", "digits"))
        time.sleep(0.2)
        before, began = store.idle_s(), time.monotonic()
        store.save(saved_id(), write_files(tmp_path / "source", {"a": b"1"}), {})
        after = store.idle_s()

        # A file's times are those of the system's last tick.
        assert before >= 0.15
        assert after <= time.monotonic() - began + 0.05

    def test_nothing_of_a_removed_store_is_left_behind(self, store: CheckpointStore, tmp_path: Path) -> None:
        store.claim(Tenant("1a", "digits"))
        store.save(saved_id(), write_files(tmp_path / "source", {"a": b"1"}), {})

        store.remove()

        again = open_store(split_name(store.url)[0])
        above = open_store(again.url.rpartition("/")[0])
        assert [name for name in above.folders() if name == again.url.rpartition("/")[2]] == []
        again.create()
        assert (again.ids(), again.tenants()) == ([], [])


class TestDirectoryStore(OwnedContract):
    @pytest.fixture
    def store(self, tmp_path_factory: pytest.TempPathFactory) -> CheckpointStore:
        store = DirectoryStore(tmp_path_factory.mktemp("with space #%41") / "deep" / "store")
        store.create()
        return store

    @pytest.fixture
    def damage(self, store: CheckpointStore) -> Damage:
        return lambda id_, change: damage_largest(Path(store.describe()) / id_ / "files", change)


class TestLocalFsspecStore(OwnedContract):
    @pytest.fixture
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("store")

    @pytest.fixture
    def store(self, folder: Path) -> CheckpointStore:
        store = FsspecStore(f"file://{folder}/deep")
        store.create()
        return store

    @pytest.fixture
    def damage(self, folder: Path) -> Damage:
        return lambda id_, change: damage_largest(folder / "deep" / "content" / id_, change)


class TestMemoryFsspecStore(OwnedContract):
    @pytest.fixture
    def store(self) -> Iterator[CheckpointStore]:
        url = f"memory://{uuid.uuid4().hex}/deep"
        store = open_store(url)
        store.create()
        yield store
        files = fsspec.filesystem("memory")
        files.rm(url, recursive=True)

    @pytest.fixture
    def damage(self, store: CheckpointStore) -> Damage:
        def change_largest(id_: CheckpointId, change: Callable[[bytes], bytes | None]) -> None:
            files = fsspec.filesystem("memory")
            found = files.find(f"{store.describe()}/content/{id_}")
            victim = max(found, key=files.size)
            changed = change(files.cat_file(victim))
            files.rm_file(victim)
            if changed is not None:
                files.pipe_file(victim, changed)

        return change_largest

    @pytest.mark.skip(reason="memory:// has all readers of a file share one position")
    def test_who_fetches_what_is_deleted_gets_all_or_nothing(self) -> None:
        pass


def test_a_large_file_that_changes_as_it_is_sent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FsspecStore(f"file://{tmp_path}/store")
    store.create()
    source = write_files(tmp_path / "source", {"model": bytes(LARGE_BYTES)})
    put = LocalFileSystem.put_file

    def slow(*arguments: object) -> None:
        put(*arguments)
        (source / "model").write_bytes(bytes(LARGE_BYTES - 1) + b"n")

    monkeypatch.setattr(LocalFileSystem, "put_file", slow)
    with pytest.raises(ConfigurationError, match=r"source/model.* changed while it was saved"):
        store.save(saved_id(), source, {})

    assert store.ids() == []
    assert files_in(tmp_path / "store" / "content") == {}
