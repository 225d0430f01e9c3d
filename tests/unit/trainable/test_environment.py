"""Versions of a trial, found without imports, and variables that an experiment may set."""

from __future__ import annotations

import platform
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.trainable import describe_environment


def test_python_platform_and_mqtune_are_told_and_packages_by_their_distributions_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["msgpack", "msgpack.ext", "pytest", "json", "mqtune", "_pytest"]
    with monkeypatch.context() as patched:
        patched.setattr(sys, "modules", {name: import_module(name) for name in names})
        found = describe_environment([])

    assert (found["python"], found["mqtune"]) == (platform.python_version(), mqtune.__version__)
    assert found["platform"]
    assert (found["packages"], found["code"]) == ({"msgpack": version("msgpack"), "pytest": version("pytest")}, "")


def test_packages_named_unlike_their_distribution_are_told_up_to_40(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"many{number}": str(number) for number in range(50)}
    modules = {
        name: SimpleNamespace(__file__=f"/usr/lib/site-packages/{name}/__init__.py", __version__=said)
        for name, said in ({"talks": "1.5", "odd": 7} | many).items()
    }
    with monkeypatch.context() as patched:
        patched.setattr(sys, "modules", modules)
        found = describe_environment([])

    assert list(found["packages"].items()) == [("talks", "1.5"), *many.items()][:40]


def test_the_hash_of_the_code_is_that_of_its_content_wherever_it_lies(tmp_path: Path) -> None:
    def code(folder: str, content: str, name: str = "train.py") -> str:
        (tmp_path / folder / "pkg").mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(content)
        (tmp_path / folder / "pkg" / "model.py").write_text("y = 2\n")
        paths = [str(tmp_path / folder / name), str(tmp_path / folder / "pkg" / "model.py")]
        hashed = describe_environment(paths)["code"]
        assert hashed == describe_environment([*paths[::-1], str(tmp_path / folder / "gone.py")])["code"]
        return str(hashed)

    assert code("here", "x = 1\n") == code("there", "x = 1\n")
    assert len({code("a", "x = 1\n"), code("b", "x = 2\n"), code("c", "x = 1\n", "other.py")}) == 3


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "PATH", "BASH_ENV"], "other code"),
        (["CUDA_VISIBLE_DEVICES", "MQTUNE_BROKER"], "by the worker"),
        (["A B", "1X"], "can't be a variable"),
    ],
)
def test_a_variable_that_could_run_other_code_or_is_the_workers_is_refused_by_its_name(names: list[str], why: str):
    for name in names:
        with pytest.raises(ConfigurationError, match=f"{name}.*{why}"):
            mqtune.Process(env={name: "x"})
