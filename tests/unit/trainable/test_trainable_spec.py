"""A worker runs only code below its code root, for any message."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtune.core.errors import ConfigurationError, TrainableNotFound
from mqtune.journal import MemoryJournal, MemoryServer
from mqtune.trainable import TrainableSpec
from mqtune.worker import ExperimentHere

CODE = """
import os
import subprocess
import subprocess as process
from collections import OrderedDict
from subprocess import call
from functools import wraps
import mqtune

def decorated(function):
    @wraps(function)
    def inner(config):
        return function(config)
    return inner

def train(config):
    pass

@decorated
def wrapped(config):
    pass

class Holder:
    @staticmethod
    def train(config):
        pass

class Unfinished(mqtune.Trainable):
    pass
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A code root with a module that was never imported. Its imports are forgotten afterwards."""
    folder = tmp_path / "code"
    folder.mkdir()
    before, modules = list(sys.path), set(sys.modules)
    yield folder
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def module(root: Path) -> str:
    (root / "own_code.py").write_text(CODE)
    return "own_code"


def spec(**values: Any) -> TrainableSpec:
    return TrainableSpec.decode({"name": "train", **values})


NOT_ITS_OWN = "subprocess.call call process.run os.path.join OrderedDict __builtins__ train.__globals__ absent"


@pytest.mark.parametrize(
    ("name", "kind", "shown"),
    [
        *((name, "function", "does not define the function") for name in ["", *NOT_ITS_OWN.split()]),
        ("subprocess.Popen", "class", "does not define the class"),
        ("train", "class", "does not define the class 'train'"),
        ("Holder", "function", "does not define the function 'Holder'"),
        ("Unfinished", "class", "no step"),
    ],
)
def test_imported_and_other_names_are_no_trainables(root: Path, module: str, name: str, kind: str, shown: str):
    with pytest.raises(TrainableNotFound, match=shown):
        spec(name=name, module=module, kind=kind).load(root)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("input()", "reads standard input"),
        ("import sys; sys.stdin.read()", "reads standard input"),
        ("import sys; sys.stdin.buffer.read()", "reads standard input"),
        ("import sys; print(*sys.stdin)", "reads standard input"),
        ("import mqtune; mqtune.Tuner.attach('x')", "runs an experiment"),
    ],
)
@pytest.mark.parametrize("is_script", [True, False], ids=["script", "module"])
def test_an_import_that_runs_a_tuner_is_an_error(root: Path, module: str, line: str, what: str, *, is_script: bool):
    (root / f"{module}.py").write_text(f"{CODE}\n{line}\n")
    before = sys.stdin

    with pytest.raises(TrainableNotFound) as caught:
        (spec(script=f"{module}.py") if is_script else spec(module=module)).load(root)

    assert f"{module}.py {what} when it is imported" in str(caught.value)
    assert 'below `if __name__ == "__main__":`' in str(caught.value)
    assert sys.stdin is before


@pytest.mark.parametrize(
    "name", ["os", "subprocess", "json.tool", "mqtune.cli", "mqtune.cli.digits", "pytest", "pip", "builtins"]
)
def test_an_installed_module_is_not_below_the_code_root(root: Path, name: str):
    with pytest.raises(TrainableNotFound, match="is not below the code root"):
        spec(name="main", module=name).load(root)


@pytest.mark.parametrize("kind", ["function", "script"])
@pytest.mark.parametrize(
    "name",
    ["../outside.py", "{tmp}/outside.py", "x/../../outside.py", "./../outside.py", "//etc/passwd", "..", ".", "/"],
)
def test_no_path_of_a_script_leads_out(root: Path, tmp_path: Path, kind: str, name: str):
    (tmp_path / "outside.py").touch()
    (root / "x").mkdir()
    with pytest.raises(TrainableNotFound, match="code root"):
        spec(script=name.format(tmp=tmp_path), kind=kind).locate(root)


@pytest.mark.parametrize("script", ["far.py", "folder/outside.py", "near.py"])
def test_no_link_leads_out(root: Path, tmp_path: Path, script: str):
    (tmp_path / "outside.py").touch()
    (root / "far.py").symlink_to(tmp_path / "outside.py")
    (root / "folder").symlink_to(tmp_path)
    (root / "near.py").symlink_to("far.py")

    with pytest.raises(TrainableNotFound, match=r"is a link to .*outside.py, which is not below"):
        spec(script=script, kind="script").locate(root)
    with pytest.raises(TrainableNotFound, match="is a link to"):
        spec(module=script.removesuffix(".py").replace("/", ".")).locate(root)


def test_a_program_without_a_file_has_its_arguments():
    code = "from mqtune.trainable.spec import program_arguments; print(program_arguments())"
    command = [sys.executable, "-c", code, "--epochs", "3"]

    assert subprocess.run(command, capture_output=True, text=True).stdout == "['-c', '--epochs', '3']\n"


def test_a_linked_program_imports_from_the_folder_of_its_file(root: Path):
    (root / "bin").mkdir()
    (root / "real").mkdir()
    (root / "real" / "beside_the_file.py").write_text("WIDTH = 3")
    (root / "real" / "tool.py").write_text(
        "from beside_the_file import WIDTH\ndef train(config):\n    return WIDTH, __file__"
    )
    (root / "bin" / "tool").symlink_to("../real/tool.py")

    train = spec(script="bin/tool").load(root)

    assert callable(train)
    assert train({}) == (3, str(root / "bin" / "tool"))


def test_a_script_that_is_a_link_out_of_the_code_root_is_refused_with_the_way_out(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "outside.py").touch()
    (root / "far.py").symlink_to(tmp_path / "outside.py")
    monkeypatch.chdir(root)

    with pytest.raises(TrainableNotFound, match=r"run outside\.py itself, or start in a folder above both"):
        TrainableSpec.of("far.py")


def test_the_programs_of_a_virtual_environment_in_the_code_root_are_no_trainables(root: Path):
    # The code of such a program is in its arguments, which are the config.
    for script in (".venv/bin/tool", "venv/lib/python3.11/site-packages/tool.py", "packed/site-packages/tool.py"):
        path = root / script
        path.parent.mkdir(parents=True)
        path.touch(0o755)
        (root / Path(script).parts[0] / "pyvenv.cfg").touch()
        with pytest.raises(TrainableNotFound, match="is an installed package's"):
            spec(script=script, kind="script").locate(root)


@pytest.mark.parametrize(
    "values",
    [
        *({"name": name} for name in (5, None, "train\0", "x" * 100_000)),
        *({"kind": kind} for kind in ("shell", ["script"], None)),
        *({"module": ["os"]}, {"script": b"x.py"}, {"script": "x\0.py"}),
        *(
            {"adapter": path}
            for path in (5, "os:system", "mqtune.cli", "mqtune.__main__:main", "mqtune_extras.trial:adapt")
        ),
        {"adapter": "mqtune.integrations.optuna_trial:as_trainable", "kind": "class"},
    ],
)
def test_what_names_no_trainable_is_refused_before_anything_is_looked_for(values: dict[str, Any]):
    with pytest.raises(TrainableNotFound, match="names no trainable"):
        spec(**values)


@pytest.mark.parametrize("path", ["mqtune.nowhere:adapt", "mqtune.cli:main", "mqtune.trainable.spec:function_of"])
def test_a_message_can_name_adapters_alone(root: Path, module: str, path: str):
    with pytest.raises(TrainableNotFound, match="has no adapter"):
        spec(module=module, adapter=path).load(root)


@pytest.mark.parametrize("method", ["spare", "-c", "", None, ["fork"]])
def test_a_process_is_started_in_the_two_ways_that_there_are(tmp_path: Path, method: Any):
    definition = {"trainable": {"name": "train", "module": "m"}, "start_method": method}

    with pytest.raises(ConfigurationError, match="there are only 'fork' and 'spawn'"):
        ExperimentHere(MemoryJournal(MemoryServer(), "exp"), definition).import_key(tmp_path, None, tmp_path)
