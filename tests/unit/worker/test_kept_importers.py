"""Which importers a worker keeps, and which of them and of their zygotes an attempt gets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from attempts import import_key

from mqtune.trainable import TrainableSpec
from mqtune.worker import Importers, ImportKey, SlotZygotes

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
        self.imports = 1
        self.forked: list[Zygote] = []

    def is_current(self) -> bool:
        return not self.is_stale and not self.is_dead

    def measure_memory(self) -> int:
        return 0

    def serves(self, environment: Mapping[str, str]) -> bool:
        return not self.has_looked or environment == self.environment

    def fork(self, *_: object) -> Zygote:
        self.forked.append(Zygote())
        return self.forked[-1]

    def close(self) -> None:
        self.is_closed = True


class Zygote:
    """A zygote without a process."""

    holds = is_dead = is_closed = False

    def close(self) -> None:
        self.is_dead = self.is_closed = True


def key_of(name: str) -> ImportKey:
    return import_key(TrainableSpec(name, module="m"), Path("/code"))


class World:
    """The importers of a worker, and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.made: list[Any] = []
        clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        late: Any = SimpleNamespace(of=lambda spec: [], refused=lambda spec: [])
        self.kept = Importers(Path("/log"), late, most_bytes=1e12, kept=KEPT, make=self._make, clock=clock)

    def _make(self, *args: Any) -> Any:
        self.made.append(Process(*args))
        return self.made[-1]

    def use(self, name: str, *, leaves: bool = True, environment: Mapping[str, str] = FIRST) -> Any:
        """Have a trial of a trainable begin, and end."""
        self.now += 1
        importer: Any = self.kept.use(key_of(name), environment)
        if leaves:
            self.kept.leave(importer)
        return importer

    @property
    def names(self) -> list[str]:
        return [importer.key.spec.name for importer in self.kept.all]


@pytest.fixture
def world() -> World:
    return World()


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


@pytest.mark.parametrize("why", ["imported more", "died", "another importer"])
def test_a_zygote_is_replaced_once_its_trial_is_over(why: str) -> None:
    zygotes, wait = SlotZygotes({}, Path("/log"), Mock()), Mock()
    one: Any = Process(key_of("one"), FIRST)
    first: Any = zygotes.of(one, wait)
    if why == "imported more":
        one.imports += 1
    elif why == "died":
        first.is_dead = True
    else:
        one = Process(key_of("one"), FIRST)

    second = zygotes.of(one, wait)

    assert first is not second is one.forked[-1]
    assert (first.is_closed, wait.call_count) == (True, 1)
    assert zygotes.all == [second]
