"""Nothing in the package makes an object or runs code from foreign bytes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pages import nodes_of

import mqtune

ROOT: Final = Path(mqtune.__file__).parent
WORKERS: Final = ROOT.parent / "workers"
#: Modules that make objects, or code, of bytes.
MODULES: Final = frozenset((
    "_pickle", "cloudpickle", "codeop", "copyreg", "dill", "joblib", "jsonpickle", "marshal", "multiprocessing",
    "numpy.lib.format", "pickle", "shelve", "xmlrpc", "yaml",
))  # fmt: skip
CALLS: Final = frozenset({"eval", "exec", "compile", "__import__"})
#: Calls by which a local script runs, as Python itself would run it, and their numbers.
SCRIPTS: Final = {
    "script_process.py calls compile": 1,
    "script_process.py calls exec": 1,
    "main_module.py calls compile": 2,
    "main_module.py calls exec": 1,
}
#: A user's script asks for it by name, searcher="auto", and no definition can: OptunaHub downloads a sampler's code and runs it.
DOWNLOADED: Final = {"optuna_auto.py calls optunahub.load_module": 1}
#: A user's own file of a sweep, read by the loader that makes plain values alone.
READ_SAFELY: Final = {"wandb_file.py imports yaml": 1}
#: Attributes by which a library unpickles, or starts a shell.
ATTRIBUTES: Final = frozenset(
    {"load_module", "popen", "unsafe_load", "full_load", "load_all", "read_pickle", "ext_hook", "object_hook"}
)


def files() -> list[Path]:
    return [*sorted(ROOT.rglob("*.py")), *sorted(WORKERS.rglob("*.py"))]


def found_in(path: Path) -> Iterator[str]:
    """Yield the uses of all of the above in a file."""
    for node in nodes_of(path):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if name in MODULES or name.split(".")[0] in MODULES:
                yield f"{path.name}:{node.lineno} imports {name}"
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in CALLS:
                yield f"{path.name}:{node.lineno} calls {function.id}"
            if isinstance(function, ast.Attribute) and (
                function.attr in ATTRIBUTES or (function.attr == "system" and ast.unparse(function) == "os.system")
            ):
                yield f"{path.name}:{node.lineno} calls {ast.unparse(function)}"
            for keyword in node.keywords:
                if keyword.arg in {"shell", "allow_pickle"} | ATTRIBUTES and not _is_false(keyword.value):
                    yield f"{path.name}:{node.lineno} passes {keyword.arg}"


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def test_nothing_in_the_package_unpickles_or_runs_what_it_reads():
    assert len(files()) > 100
    uses = Counter(re.sub(r":\d+", "", use) for path in files() for use in found_in(path))
    assert uses == SCRIPTS | DOWNLOADED | READ_SAFELY


def test_celery_and_its_settings_know_json_alone():
    from mqtune.backends import CeleryBackend
    from mqtune.worker import OWNED_SETTINGS

    assert OWNED_SETTINGS["accept_content"] == ["json"]
    assert {value for name, value in OWNED_SETTINGS.items() if name.endswith("serializer")} == {"json"}
    source = Path(CeleryBackend.lost.__code__.co_filename).read_text()
    assert re.findall(r"serializer=(.*),", source) == ['"json"']
    assert re.findall(r"accept_content=(.*),", source) == ['["json"]']
