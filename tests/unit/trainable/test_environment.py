"""With which versions a trial ran: told without importing or reading more than there is."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from mqtune.core.version import __version__
from mqtune.trainable import describe_environment
from mqtune.trainable.process import environment


def test_python_platform_and_mqtune_are_told() -> None:
    found = describe_environment([], [])

    assert found["python"] == platform.python_version()
    assert found["mqtune"] == __version__
    assert found["platform"]
    assert (found["packages"], found["code"]) == ({}, "")


def test_packages_are_told_by_their_distributions_and_each_once() -> None:
    found = describe_environment(["msgpack", "msgpack.ext", "pytest", "json", "mqtune", "_pytest", "nowhere"], [])

    assert found["packages"] == {"msgpack": version("msgpack"), "pytest": version("pytest")}


def test_a_package_of_another_name_than_its_distribution_speaks_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, said in (("talks", "1.5"), ("silent", None), ("odd", 7)):
        module = ModuleType(name)
        module.__file__ = f"/usr/lib/site-packages/{name}/__init__.py"
        if said is not None:
            module.__version__ = said  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)

    assert describe_environment(["talks", "silent", "odd"], [])["packages"] == {"talks": "1.5"}


def test_no_more_packages_are_told_than_fit_into_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_MAX_PACKAGES", 1)

    assert list(describe_environment(["msgpack", "pytest"], [])["packages"]) == ["msgpack"]


def test_the_hash_of_the_code_is_that_of_its_content_wherever_it_lies(tmp_path: Path) -> None:
    def code(folder: str, content: str, name: str = "train.py") -> str:
        (tmp_path / folder / "pkg").mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(content)
        (tmp_path / folder / "pkg" / "model.py").write_text("y = 2\n")
        paths = [str(tmp_path / folder / name), str(tmp_path / folder / "pkg" / "model.py")]
        hashed = describe_environment([], paths)["code"]
        assert hashed == describe_environment([], [*paths[::-1], str(tmp_path / folder / "gone.py")])["code"]
        return str(hashed)

    assert code("here", "x = 1\n") == code("there", "x = 1\n")
    assert len({code("a", "x = 1\n"), code("b", "x = 2\n"), code("c", "x = 1\n", "other.py")}) == 3
