"""Which importers a worker keeps, and which of them and of their zygotes an attempt gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attempts import import_key

from mqtune.trainable import TrainableSpec
from mqtune.worker import Importers, ImportKey, SlotZygotes

MB = 1 << 20
#: How many programs keep an importer.
KEPT = 4
FIRST, SECOND = {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}


class Process:
    """An importer without a process."""

    def __init__(self, key: ImportKey, environment: Mapping[str, str], *_: object) -> None:
        self.key = key
        self.environment = environment
        self.is_closed = self.is_stale = self.is_dead = self.has_looked = False
        self.users, self.used_at = 0, 0.0
        self.size = 0
        self.imports = 1
        self.forked: list[Zygote] = []

    def is_current(self) -> bool:
        return not self.is_stale and not self.is_dead

    def serves(self, environment: Mapping[str, str]) -> bool:
        return not self.has_looked or environment == self.environment

    def fork(self, _environment: object, _log: object, on_empty: Callable[[], None]) -> Zygote:
        self.forked.append(Zygote(on_empty))
        return self.forked[-1]

    def close(self) -> None:
        self.is_closed = True
        for zygote in self.forked:
            zygote.close()


class Zygote:
    """A zygote without a process."""

    def __init__(self, on_empty: Callable[[], None]) -> None:
        self.on_empty = on_empty
        self.may_keep = self.is_dead = self.is_closed = False

    def drop(self) -> None:
        self.may_keep = False
        self.on_empty()

    def close(self) -> None:
        self.is_dead = self.is_closed = True


def key_of(name: str) -> ImportKey:
    return import_key(TrainableSpec(name, module="m"), Path("/code"))


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.made: list[Any] = []
        self.kept = self.of()

    def _make(self, *args: Any) -> Process:
        self.made.append(Process(*args))
        return self.made[-1]  # type: ignore[no-any-return]

    def of(self, most_mb: float = 1e6) -> Importers:
        clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        late_imports: Any = SimpleNamespace(of=lambda spec: [], refused=lambda spec: [])
        return Importers(Path("/log"), late_imports, most_bytes=most_mb * MB, kept=KEPT, make=self._make, clock=clock)

    def use(
        self, name: str, *, size_mb: int = 0, leaves: bool = True, environment: Mapping[str, str] | None = None
    ) -> Any:
        """Have a trial of a trainable begin, and end."""
        self.now += 1
        importer: Any = self.kept.use(key_of(name), environment or FIRST)
        importer.size = size_mb * MB
        if leaves:
            self.kept.leave(importer)
        return importer

    @property
    def names(self) -> list[str]:
        return [importer.key.spec.name for importer in self.kept.all]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_what_has_looked_at_the_devices_on_import_is_imported_once_for_each_of_them(world: World) -> None:
    one = world.use("one", leaves=False)
    one.has_looked = True

    other = world.use("one", environment=SECOND)

    assert other is not one
    assert other.environment == SECOND
    assert [world.use("one"), world.use("one", environment=SECOND)] == [one, other]
    assert not one.is_closed


def test_of_too_many_trainables_those_go_that_were_used_longest_ago(world: World) -> None:
    for number in range(KEPT):
        world.use(str(number))
    world.use("0")

    world.use("another")

    assert world.names == [*map(str, range(2, KEPT)), "0", "another"]
    assert [importer.is_closed for importer in world.made] == [False, True, *[False] * (KEPT - 1)]


def test_one_whose_code_has_changed_is_replaced_and_closed_once_its_trials_are_over(world: World) -> None:
    one = world.use("one", leaves=False)
    one.is_stale = True

    other = world.use("one")
    assert world.kept.all == [one, other]
    assert not one.is_closed

    world.kept.leave(one)
    one.is_dead = True
    world.kept.trim()
    assert world.kept.all == [other]
    assert one.is_closed


def test_one_that_no_trial_has_used_for_long_is_closed(world: World) -> None:
    world.use("ended")
    one = world.use("runs", leaves=False)
    world.now += 121
    world.kept.trim(120)
    assert world.names == ["runs"]

    # From the end of its trial on.
    world.kept.leave(one)
    world.now += 119
    world.kept.trim(120)
    assert world.names == ["runs"]

    world.now += 2
    world.kept.trim(120)
    assert world.names == []


class Slot:
    """A slot's zygotes, and how often it was waited for its trial and a process that was kept has ended."""

    def __init__(self) -> None:
        self.waits = self.emptied = 0
        self.zygotes = SlotZygotes({}, Path("/log"), self._empty)

    def of(self, importer: Process) -> Any:
        return self.zygotes.of(importer, self._wait)  # type: ignore[arg-type]

    def keeping(self, importer: Process) -> Any:
        return self.zygotes.keeping(importer)  # type: ignore[arg-type]

    def _wait(self) -> None:
        self.waits += 1

    def _empty(self) -> None:
        self.emptied += 1


@pytest.mark.parametrize("why", ["imported more", "died", "another importer"])
def test_a_zygote_is_replaced_once_its_trial_is_over(why: str) -> None:
    slot, one = Slot(), Process(key_of("one"), FIRST)
    first = slot.of(one)
    if why == "imported more":
        one.imports += 1
    elif why == "died":
        first.is_dead = True
    else:
        one = Process(key_of("one"), FIRST)

    second = slot.of(one)

    assert second is not first
    assert second is one.forked[-1]
    assert (first.is_closed, slot.waits) == (True, 1)
    assert slot.zygotes.all == [second]
