"""Which zygotes a slot keeps: as many as are worth their memory, the ones that were used last, and none that has its GPU open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqtune.trainable.spec import TrainableSpec
from mqtune.worker import zygotes as module
from mqtune.worker.zygotes import KEPT, KeptZygotes, ZygoteKey

MB = 1 << 20


class Zygote:
    """A zygote without a process."""

    def __init__(self, key: ZygoteKey, environment: dict[str, str], log: Path, preloads: Sequence[Any]) -> None:
        self.key = key
        self.pid = id(self)
        self.is_closed = self.is_stale = self.is_dropped = self.is_dead = False
        self.is_ready = True
        self.users, self.used_at = 0, 0.0

    def is_current(self) -> bool:
        return not self.is_stale

    def close(self) -> None:
        self.is_closed = True

    def drop(self) -> None:
        self.is_dropped = True


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.sizes: dict[int, int] = {}
        self.made: list[Any] = []
        self.waits = 0
        monkeypatch.setattr(module, "ZygoteHandle", self._make)
        monkeypatch.setattr(module, "_unshared_bytes", lambda pid: self.sizes.get(pid, 0))
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.kept = self.of()

    def _make(self, *args: Any) -> Zygote:
        self.made.append(Zygote(*args))
        return self.made[-1]  # type: ignore[no-any-return]

    def of(self, most_mb: float = 1e6) -> KeptZygotes:
        return KeptZygotes({}, Path("/log"), most_bytes=most_mb * MB)

    def wait(self) -> None:
        self.waits += 1

    def use(self, name: str, *, size_mb: int = 0, leaves: bool = True, reuse: bool = False) -> Any:
        """Have a trial of a trainable begin in the slot, and end."""
        self.now += 1
        key = ZygoteKey(TrainableSpec(name, module="m"), Path("/code"), "fork", reuse)
        zygote = self.kept.use(key, self.wait)
        self.sizes[zygote.pid] = size_mb * MB
        if leaves:
            self.kept.leave(zygote)
        return zygote

    @property
    def names(self) -> list[str]:
        return [zygote.key.spec.name for zygote in self.kept.all]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_trainables_that_take_turns_have_a_zygote_each(world: World) -> None:
    one, two = world.use("one"), world.use("two")

    assert [world.use("one"), world.use("two"), world.use("one")] == [one, two, one]
    assert len(world.made) == 2
    assert world.waits == 0


def test_of_too_many_those_go_that_were_used_longest_ago(world: World) -> None:
    for number in range(KEPT):
        world.use(str(number))
    world.use("0")

    world.use("another")

    assert world.names == [*map(str, range(2, KEPT)), "0", "another"]
    assert [zygote.is_closed for zygote in world.made] == [False, True, *[False] * (KEPT - 1)]


def test_one_whose_code_has_changed_is_replaced_once_its_trial_is_over(world: World) -> None:
    one = world.use("one")
    one.is_stale = True

    other = world.use("one")

    assert (one.is_closed, other.is_closed, world.waits) == (True, False, 1)
    assert world.kept.all == [other]


def test_what_waits_is_bounded_by_its_memory_and_one_may_always_stay(world: World) -> None:
    world.kept = world.of(most_mb=100)
    world.use("large", size_mb=150)
    world.kept.trim()
    assert world.names == ["large"]

    world.use("small", size_mb=60)
    world.use("other", size_mb=30)
    world.kept.trim()
    assert world.names == ["small", "other"]

    # What is in use has the memory that it needs, and the rest still fits beside it.
    world.use("small", size_mb=500, leaves=False)
    world.kept.trim()
    assert world.names == ["other", "small"]


def test_one_in_use_is_never_closed_whatever_it_has(world: World) -> None:
    world.kept = world.of(most_mb=1)
    used = [world.use(str(number), size_mb=10, leaves=False) for number in range(KEPT + 1)]

    world.now += 1000
    world.kept.trim(120)
    world.kept.make_way(None)

    assert not any(zygote.is_closed for zygote in used)


def test_one_that_nobody_has_used_for_long_is_closed_although_its_slot_is_busy(world: World) -> None:
    world.use("ended")
    world.use("runs", leaves=False)

    world.now += 121
    world.kept.trim(120)

    assert world.names == ["runs"]


def test_the_last_one_is_idle_from_the_end_of_its_trial_on(world: World) -> None:
    zygote = world.use("one", leaves=False)
    world.now = 1000.0
    world.kept.leave(zygote)

    world.now = 1100.0
    world.kept.trim(120)
    assert world.names == ["one"]

    world.now = 1121.0
    world.kept.trim(120)
    assert world.names == []


def test_a_process_that_is_kept_goes_before_another_experiments_trial_takes_the_device(world: World) -> None:
    empty: list[Any] = []
    world.kept = KeptZygotes({}, Path("/log"), most_bytes=1e9, on_empty=empty.append)
    reused = world.use("one", reuse=True)
    world.use("two")
    three = world.use("three", leaves=False)

    world.kept.make_way(three)

    assert world.names == ["one", "two", "three"], "its module need not be imported again"
    assert [zygote.is_dropped for zygote in world.made] == [True, False, False]
    assert empty == [reused]


def test_one_that_still_imports_is_not_asked_for_a_process_that_it_keeps(world: World) -> None:
    importing = world.use("one", reuse=True)
    importing.is_ready = False

    world.kept.make_way(None)

    assert not importing.is_dropped
    assert world.kept.all == [importing]


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child that has a file open."""
    device = tmp_path / "device0"
    device.touch()
    child = f"import time; held = open({str(device)!r}); print('open', flush=True); time.sleep(600)"
    code = (
        f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "try:\n    sys.stdin.read()\nfinally:\n    child.kill(); child.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield process
        process.communicate()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the kernel doesn't tell what is open")
def test_one_that_has_a_device_open_itself_or_in_a_child_goes_too(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, opener: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(module, "DEVICE_FILES", (str(tmp_path / "device"),))
    on_device, elsewhere = world.use("one"), world.use("two")
    on_device.pid, elsewhere.pid = opener.pid, os.getpid()

    world.kept.make_way(world.use("three"))

    assert world.names == ["two", "three"]


def test_what_a_process_shares_with_others_does_not_count_as_its_own() -> None:
    mine = module._unshared_bytes(os.getpid())
    held = bytearray(os.urandom(1 * MB)) * 64

    assert module._unshared_bytes(os.getpid()) - mine >= 48 * MB
    assert len(held) == 64 * MB
    assert module._unshared_bytes(2**22 + 1) == 0
