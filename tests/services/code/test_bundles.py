"""A worker unpacks the code of signed bundles once, and refuses others."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqtune.core.errors import CodeRefused
from mqtune.services.code.bundles import Bundles
from mqtune.trainable import Bundle, File, signature
from mqtune.worker import ExperimentHere

KEY, OTHER_KEY = "a key of sixteen letters", "another key of some letters"
#: How many bundles are kept besides those in use.
KEPT = 4


class Exchange:
    """A server with bundles; counts how often each is fetched."""

    def __init__(self, *there: Bundle) -> None:
        self.there = {bundle.digest: bundle for bundle in there}
        self.key, self.fetched = KEY, list[str]()

    def __call__(self, experiment: str) -> Any:
        return self

    def signature(self, digest: str) -> str | None:
        return signature(self.key, digest) if digest in self.there else None

    def bundle(self, digest: str) -> Bundle | None:
        self.fetched.append(digest)
        return self.there.get(digest)


def here(experiment: str, definition: dict[str, Any]) -> ExperimentHere:
    return ExperimentHere(SimpleNamespace(experiment=experiment), definition)  # type: ignore[arg-type]


def unpacked(tmp_path: Path, exchange: Exchange, *, key: str = KEY, used: Any = set) -> Bundles:
    return Bundles(tmp_path / "cache", key, exchange, used, kept=KEPT)


def test_slots_that_ask_at_once_unpack_it_once(tmp_path: Path):
    bundle = Bundle.of({f"src/m{number}.py": File(b"1" * 1_000) for number in range(100)})
    exchange = Exchange(bundle)
    there = unpacked(tmp_path, exchange)
    definition = {"bundle": bundle.digest, "bundle_root": "src"}
    with ThreadPoolExecutor(8) as slots:
        (found,) = set(slots.map(lambda number: there.of(here(f"e{number}", definition)), range(32)))
    assert (found.code_root, found.cwd) == (found.top / "src", found.top)
    assert there.of(here("e0", {**definition, "bundle_is_cwd": False})).cwd is None
    assert len([*found.code_root.iterdir()]) == 100
    assert exchange.fetched == [bundle.digest]
    # Somebody has cleared it away.
    shutil.rmtree(found.top)
    assert there.of(here("e1", definition)).code_root.is_dir()
    there.close()
    assert not (tmp_path / "cache").exists()


def test_who_has_not_the_key_is_refused_also_when_it_is_unpacked_for_another(tmp_path: Path):
    bundle = Bundle.of({"train.py": File(b"")})
    exchange = Exchange(bundle)
    there = unpacked(tmp_path, exchange)
    definition = {"bundle": bundle.digest}
    trusted = here("trusted", definition)
    there.of(trusted)
    exchange.key = OTHER_KEY
    assert there.of(trusted)
    with pytest.raises(CodeRefused, match="is not signed with this worker's MQTUNE_CODE_KEY"):
        there.of(here("other", definition))
    with pytest.raises(CodeRefused, match="--accept-code"):
        unpacked(tmp_path, exchange, key="").of(here("trusted", definition))
    assert unpacked(tmp_path, exchange, key="").of(here("of the machine", {})) is None
    for bad in ({"bundle": "../x"}, {"bundle": 7}, {"bundle": bundle.digest, "bundle_root": "../.."}):
        with pytest.raises(CodeRefused, match="no driver of mqtune sends"):
            there.of(here("trusted", bad))
    with pytest.raises(CodeRefused, match="is not signed"):
        there.of(here("trusted", {"bundle": "0" * 64}))


def test_the_bundles_used_longest_ago_go_but_none_that_is_in_use(tmp_path: Path):
    every = [Bundle.of({"train.py": File(str(number).encode())}) for number in range(KEPT + 3)]
    used: set[Path] = set()
    there = unpacked(tmp_path, Exchange(*every), used=lambda: used)
    for bundle in every:
        found = there.of(here("e", {"bundle": bundle.digest}))
        used |= {found.code_root} if bundle is every[0] else set()
        there.of(here("e", {"bundle": every[1].digest}))
    left = [bundle for bundle in every if (tmp_path / "cache" / bundle.digest).is_dir()]
    assert left[:2] == every[:2]
    assert left[-1] is every[-1]
    assert len(left) == KEPT + 1


def test_code_of_one_team_is_not_run_with_the_key_of_another(tmp_path: Path) -> None:
    bundle = Bundle.of({"train.py": File(b"x = 1")})
    bundles = unpacked(tmp_path, Exchange(bundle), key=f"team-a-*={KEY},team-b-*={OTHER_KEY}")
    definition = {"bundle": bundle.digest}
    assert bundles.of(here("team-a-1", definition)) is not None
    for name, why in (("team-b-1", "is not signed"), ("team-c-1", "has no key for")):
        with pytest.raises(CodeRefused, match=why):
            bundles.of(here(name, definition))


def test_code_that_can_not_be_unpacked_leaves_nothing_half_there(tmp_path: Path):
    bundle = Bundle.of({"a": File(b"1"), "a/b.py": File(b"2")})
    there = unpacked(tmp_path, Exchange(bundle))

    for _ in range(2):
        with pytest.raises(OSError, match="a"):
            there.of(here("e", {"bundle": bundle.digest}))

    assert list((tmp_path / "cache").iterdir()) == []
